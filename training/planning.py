"""`python -m training.planning`: how much device memory a configuration needs, before anything is loaded.

Exit codes: 0 it fits, 2 it cannot, or wrong use.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # before importing anything that another environment's Python may lack
    from canary_mlflow.interpreter import CORE, TRAINING_STACK, settle

    settle((*CORE, *TRAINING_STACK))

from canary_mlflow.errors import UsageError
from canary_mlflow.loading import collect_seldom, quiet_4_bit
from canary_mlflow.schemas import stamped
from canary_mlflow.shown import echo_lines, json_text
from canary_mlflow.training import devices, models, quantization
from canary_mlflow.training.command_line import expand, parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.config import CanaryConfig, ModelConfig
from canary_mlflow.training.errors import SetupError, ended
from canary_mlflow.training.hub import Repository, locate

if TYPE_CHECKING:
    from canary_mlflow.training.footprint import Footprint

ON_CUDA = 768 * 2**20
"""Bytes that a run on a GPU takes beside what is counted, for CUDA's context and cuBLAS's workspaces: 758 MiB on an
H200 (docs/gpu.md)."""
GIB, MIB = 2**30, 2**20
WHOSE = {"cpu": "this machine", "cuda": "the GPU"}
"""Whose memory it is."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what the overrides on the command line need; return the exit code."""
    collect_seldom()
    register_schemas()
    words = list(sys.argv[1:] if arguments is None else arguments)
    return ended(lambda: plan([word for word in words if word != "--json"], as_json="--json" in words))


def plan(words: Sequence[str], *, as_json: bool = False) -> int:
    """Print the plan and return the exit code. Raises UsageError for what cannot fit."""
    line = parse(expand(words))
    if line.multirun or line.informs or line.helps:
        raise UsageError("canary plan: expected key=value words for one configuration, as `canary run` takes them")
    (config,) = check(line)
    folder = config_folder(config.model)
    models.refuse_own_code(folder, f"model={config.model.name}")
    settings = models.read_config(folder)
    quantization.check_stored(settings, config.adapter, f"model={config.model.name}")
    devices.check(config.hardware, config.parallel.name)
    refuse_uncounted(config, quantization.stored(settings))
    quiet_4_bit()
    from canary_mlflow.training.footprint import footprint  # torch

    device = devices.settle(config.hardware)
    found = footprint(config, folder, device)
    uncounted = ON_CUDA if device.kind == "cuda" else 0
    needed, room = found.total + uncounted, devices.memory(device.kind)
    if as_json:
        said: dict[str, Any] = {**asdict(found), "counted": found.total, "total": needed, "device": room}
        sys.stdout.write(f"{json_text(stamped('plan', said))}\n")
    else:
        echo_lines("\n".join(lines(config, found, uncounted, room, device.kind)))
    if room is not None and needed > room:
        has = f"{WHOSE[device.kind]} has {size(room)} free"
        raise SetupError(
            f"{title(config)} needs {size(needed)}, and {has}; expected a run that fits; {advice(config, found)}"
        )
    return 0


def refuse_uncounted(config: CanaryConfig, kept: str) -> None:
    """Raise SetupError for what would be counted as more than it takes. `kept`: how the files keep the weights."""
    if config.parallel.name == "fsdp2":
        raise SetupError(
            "canary plan counts a whole model for each rank, and parallel=fsdp2 splits it; no plan for that"
        )
    if kept not in quantization.QUANTIZATIONS:
        raise SetupError(
            f"model={config.model.name}: its files hold weights in {kept}, which canary plan cannot count; it knows "
            "those of bitsandbytes"
        )


def config_folder(model: ModelConfig) -> Path:
    """The folder with the model's config.json, the only file that is needed; from the hub, only that file is fetched.
    Raises SetupError."""
    if model.source == "local" and model.path and Path(model.path, "config.json").is_file():
        return Path(model.path)
    if model.source != "hub" or not model.path:
        return models.model_folder(model)
    return locate(
        Repository(
            name=model.path,
            kind="model",
            asked_by=f"model={model.name}",
            probe="config.json",
            patterns=("config.json",),
            missing=lambda folder: [] if (folder / "config.json").is_file() else ["config.json"],
            revision=model.revision,
        )
    )


def title(config: CanaryConfig) -> str:
    """The requested configuration, in the words of the command line."""
    return f"algo={config.algo.name} model={config.model.name} adapter={config.adapter.name}"


def lines(config: CanaryConfig, found: Footprint, uncounted: int, room: int | None, kind: str) -> list[str]:
    """The parts and their sum, as a table for people."""
    logits = f", of which logits {size(found.logits)}" if found.logits else ""
    parts = {
        "weights": (found.weights, f"{counted(found.parameters)} parameters, {counted(found.trained)} trained"),
        "reference": (found.reference, "frozen copy of the start model"),
        "gradients": (found.gradients, ""),
        "optimizer": (found.optimizer, config.train.optimizer),
        "activations": (found.activations, f"{config.train.batch_size} rows at their longest{logits}"),
        "KV cache": (found.kv_cache, "while answers are drawn, before there are activations"),
        "other": (uncounted, "libraries, data, allocator: estimated, not counted"),
    }
    rows = [f"  {name:<12}{size(value):>10}  {what}".rstrip() for name, (value, what) in parts.items() if value]
    total = found.total + uncounted
    has = f"what {WHOSE[kind]} has free is unknown" if room is None else f"{WHOSE[kind]} has {size(room)} free"
    return [title(config), *rows, f"  {'needed':<12}{size(total):>10}  at its peak; {has}"]


def counted(parameters: int) -> str:
    """`165,600`, `7.62 million`, `1.54 billion`."""
    if parameters < 1e6:
        return f"{parameters:,}"
    return f"{parameters / 1e6:.3g} million" if parameters < 1e9 else f"{parameters / 1e9:.3g} billion"


def size(value: int) -> str:
    """A number of bytes, for people."""
    return f"{value / GIB:.1f} GiB" if value >= GIB else f"{value / MIB:.0f} MiB"


def advice(config: CanaryConfig, found: Footprint) -> str:
    """Advice on keys that are not set yet and would save most memory."""
    said = []
    if config.memory.name != "saving":
        said.append("memory=saving")
    if config.adapter.name == "full":
        said.append("adapter=lora")
    elif config.quantization.name == "none":
        said.append("quantization=nf4")
    if found.activations * 2 > found.total:
        said.insert(0, "a smaller train.batch_size or train.max_length")
    return f"use {', '.join(said)}" if said else "use a smaller train.batch_size or train.max_length, or another model"


if __name__ == "__main__":
    sys.exit(main())
