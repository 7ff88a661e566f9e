"""Shows a trainer's log to its other callbacks as often as its user asked for, although every step is logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

AS_THEY_ARE = ("epoch", "step", "learning_rate", "grad_norm", "num_tokens", "num_input_tokens_seen")
"""What a trainer logs as it is at a step; it averages everything else over the steps since the last log."""
SUMMARIES = ("eval_", "train_")  # of an evaluation and of the whole training: always shown


class Console:
    """Stands before a trainer's other callbacks, which print and report to the team's own store, and passes on the log
    of every `every`-th step: means over the steps since the last one, as the trainer itself would have logged them."""

    def __init__(self, trainer: Any, every: int, ours: type[Any]) -> None:
        callbacks: Sequence[Any] = trainer.callback_handler.callbacks if trainer is not None and every > 1 else ()
        self._callbacks = [one for one in callbacks if not isinstance(one, ours) and hasattr(one, "on_log")]
        for callback in self._callbacks:
            callback.on_log = _Thinned(callback.on_log, every)  # in the instance, before the method of its class

    def restore(self) -> None:
        """Let them print as before."""
        for callback in self._callbacks:
            if isinstance(vars(callback).get("on_log"), _Thinned):
                del callback.on_log
        self._callbacks = []


class _Thinned:
    def __init__(self, on_log: Callable[..., Any], every: int) -> None:
        self._on_log = on_log
        self._every = every
        self._held: list[Mapping[str, Any]] = []

    def __call__(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> Any:
        if not logs or any(key.startswith(SUMMARIES) for key in logs):
            return self._on_log(args, state, control, logs=logs, **kwargs)
        self._held.append(dict(logs))
        first = state.global_step == 1 and args.logging_first_step
        if not first and state.global_step % self._every:
            return None
        held, self._held = self._held, []
        return self._on_log(args, state, control, logs=averaged(held), **kwargs)


def averaged(held: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One log made from several: the last one, with the mean of every number that a trainer averages."""
    found = dict(held[-1])
    for key, last in found.items():
        values = [logs[key] for logs in held if key in logs]
        if key not in AS_THEY_ARE and all(isinstance(one, int | float) for one in values):
            found[key] = last if len(values) == 1 else float(f"{fmean(values):.6g}")
    return found
