"""A configuration as plain dictionaries, as it travels to a run's process, which reads it back without Hydra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from canary_mlflow.training.algorithms import schemas
from canary_mlflow.training.config import CanaryConfig


def to_plain(config: CanaryConfig) -> dict[str, Any]:
    """The configuration as JSON-ready dictionaries."""
    return asdict(config)


def read_back(plain: Mapping[str, Any]) -> CanaryConfig:
    """The inverse of `to_plain`, in a run's process: already checked, so without OmegaConf's half second."""
    algo = _made(schemas()[plain["algo"]["name"]], plain["algo"])
    return _made(CanaryConfig, {**plain, "algo": algo})


def _made(kind: type[Any], plain: Mapping[str, Any]) -> Any:
    """A dataclass, with those nested in it, from its dictionary."""
    types = get_type_hints(kind)
    return kind(
        **{
            key: _made(types[key], value)
            if is_dataclass(types[key]) and isinstance(value, dict)
            else _list(types[key], value)
            for key, value in plain.items()
        }
    )


def _list(kind: Any, value: Any) -> Any:
    """The list, with its items as dataclasses if its type says so."""
    (of,) = get_args(kind) if get_origin(kind) is list else (None,)
    return [_made(of, one) for one in value] if is_dataclass(of) and isinstance(of, type) else value
