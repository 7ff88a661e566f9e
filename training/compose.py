"""From a command line to a checked configuration, without loading anything heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from canary_mlflow.errors import UsageError, one_line
from canary_mlflow.policies import conf_dir, watch_of_canary
from canary_mlflow.training.algorithms import NAMES, schemas
from canary_mlflow.training.command_line import CommandLine, explain, missing_option
from canary_mlflow.training.config import GROUPS, CanaryConfig
from canary_mlflow.training.preflight import check_values


def register_schemas() -> None:
    """Register every group's types with Hydra, so that a wrong key or value fails during composition."""
    store = ConfigStore.instance()
    store.store(name="_schema_", node=CanaryConfig)
    for group, schema in GROUPS.items():
        store.store(group=group, name="_schema_", node=schema)
    for name, schema in schemas().items():
        store.store(group="algo", name=f"_schema_{name}_", node=schema)


@dataclass(frozen=True, kw_only=True)
class Composed:
    """One composed job. `outputs`: the folder for scratch files if the job runs without Hydra. `launcher`: the Hydra
    launcher that starts it in a sweep, with its keys."""

    config: CanaryConfig
    outputs: str
    launcher: str
    launcher_keys: dict[str, Any]


def check(line: CommandLine) -> list[CanaryConfig]:
    """The configuration of every job that the command line asks for. Raises UsageError."""
    return [job.config for job in composed(line)]


def composed(line: CommandLine) -> list[Composed]:
    """Compose every job that the command line asks for (one, or the grid of a multirun).

    Raises UsageError with one line: what was found, what was expected.
    """
    with initialize_config_dir(config_dir=str(conf_dir().resolve()), version_base="1.3", job_name="canary"):
        extra = [f"hydra.searchpath=[file://{line.config_dir}]"] if line.config_dir else []
        jobs = [_compose(job + extra, plain=line.plain) for job in line.jobs]
    places = {(job.config.tracking.uri, job.config.tracking.experiment) for job in jobs}
    if len(places) > 1:
        raise UsageError(f"a sweep is one run with children; found {len(places)} stores or experiments; expected one")
    return jobs


def to_config(composed: DictConfig | Mapping[str, Any]) -> CanaryConfig:
    """The composed tree, or one read from a file, as dataclasses.

    Raises UsageError for keys that the schema does not know: Hydra lets `+key=value` past its own check.
    """
    tree = OmegaConf.create(dict(composed)) if not isinstance(composed, DictConfig) else composed
    try:
        plain = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
        assert isinstance(plain, dict)
        name = (plain.get("algo") or {}).get("name")
        if name not in NAMES:
            raise UsageError(f"algo.name is {name!r}; expected one of {', '.join(NAMES)}")
        schema = OmegaConf.structured(CanaryConfig(algo=schemas()[name]()))
        config = OmegaConf.to_object(OmegaConf.unsafe_merge(schema, plain))  # unsafe: it changes `schema`
    except OmegaConfBaseException as error:
        raise UsageError(explain(error)) from error
    assert isinstance(config, CanaryConfig)
    check_values(config)
    return replace(config, watch=watch_of_canary(config.watch))


def _compose(overrides: list[str], *, plain: bool) -> Composed:
    try:
        tree = compose("config", overrides=overrides, return_hydra_config=True)
        outputs = str(tree.hydra.run.dir) if plain else ""
        launcher = str(tree.hydra.runtime.choices["hydra/launcher"])
        launcher_keys: Any = OmegaConf.to_container(tree.hydra.launcher)
        with open_dict(tree):
            del tree["hydra"]
    except MissingConfigException as error:
        raise UsageError(missing_option(error)) from error
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise UsageError(explain(error)) from error
    except ValueError as error:  # raised by Hydra for a path that leads nowhere
        raise UsageError(one_line(error)) from error
    return Composed(config=to_config(tree), outputs=outputs, launcher=launcher, launcher_keys=launcher_keys)
