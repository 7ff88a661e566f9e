"""From a command line to a checked configuration, without loading anything heavy."""

from __future__ import annotations

import difflib
import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from canary_mlflow.errors import UsageError
from canary_mlflow.policies import conf_dir
from training.checks import check_values
from training.config import ALGORITHMS, GROUPS, CanaryConfig


def expand(argv: Sequence[str]) -> list[str]:
    """Split MLproject's one quoted `--overrides=…` into words; drop parameters left empty."""
    words: list[str] = []
    for word in argv:
        if word.startswith("--overrides="):
            try:
                words += shlex.split(word.removeprefix("--overrides="))
            except ValueError as error:
                raise UsageError(f"overrides: {error}; expected key=value words, quoted as in a shell") from error
        elif word:
            words.append(word)
    return words


def register_schemas() -> None:
    """Give Hydra the types of every group, so that a wrong key or value fails while composing."""
    store = ConfigStore.instance()
    store.store(name="_schema_", node=CanaryConfig)
    for group, schema in GROUPS.items():
        store.store(group=group, name="_schema_", node=schema)
    for name, schema in ALGORITHMS.items():
        store.store(group="algo", name=f"_schema_{name}_", node=schema)


def check(argv: Sequence[str]) -> list[CanaryConfig]:
    """Compose every job that the command line asks for (one, or the grid of a multirun).

    Raises UsageError with one line: what was found, what was expected.
    """
    arguments, unknown = get_args_parser().parse_known_args(list(argv))
    if unknown:
        raise UsageError(f"unknown option {unknown[0]!r}; expected key=value overrides or Hydra's own options")
    if arguments.config_name or arguments.config_path:
        raise UsageError(
            "--config-name and --config-path are not used here; expected --config-dir with options of yours"
        )
    if arguments.config_dir and not Path(arguments.config_dir).is_dir():
        raise UsageError(f"--config-dir {arguments.config_dir}: no such folder; expected one laid out as conf/ is")
    overrides = list(arguments.overrides)
    jobs = list(_grid(overrides)) if arguments.multirun else [overrides]
    with initialize_config_dir(config_dir=str(conf_dir().resolve()), version_base="1.3", job_name="canary"):
        extra = [f"hydra.searchpath=[file://{arguments.config_dir}]"] if arguments.config_dir else []
        return [to_config(_compose(job + extra)) for job in jobs]


def to_config(composed: DictConfig | Mapping[str, Any]) -> CanaryConfig:
    """The composed tree as dataclasses; also what a run's own process reads back from JSON.

    Keys the schema does not know raise UsageError: Hydra lets `+key=value` past its own check.
    """
    tree = OmegaConf.create(dict(composed)) if not isinstance(composed, DictConfig) else composed
    try:
        plain = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
        assert isinstance(plain, dict)
        name = (plain.get("algo") or {}).get("name")
        if name not in ALGORITHMS:
            raise UsageError(f"algo.name is {name!r}; expected one of {', '.join(ALGORITHMS)}")
        schema = OmegaConf.structured(CanaryConfig(algo=ALGORITHMS[name]()))
        config = OmegaConf.to_object(OmegaConf.merge(schema, plain))
    except OmegaConfBaseException as error:
        raise UsageError(_explain(error)) from error
    assert isinstance(config, CanaryConfig)
    check_values(config)
    return config


def to_plain(config: CanaryConfig) -> dict[str, Any]:
    """The configuration as JSON-ready dictionaries."""
    plain = OmegaConf.to_container(OmegaConf.structured(config))
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _compose(overrides: list[str]) -> DictConfig:
    try:
        return compose("config", overrides=overrides)
    except MissingConfigException as error:
        raise UsageError(_missing_option(error)) from error
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise UsageError(_explain(error)) from error
    except ValueError as error:  # Hydra's own, for an override without a key
        raise UsageError(f"{' '.join(overrides)}: not understood; expected key=value") from error


def _grid(overrides: list[str]) -> Iterator[list[str]]:
    """Every combination of swept values; launchers and sweepers other than the basic one see the same."""
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except HydraException as error:
        raise UsageError(_explain(error)) from error
    choices = [
        [f"{item.get_key_element()}={value}" for value in item.sweep_string_iterator()]
        if item.is_sweep_override()
        else [item.input_line or ""]
        for item in parsed
    ]
    for combination in itertools.product(*choices):
        yield list(combination)


def _missing_option(error: MissingConfigException) -> str:
    found = error.missing_cfg_file or "?"
    options = [option for option in error.options or [] if not option.startswith("_")]
    if not options:
        return f"there is no config {found!r}; see `python -m training --help` for the groups"
    group, _, name = found.partition("/")
    near = difflib.get_close_matches(name, options, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    if group in ("model", "data") and ("/" in name or name.startswith(".")):
        kind = "local" if group == "model" else "jsonl"
        hint = f" (for a path of your own: {group}={kind} {group}.path=…)"
    return f"unknown {group} {name!r}; expected one of {', '.join(sorted(options))}{hint}"


def _explain(error: Exception) -> str:
    """One line out of Hydra's and OmegaConf's several."""
    cause = error
    while isinstance(cause, ConfigCompositionException) and isinstance(cause.__cause__, Exception):
        cause = cause.__cause__
    key = getattr(cause, "full_key", None)
    if type(cause).__name__.startswith("Lexer") or "Error parsing override" in str(cause):
        words = str(cause).splitlines()[0].removeprefix("Error parsing override").strip(" '")
        return f"{words}: not understood; expected key=value, with quotes around a value that holds special signs"
    if "Ambiguous value" in str(cause):
        return f"{str(cause).splitlines()[0]}; expected one value, or --multirun for several"
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    reason = lines[0] if lines else type(cause).__name__
    if (isinstance(cause, OmegaConfBaseException) and "is not in" in str(cause)) or "Key '" in reason:
        wanted = str(key or reason)
        return f"unknown key {wanted!r}; expected one of {', '.join(_valid_keys(wanted))}"
    return f"{key}: {reason}" if key and key not in reason else reason


def _valid_keys(dotted: str) -> list[str]:
    """The keys that stand beside a wrong one, as the schema has them."""
    node: Any = CanaryConfig
    for part in dotted.split(".")[:-1]:
        types = {**GROUPS, "train": _train_schema()}
        node = types.get(part, node) if node is CanaryConfig else node
        if part == "algo":
            return sorted({item.name for schema in ALGORITHMS.values() for item in fields(schema)})
    return [item.name for item in fields(node)] if is_dataclass(node) else []


def _train_schema() -> type:
    from training.config import TrainConfig

    return TrainConfig
