"""A tracker for a loop with Accelerate: what the script logs anyway becomes a run."""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker

from canary_mlflow.errors import UsageError, plainly
from canary_mlflow.tracking.loops.run import LoopRun


class AccelerateTracker(GeneralTracker):  # type: ignore[misc]  # Accelerate comes without types
    """`Accelerator(log_with=AccelerateTracker(seed=0))`: `init_trackers` begins a run, with its `config` as settings,
    `accelerator.log(values, step=step)` ends a step, and `end_training` ends the run.

    `options` as for LoopRun. `watch(model, optimizer)`, after `prepare` and `init_trackers`, adds what these tell;
    `tracker` is the LoopRun. The main process is recorded. Raises UsageError as LoopRun does, and for a log without a
    step.
    """

    name = "canary"
    requires_logging_directory = False

    def __init__(self, *, seed: int, **options: Any) -> None:
        self._options: dict[str, Any] = {"seed": seed, **options}
        self.tracker = LoopRun(**self._options)
        super().__init__()  # asks for the tracker

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.tracker = LoopRun(**{**self._options, "config": {**values, **self._options.get("config", {})}}).begin()

    @plainly
    def watch(self, model: Any, optimizer: Any = None) -> None:
        """As LoopRun.watch, with both as `prepare` returned them."""
        self._begun().watch(model, optimizer)

    @plainly
    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        if step is None:
            raise UsageError("accelerator.log: no step; expected accelerator.log(values, step=…), in rising order")
        self._begun().log(step, values)

    def finish(self) -> None:
        self.tracker.end()

    def _begun(self) -> LoopRun:
        return self.tracker if self.tracker.journal is not None else self.tracker.begin()
