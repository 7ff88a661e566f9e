"""What only torch and the trainer's own objects tell about a training that begins."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch

from canary_mlflow.gates.model.metrics import MEANINGS
from canary_mlflow.tracking.describing import fingerprint
from canary_mlflow.tracking.probes.gpu import device_name

SWITCHES = ("CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE")
"""Variables of the environment that make kernels slower, or others."""


def make_log_honest(args: Any, state: Any, every_step: bool) -> int:
    """Turn off the filter that logs a NaN loss as 0.0, and make a trainer that logs by steps log every one. Returns how
    many steps its user wanted between two logs; 1 if nothing was changed."""
    args.logging_nan_inf_filter = False
    if not every_step or getattr(args.logging_strategy, "value", args.logging_strategy) != "steps":
        return 1
    wanted, state.logging_steps = state.logging_steps, 1  # the trainer reads the state; the user's arguments stay
    return int(wanted)


def running_trainer() -> Any:
    """The trainer that sends the current event, or None.

    Transformers passes callbacks everything except the trainer, but only the trainer knows the reference model and
    calls the reward functions; while an event is handled, it is above us on the stack.
    """
    return _above(lambda held: held["self"])


def running_batch() -> Any:
    """The batch that the trainer above us on the stack has just evaluated, as its collator made it, or None."""

    def taken(held: Mapping[str, Any]) -> Any:
        found = held.get("inputs")
        if found is not None and isinstance(held, dict):
            held.clear()  # up to Python 3.12 a copy, which the frame would keep, with the logits that it lets go
        return found

    return _above(taken)


def trains_at(frame: FrameType | None, kind: Any = None) -> bool:
    """Whether a trainer's method is on the stack there, or one of this kind of object."""
    return _above(lambda held: True, frame, kind) is not None


def is_running(one: Any) -> bool:
    """Whether any thread is in a method of this object."""
    frames = list(sys._current_frames().values())
    return any(_above(lambda held: held["self"] is one or None, frame, type(one)) for frame in frames)


def _above(pick: Callable[[Mapping[str, Any]], Any], frame: FrameType | None = None, kind: Any = None) -> Any:
    """The first thing that `pick` finds among the variables of a trainer's methods on the stack, or of an object's of
    another `kind`, from `frame` or from above us; None if there is nothing."""
    kind = kind or getattr(sys.modules.get("transformers.trainer"), "Trainer", ())
    frame = frame or sys._getframe(2)
    while frame is not None:
        held = frame.f_locals
        if isinstance(held.get("self"), kind) and (found := pick(held)) is not None:
            return found
        frame = frame.f_back
    return None


def hardware_of(args: Any) -> dict[str, str]:
    """The class of hardware that this process trains on, with the threads torch uses on a CPU."""
    device = torch.device(args.device)
    if device.type == "cuda":
        count = max(int(args.world_size), int(args.n_gpu))
        return fingerprint.hardware("cuda", device=torch.cuda.get_device_name(device), count=count)
    if device.type == "mps":  # Apple's GPU is a part of its chip
        return fingerprint.hardware("mps", device=fingerprint.cpu_model(), count=1)
    return {**fingerprint.hardware(device.type), "threads": str(torch.get_num_threads())}


def environment_of(args: Any) -> dict[str, str]:
    """Versions, host and commit, what its metrics mean, plus what only torch knows."""
    facts = fingerprint.environment() | fingerprint.script() | {**MEANINGS, "torch": torch.__version__}
    facts["cuda"] = f"rocm {torch.version.hip}" if torch.version.hip else str(torch.version.cuda)
    if torch.device(args.device).type != "cuda":
        return facts | {"device": str(args.device)}
    return facts | {"device": f"{args.device} {device_name()}", **gpu_settings(int(args.world_size))}


def gpu_settings(ranks: int) -> dict[str, str]:
    """What changes the kernels or the memory of a training without being an argument of it, where it is not torch's
    default."""
    attention = torch.backends.cuda
    off = [
        name
        for name, used in (
            ("flash", attention.flash_sdp_enabled()),
            ("memory-efficient", attention.mem_efficient_sdp_enabled()),
            ("math", attention.math_sdp_enabled()),
            ("cudnn", attention.cudnn_sdp_enabled()),
        )
        if not used
    ]
    precision = torch.get_float32_matmul_precision()
    allocator = os.environ.get("PYTORCH_ALLOC_CONF", "") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    nccl = torch.cuda.nccl.version() if ranks > 1 and torch.distributed.is_nccl_available() else ()
    found = {
        "allocator": allocator,
        "matmul_precision": "" if precision == "highest" else precision,
        "cudnn_benchmark": "true" if torch.backends.cudnn.benchmark else "",
        "attention_off": ", ".join(off),
        "nccl": ".".join(map(str, nccl)),
        **{key.lower(): os.environ.get(key, "") for key in SWITCHES},
    }
    return {f"gpu_{key}": value for key, value in found.items() if value}
