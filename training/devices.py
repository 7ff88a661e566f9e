"""Where a run computes and in which precision, decided once."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from canary_mlflow.tracking.describing import gpus
from canary_mlflow.tracking.describing.fingerprint import usable_cores
from canary_mlflow.training.config import HardwareConfig
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.peers import world


@dataclass(frozen=True, kw_only=True)
class Device:
    """A settled choice: kind is cpu or cuda, precision fp32 or bf16. `note`: what a user would not expect about it."""

    kind: str
    precision: str
    note: str = ""
    ranks: int = 1  # processes of a run, each with a device of this kind


def environment(hardware: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables that a run's process needs before it loads torch.

    One device per rank: if more are visible, Transformers wraps a model in DataParallel, which TRL refuses. All runs of
    a session take the same ones, CUDA's first, so that they are compared on the same cards.
    """
    found: dict[str, str] = {}
    names, count = cards_in_sight(hardware), ranks(hardware)
    if len(names) > count:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(names[:count])
    if hardware.get("deterministic"):
        found["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # docs.nvidia.com/cuda/cublas, "Results Reproducibility"
    return found


def ranks(hardware: Mapping[str, Any]) -> int:
    """How many processes train a run: as many as asked for; with `auto` one per visible GPU, or one without any."""
    asked = hardware.get("ranks", 1)
    return (len(cards_in_sight(hardware)) or 1) if asked == "auto" else int(asked)


def cards_in_sight(hardware: Mapping[str, Any]) -> Sequence[str]:
    """The GPUs visible to a run that may use one."""
    if hardware.get("device") == "cpu":
        return []
    with gpus.driver() as nvml:
        return gpus.visible(nvml)


def check(hardware: HardwareConfig, parallel: str = "ddp") -> None:
    """Raise SetupError for what this machine lacks, as far as can be seen without importing torch."""
    cores = usable_cores()
    _check_ranks(hardware, parallel, cores)
    if hardware.threads > cores:
        raise SetupError(
            f"hardware.threads is {hardware.threads}; expected at most {cores}, the cores that this process may use"
        )
    if hardware.device == "cuda" and (why := _no_gpu()):
        raise SetupError(f"hardware.device is cuda, but {why}; expected a GPU that torch can use; or use hardware=cpu")


def _check_ranks(hardware: HardwareConfig, parallel: str, cores: int) -> None:
    count, cards = ranks(vars(hardware)), len(cards_in_sight(vars(hardware)))
    lacking = "hardware.device is cpu" if hardware.device == "cpu" else _no_gpu()
    if parallel == "fsdp2" and lacking:  # Accelerate would silently fall back to DDP
        raise SetupError(f"parallel=fsdp2 needs GPUs, but {lacking}; expected parallel=ddp there")
    if parallel == "fsdp2" and count < 2:
        raise SetupError(
            "parallel=fsdp2 splits a model over ranks, and there is 1; expected hardware.ranks of 2 or more"
        )
    if count == 1:
        return
    if not lacking and count > cards:
        raise SetupError(f"hardware.ranks is {count}; expected at most {cards}, the visible GPUs; or use hardware=cpu")
    if lacking and count * hardware.threads > cores:
        raise SetupError(
            f"hardware.ranks is {count} with {hardware.threads} threads each; expected at most {cores} in all, the "
            "cores that this process may use"
        )


def _no_gpu() -> str:
    """Why torch cannot find a GPU here; "" if it may."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    if version("torch").endswith("+cpu"):
        return f"torch {version('torch')} is built for the CPU alone"
    if not _has_driver():
        return "no driver offers a GPU (no /dev/nvidia0)"
    return ""


def _has_driver() -> bool:
    """Whether a driver's device files exist: NVIDIA, Jetson, WSL, ROCm."""
    return any(any(Path("/dev").glob(name)) for name in ("nvidia[0-9]*", "nvhost-gpu", "dxg", "kfd"))


def settle(hardware: HardwareConfig) -> Device:
    """Turn `auto` into what this machine has. Raises SetupError if it lacks what was asked for."""
    import torch

    has_gpu, why = _look_for_gpu()
    kind, note = hardware.device, ""
    if kind == "cuda" and not has_gpu:
        raise SetupError(f"hardware.device is cuda, but {why}; use hardware=cpu, or update the driver")
    if kind == "auto":
        kind = "cuda" if has_gpu else "cpu"
        if kind == "cpu" and _has_driver() and os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() not in ("", "-1"):
            note = f"the runs use the CPU: this machine has a GPU, but {why}; hardware=cpu keeps to the CPU"
    if kind == "cpu":
        # Numbers below 1e-38 take a CPU a hundred times longer; collapsing weights are full of them.
        torch.set_flush_denormal(True)
    if hardware.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    # A card older than Ampere emulates bf16 through fp32, many times slower; torch counts that as support.
    native = kind == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    precision = hardware.precision
    if precision == "auto":
        precision = "bf16" if native else "fp32"
    elif precision == "bf16" and kind == "cuda" and not native:
        note = "this card only emulates bf16, which is slow; hardware.precision=fp32 is what it can do"
    return Device(kind=kind, precision=precision, note=note, ranks=world())


def memory(kind: str) -> int | None:
    """The bytes available on the device that a run of this kind would use: on a GPU what is free, on a machine what is
    available within the process's control group. None if that is not known."""
    if kind == "cpu":
        import psutil

        return min([int(psutil.virtual_memory().available), *memory_limits()])
    with gpus.driver() as nvml:
        try:
            names = gpus.visible(nvml) if nvml is not None else ()
            return int(nvml.nvmlDeviceGetMemoryInfo(gpus.handle(nvml, names[0])).free) if names else None
        except nvml.NVMLError:
            return None


def memory_limits(own: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    """The limits, in bytes, of this process's control group and of those around it. A container sees its own as the
    root; a batch system's, such as Slurm's for a job, lie deeper."""
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, kinds, group = line.split(":", 2)
            top, name = (root, "memory.max") if not kinds else (root / kinds, "memory.limit_in_bytes")
            if kinds in ("", "memory"):
                place = top / group.strip("/")
                around = [each for each in (place, *place.parents) if each.is_relative_to(top)]
                yield from filter(None, (_number(each / name) for each in around))


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _look_for_gpu() -> tuple[bool, str]:
    """Whether torch can use a GPU, and if not, why, in its own words if it has any: it warns and answers no."""
    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return True, ""
    words = [str(one.message).removeprefix("CUDA initialization: ").split("(Triggered")[0].strip() for one in said]
    return False, f"torch {torch.__version__} cannot use it: {words[0]}" if words else _no_gpu() or "torch finds no GPU"
