"""Reads the words of a command line, and refuses those that Hydra would take for something else.

The several lines of an error of Hydra or OmegaConf become one: what was found, what was expected.
"""

from __future__ import annotations

import difflib
import itertools
import re
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from canary_mlflow.errors import UsageError
from canary_mlflow.policies import option_names, read_policy
from canary_mlflow.training.config import CanaryConfig

PARTS = {item.name for item in fields(CanaryConfig)}
POLICIES = ("gate", "watch")  # groups whose options may be files of the user's own


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """What the command line asks for."""

    jobs: list[list[str]]  # the overrides of each job: one, or the grid of a multirun
    multirun: bool
    config_dir: str | None
    outputs: str  # where to make the folder for scratch files
    plain: bool  # one job, and no option on how Hydra runs it
    informs: bool  # composes and shows, but runs nothing
    helps: bool  # does not even compose
    swept: tuple[str, ...] = ()  # the words of a multirun in which its cells differ


def expand(argv: Sequence[str]) -> list[str]:
    """The words in the form that Hydra expects.

    Splits MLproject's one quoted `--overrides=…`, drops parameters left empty, turns the path of a policy
    (`gate=my/policy.yaml`) into an option of its group, and puts options before overrides.
    """
    words: list[str] = []
    for word in argv:
        if word.startswith("--overrides="):
            try:
                words += shlex.split(word.removeprefix("--overrides="))
            except ValueError as error:
                raise UsageError(f"overrides: {error}; expected key=value words, quoted as in a shell") from error
        elif word:
            words.append(word)
    return _options_first([_policy_by_path(word) for word in words])


def _options_first(words: Sequence[str]) -> list[str]:
    """argparse, and so Hydra, refuses overrides on both sides of an option: `launcher=ray --multirun algo=sft,dpo`."""
    found, _ = _parser().parse_known_intermixed_args(list(words))
    left = list(words)
    for override in found.overrides:
        left.remove(override)
    return [*left, *found.overrides]


def parse(argv: Sequence[str]) -> CommandLine:
    """Read expanded words. Raises UsageError for words that make no sense."""
    arguments, unknown = _parser().parse_known_args(list(argv))
    if unknown:
        raise UsageError(f"unknown option {unknown[0]!r}; expected key=value overrides or Hydra's own options")
    _check_options(arguments)
    try:
        overrides = OverridesParser.create().parse_overrides(arguments.overrides)
    except HydraException as error:
        raise UsageError(explain(error)) from error
    for item in overrides:
        _check_override(item)
    modes = [str(item.value()) for item in overrides if item.key_or_group == "hydra.mode"]
    multirun = bool(arguments.multirun) or "MULTIRUN" in modes
    folder = "hydra.sweep.dir" if multirun else "hydra.run.dir"
    folders = [str(item.value()) for item in overrides if item.key_or_group == folder]
    others = [item for item in overrides if item.key_or_group.startswith("hydra") and item.key_or_group != folder]
    return CommandLine(
        jobs=list(_grid(overrides)) if multirun else [list(arguments.overrides)],
        multirun=multirun,
        config_dir=arguments.config_dir,
        outputs=folders[-1] if folders else "outputs",
        plain=not (
            multirun
            or others
            or any("$" in one for one in folders)
            or arguments.config_dir
            or arguments.experimental_rerun
        ),
        informs=bool(arguments.cfg or arguments.info),
        helps=bool(arguments.help or arguments.hydra_help or arguments.shell_completion),
        swept=tuple(str(item.input_line) for item in overrides if multirun and _makes_cells(item)),
    )


def _parser() -> ArgumentParser:
    """Hydra's own parser, with one-line errors instead of its usage text."""

    def refuse(message: str) -> NoReturn:
        raise UsageError(f"{message}; `python -m training --hydra-help` lists the options")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    return parser


def _check_options(arguments: Namespace) -> None:
    if arguments.config_name or arguments.config_path:
        raise UsageError(
            "--config-name and --config-path are not used here; expected --config-dir with options of yours"
        )
    if arguments.config_dir and not Path(arguments.config_dir).is_dir():
        raise UsageError(f"--config-dir {arguments.config_dir}: no such folder; expected one laid out as conf/ is")
    commands = {
        "--run": arguments.run,
        "--multirun": arguments.multirun,
        "--cfg": arguments.cfg,
        "--info": arguments.info,
        "--shell-completion": arguments.shell_completion,
    }
    if len(asked := [name for name, on in commands.items() if on]) > 1:
        raise UsageError(f"found {' and '.join(asked)}; expected one of them at a time")
    if arguments.resolve and not arguments.cfg:
        raise UsageError("found --resolve alone; expected --cfg job --resolve")
    if arguments.package and not arguments.cfg:
        raise UsageError("found --package alone; expected --cfg job --package NAME")


def _check_override(item: Override) -> None:
    key, words = item.key_or_group, item.input_line
    part = key.partition(".")[0]
    if not key:
        raise UsageError(f"{words}: not understood; expected key=value")
    options = option_names(key)
    if item.is_delete() and part in PARTS and (part not in POLICIES or key == part):
        hint = f"choose with {key}=NAME, one of {', '.join(options)}" if options else f"set it with {key}=VALUE"
        raise UsageError(f"{words}: a canary cannot do without {key}; {hint}")
    if options and (item.is_add() or item.is_force_add() or item.package is not None):
        raise UsageError(f"{words}: a canary has one {key} already; expected {key}=NAME, one of {', '.join(options)}")
    if options and not item.is_delete() and not item.is_sweep_override() and not _is_name(item.value()):
        raise UsageError(f"{words}: not the name of an option; expected {key}=NAME, one of {', '.join(options)}")
    if key == "algo.name":
        raise UsageError(f"{words}: each algorithm has its own keys; expected algo={item.value()} instead")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _makes_cells(item: Override) -> bool:
    return item.is_sweep_override() and item.key_or_group not in ("seed", "repeats")


def _grid(overrides: list[Override]) -> Iterator[list[str]]:
    """Every combination of swept values, as launchers and sweepers other than the basic one see them too."""
    choices = [
        [f"{item.get_key_element()}={value}" for value in item.sweep_string_iterator()]
        if item.is_sweep_override()
        else [item.input_line or ""]
        for item in overrides
    ]
    for combination in itertools.product(*choices):
        yield list(combination)


def _policy_by_path(word: str) -> str:
    """Turn `gate=FILE` into an option that Hydra can choose: it composes options, not arbitrary files."""
    key, equals, value = word.partition("=")
    if key.startswith("gate.rules.") and equals:
        return f"++{word}"  # a rule's keys have defaults; a wrong one is refused by the policy's reader
    if key not in POLICIES or not equals:
        return word
    names = [_option_for(key, item) if _is_path(item) else item for item in value.split(",")]
    return f"{key}={','.join(names)}"


def _is_path(value: str) -> bool:
    return "/" in value or value.endswith((".yaml", ".yml"))


def _option_for(group: str, path: str) -> str:
    body = read_policy(path, group)
    name = f"own_{Path(path).stem}"
    ConfigStore.instance().store(group=group, name=name, node=body)
    return name


# OmegaConf's message for a value of the wrong type, and our words for the right one.
_CONVERSION = re.compile(r"Value '(.*)' of type '.*' could not be converted to (\w+)")
EXTRAS = {"joblib": "joblib", "submitit_local": "slurm", "submitit_slurm": "slurm"}
"""Hydra's launchers that one of our extras installs → the extra."""
_KINDS = {"Integer": "a whole number", "Float": "a number", "String": "a text"}


def missing_option(error: MissingConfigException) -> str:
    """The line for an option that its group does not have."""
    found = error.missing_cfg_file or "?"
    options = [option for option in error.options or [] if not option.startswith("_")]
    if not options:
        return f"there is no config {found!r}; see `python -m training --help` for the groups"
    group, _, name = found.rpartition("/") if found.startswith("hydra/") else found.partition("/")
    near = difflib.get_close_matches(name, options, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    if group in ("model", "data") and ("/" in name or name.startswith(".")):
        kind = "local" if group == "model" else "jsonl"
        hint = f" (for a path of your own: {group}={kind} {group}.path=…)"
    if group.startswith("hydra/"):
        extra = EXTRAS.get(name)
        package = f'"canary-mlflow[{extra}]"' if extra else f"hydra-{name}-{group.removeprefix('hydra/')}"
        hint = f"; others come as packages: pip install {package}"
    return f"unknown {group} {name!r}; expected one of {', '.join(sorted(options))}{hint}"


def explain(error: Exception) -> str:
    """The line for anything else that keeps a configuration from being composed."""
    cause = error
    while isinstance(cause, ConfigCompositionException) and isinstance(cause.__cause__, Exception):
        cause = cause.__cause__
    key = getattr(cause, "full_key", None)
    if isinstance(cause, OverrideParseException):
        return f"{cause.override}: not understood; expected key=value, with quotes around special characters in a value"
    if "Ambiguous value" in str(cause):
        return f"{str(cause).splitlines()[0]}; expected one value, or --multirun for several"
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    reason = lines[0] if lines else type(cause).__name__
    if isinstance(cause, OmegaConfBaseException) and ("is not in" in str(cause) or "Key '" in reason):
        return _unknown_key(str(key or reason), cause)
    if key:
        return f"{key}{_wrong_value(str(key), reason)}"
    return reason


def _wrong_value(key: str, reason: str) -> str:
    """What is wrong with a key's value, worded to follow the key."""
    if found := _CONVERSION.search(reason):
        value, kind = found.groups()
        return f" is {value}; expected {_KINDS.get(kind, kind)}"
    if "is not a valid bool" in reason:
        return f" is {reason.split(chr(39))[1]}; expected true or false"
    if "is not Optional" in reason:
        return " is null; expected a value"
    if "Invalid type assigned" in reason:
        return f" holds keys of its own and no value; expected {key}.KEY=VALUE"
    return f": {reason}"


def _unknown_key(key: str, error: OmegaConfBaseException) -> str:
    """The line for an unknown key, with the keys that its parent has."""
    beside = sorted(str(name) for name in error.parent_node) if isinstance(error.parent_node, DictConfig) else []
    if not beside:
        return f"unknown key {key!r}; `python -m training --cfg job` shows those that there are"
    near = difflib.get_close_matches(key.rpartition(".")[2], beside, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown key {key!r}; expected one of {', '.join(beside)}{hint}"
