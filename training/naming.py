"""What a session and its runs are called in MLflow, and what they can be filtered by."""

from __future__ import annotations

import os
from typing import Any

from canary_mlflow.ci.job import ci_tags
from training.config import CanaryConfig


def default_model_name(config: CanaryConfig) -> str:
    """The registered model: the workload's name. `/` and `:` are not allowed there."""
    return "-".join((config.algo.name, config.model.name, config.data.name, config.tier.name))


def session_name(config: CanaryConfig) -> str:
    """What the MLflow UI shows for the parent run."""
    fault = "" if config.fault.name == "none" else f" fault={config.fault.name}"
    return f"{default_model_name(config)}{fault}"


def run_name(config: CanaryConfig) -> str:
    """What the MLflow UI shows for one run."""
    return f"{default_model_name(config)} seed {config.seed}"


def session_tags(config: CanaryConfig, model: str) -> dict[str, str]:
    """What the parent run can be filtered by."""
    return {"canary.role": "session", "canary.model_name": model, **_part_tags(config), **ci_tags(os.environ)}


def run_tags(config: CanaryConfig) -> dict[str, str]:
    """What one run can be filtered by."""
    return {"canary.role": "run", "canary.seed": str(config.seed), **_part_tags(config)}


def _part_tags(config: CanaryConfig) -> dict[str, str]:
    names = ("algo", "model", "data", "tier", "adapter", "quantization", "fault")
    return {f"canary.{name}": getattr(config, name).name for name in names}


def flatten(tree: dict[str, Any], prefix: str = "cfg/") -> dict[str, str]:
    """Nested configuration as MLflow params; the policies are left to verdict.json and config.yaml."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.") if key not in ("gate", "watch") else {}
        else:
            flat[prefix + key] = str(value)
    return flat
