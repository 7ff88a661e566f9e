"""Which of a trainer's arguments stand at their class's default. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from canary_mlflow.gates.facts.check import INCIDENTAL
from canary_mlflow.tracking.describing.fact_tags import as_text

NO_SETTING = frozenset({"_attn_implementation_autoset", "_name_or_path", "architectures", "base_model_name_or_path",
                        "logging_nan_inf_filter", "model_type", "peft_version", "runtime_config",
                        "transformers_version"})  # fmt: skip
"""Keys of arguments and configurations that tell where something comes from, or that we set ourselves."""


def at_default(values: Any, plain_values: Mapping[str, Any]) -> frozenset[str]:
    """The fields of a dataclass that nobody set: at their default, or set by us. `plain_values`: its values, plain."""
    usual = _defaults(values)
    same = {name for name in usual.keys() & plain_values.keys() if _equal(plain_values[name], usual[name])}
    return frozenset(same | NO_SETTING)


def changed_fields(values: Any, plain_values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass that are not at their default, without those that differ from run to run anyway."""
    left_out = at_default(values, plain_values) | INCIDENTAL
    return {name: plain_values[name] for name in sorted(_defaults(values).keys() & plain_values.keys() - left_out)}


def _defaults(values: Any) -> dict[str, Any]:
    if not is_dataclass(values):
        return {}
    return {
        one.name: one.default if one.default_factory is MISSING else one.default_factory() for one in fields(values)
    }


def _equal(value: Any, usual: Any) -> bool:
    return as_text(value) == as_text(getattr(usual, "value", usual))
