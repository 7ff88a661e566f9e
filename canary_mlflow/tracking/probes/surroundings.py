"""What only torch and the trainer's own objects tell about a training that begins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from transformers import Trainer

from canary_mlflow.tracking.describing import fingerprint
from canary_mlflow.tracking.probes.gpu import device_name
from gates.model.metrics import MEANINGS


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


def _above(pick: Callable[[Mapping[str, Any]], Any]) -> Any:
    """The first thing that `pick` finds among the variables of a trainer's methods above us on the stack, or None."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        held = frame.f_locals
        if isinstance(held.get("self"), Trainer) and (found := pick(held)) is not None:
            return found
        frame = frame.f_back
    return None


def hardware_of(args: Any) -> dict[str, str]:
    """The class of hardware that this process trains on, with the threads torch uses on a CPU."""
    device = torch.device(args.device)
    if device.type == "cuda":
        count = max(int(args.world_size), int(args.n_gpu))
        return fingerprint.hardware("cuda", device=torch.cuda.get_device_name(device), count=count)
    return {**fingerprint.hardware(device.type), "threads": str(torch.get_num_threads())}


def environment_of(args: Any) -> dict[str, str]:
    """Versions, host and commit, what its metrics mean, plus what only torch knows."""
    facts = fingerprint.environment() | fingerprint.script() | {**MEANINGS, "torch": torch.__version__}
    device = f"{args.device} {device_name()}" if torch.device(args.device).type == "cuda" else str(args.device)
    return facts | {"cuda": str(torch.version.cuda), "device": device}
