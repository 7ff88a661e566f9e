"""How a session and its runs are named in MLflow, and by which tags they can be filtered."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow import tags
from canary_mlflow.ci import ci_tags
from canary_mlflow.errors import UsageError
from canary_mlflow.registry.evidence import work_of_champion
from canary_mlflow.training import faults
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.plain import to_plain
from canary_mlflow.training.workload import digest_of

if TYPE_CHECKING:
    from mlflow import MlflowClient


SUFFIX = 8  # hex digits of a digest in a name
LONGEST = 40  # characters of a file's or folder's name within a name
PROFILER = "a profiler"
SHOWN = 16  # characters of a value in a message: enough of a digest


def canary_name(config: CanaryConfig) -> str:
    """Algorithm, model, data and tier, plus adapter and quantization if they are not the defaults."""
    parts = [config.algo.name, _model(config), _data(config), config.tier.name]
    parts += [config.adapter.name] if config.adapter.name != "full" else []
    parts += [config.quantization.name] if config.quantization.name != "none" else []
    return "-".join(parts)


def default_model_name(config: CanaryConfig, workload: Mapping[str, str]) -> str:
    """The registered model: the canary's name; for a user's own model or data, of which it only has a file's name, with
    their digests from the workload; and with the ranks, if there are several."""
    own = {
        "model_revision": config.model.source == "local",
        "data_digest": _own_file(config) is not None,
    }
    digests = [workload.get(key, "")[:SUFFIX] for key, is_own in own.items() if is_own]
    ranks = [f"{count}-ranks"] if (count := workload.get("ranks")) else []
    return "-".join([canary_name(config), *ranks, *(digest for digest in digests if digest)])


def choose_model_name(client: MlflowClient, config: CanaryConfig, workload: Mapping[str, str]) -> str:
    """The registered model that this work is judged under: `model_name`, else the default.

    Raises UsageError if that model's champion did other work: no number of runs would make the two comparable.
    """
    default = default_model_name(config, workload)
    model = config.model_name or default
    if not (others := _differences(client, model, workload)):
        return model
    free = (name for name in (default, f"{default}-{digest_of(workload)}") if not _differences(client, name, workload))
    raise UsageError(
        f"model {model!r}: its champion did other work ({', '.join(others)}), and the two cannot be compared; expected "
        f"another model for this work; write model_name={next(free, 'NAME')}"
    )


def session_name(config: CanaryConfig) -> str:
    """The parent run's name in the MLflow UI, until the verdict is added to it."""
    fault = "" if config.fault.name == "none" else f" fault={config.fault.name}"
    return f"{config.model_name or f'{config.algo.name} {config.model.name} {config.tier.name}'}{fault}"


def run_name(config: CanaryConfig) -> str:
    """One run's name in the MLflow UI, below its session."""
    return f"seed {config.seed}"


def session_tags(config: CanaryConfig, model: str) -> dict[str, str]:
    """The tags by which the parent run can be filtered."""
    return {tags.ROLE: "session", tags.MODEL_NAME: model, **_part_tags(config), **ci_tags(os.environ)}


def run_tags(config: CanaryConfig) -> dict[str, str]:
    """The tags by which one run can be filtered."""
    return {tags.ROLE: "run", tags.SEED: str(config.seed), **_part_tags(config)}


def run_params(config: CanaryConfig) -> dict[str, str]:
    """What one run is given, after a fault of settings has changed it: reports tell from these what changed."""
    given = flatten(to_plain(faults.configure(config)))
    return {key: value for key, value in given.items() if ONE_PROCESS.get(key) != value}


def usual_params(config: CanaryConfig) -> frozenset[str]:
    """The params that say nothing of a run: at the default of their schema, or about other algorithms than its own."""
    parts: dict[str, Any] = {
        name: type(part)() for name, part in vars(config).items() if is_dataclass(part) and not isinstance(part, type)
    }
    usual = flatten(to_plain(CanaryConfig(**parts)))
    same = {key for key, value in run_params(config).items() if usual.get(key) == value}
    return frozenset(same | {key for key in run_params(config) if key.startswith(BY_ALGORITHM)})


def _part_tags(config: CanaryConfig) -> dict[str, str]:
    names = ("algo", "model", "tier", "adapter", "quantization", "fault")
    parts = {f"{tags.OURS}{name}": getattr(config, name).name for name in names}
    why = [*([f"fault {config.fault.name}"] if config.fault.name != "none" else []), *([PROFILER] * config.profile)]
    return {**parts, tags.NOT_PROMOTABLE: " and ".join(why)} if why else parts


def _model(config: CanaryConfig) -> str:
    """The option's name; for a user's own folder, the folder's name."""
    if config.model.source != "local" or not config.model.path:
        return config.model.name
    return _word(Path(config.model.path).expanduser().resolve().name) or config.model.name


def _data(config: CanaryConfig) -> str:
    own = _own_file(config)
    return config.data.name if own is None else _word(own.name.partition(".")[0]) or config.data.name


def _own_file(config: CanaryConfig) -> Path | None:
    """The file that `data=jsonl` or `data=hub` reads; None for data that an option names."""
    return Path(config.data.path) if config.data.source in ("jsonl", "hub") and config.data.path else None


def _word(name: str) -> str:
    """A name with only characters that a model's name, a shell and Hydra all accept unchanged."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:LONGEST]


def _differences(client: MlflowClient, model: str, workload: Mapping[str, str]) -> list[str]:
    """`batch_size 4, here 8` for each part of the work in which the model's champion differs."""
    theirs = work_of_champion(client, model) if workload else {}
    keys = sorted({*theirs, *workload}) if theirs else []
    shown = {key: [side.get(key, "absent")[:SHOWN] for side in (theirs, workload)] for key in keys}
    return [f"{key} {shown[key][0]}, here {shown[key][1]}" for key in keys if theirs.get(key) != workload.get(key)]


ONE_PROCESS = {"cfg/hardware.ranks": "1", "cfg/parallel.name": "ddp"}
"""Values that are not recorded: runs from before there were ranks do not have them either, and did the same."""

BY_ALGORITHM = ("cfg/model.learning_rate.", "cfg/tier.steps.")
"""What each algorithm takes for `train`, where its own are given too."""

LEFT_OUT = ("gate", "watch", "notify", "variant", "launcher")


def flatten(tree: dict[str, Any], prefix: str = "cfg/") -> dict[str, str]:
    """The nested configuration as MLflow params. Left out: the policies (in verdict.json and config.yaml), the variants
    (in their own facts), who is told about a run, and where it is made."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.") if key not in LEFT_OUT else {}
        elif key != "variants":
            flat[prefix + key] = str(value)
    return flat
