"""Turns the several lines of an error of Hydra or OmegaConf into one: what was found, what was expected."""

from __future__ import annotations

import difflib
import re

from hydra.errors import ConfigCompositionException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

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
