"""The recording of one training, whoever runs it: opened, told of its steps, and ended however it goes."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from canary_mlflow.errors import BlindProbe
from canary_mlflow.gates.facts.exact import STEPS
from canary_mlflow.shown import as_html
from canary_mlflow.tracking import joining
from canary_mlflow.tracking.ending import whereabouts
from canary_mlflow.tracking.first_steps import certain_harm
from canary_mlflow.tracking.journal import Journal
from canary_mlflow.tracking.opening import Options, Training, observers_of, open_target
from canary_mlflow.tracking.probes import Setting, standard_probes
from canary_mlflow.tracking.probes.running import RunningProbes
from canary_mlflow.tracking.reading.samples import Samples
from canary_mlflow.tracking.signals import TerminationHandler, noted
from canary_mlflow.tracking.watching import Watching


class Recording:
    """What the callback of a trainer and a loop of one's own have in common.

    `stopped`: why the watch wants the training to end; "" while it does not. `run_id`: the MLflow run.
    """

    of_loop = False  # no trainer's traceback tells what broke it off

    def __init__(self, options: Options, samples: Samples | None = None) -> None:
        self.run_id = options.run_id
        self.stopped = ""
        self.journal: Journal | None = None  # on the first rank
        self.samples = samples
        self._options = options
        self._probes: RunningProbes | None = None  # the journal's on the first rank, their own on the others
        self._watching: Watching | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._termination = TerminationHandler()
        self._planned = 0

    @property
    def rows(self) -> dict[int, dict[str, float]]:
        """Optimizer step → canonical name → value, of the run so far."""
        return {} if self.journal is None else self.journal.rows

    @property
    def open(self) -> bool:
        """Whether a training is recorded now."""
        return self.journal is not None and not self.journal.finished

    @property
    def left(self) -> bool:
        """Whether the training is over though nobody said so."""
        return False

    def before_optimizer(self) -> None:
        """Gradients are complete, and nothing has moved; for an optimizer whose own hooks would come too early."""
        if self._probes is not None:
            self._probes.before_optimizer()

    def paused(self) -> None:
        """Leave the time since the last step out of the step times: it was not training."""
        self._tell("paused")

    def look(self) -> None:
        """End the training if a signal came."""
        if (error := noted()) is None:
            return
        if self.journal is not None and self.open:
            self.journal.terminated(error)
        self._let_go()
        raise error

    def close(self, error: BaseException | None = None) -> None:
        """End the recording. Without its end before, the training broke off with `error`, or the exception in
        flight."""
        try:
            if self.journal is not None and self.open:
                self.journal.fail(error or sys.exception())
        finally:
            self._let_go()

    def _open(self, training: Training, looks: Callable[[FrameType | None], bool]) -> None:
        """Open the run. `looks`: whether whoever runs at a frame will look for signals."""
        joining.close_left()
        target = open_target(self._options, training)
        observers, self._watching = observers_of(target, self._options, training)
        self.stopped, self._planned = "", training.max_steps
        self.journal = Journal(target, standard_probes(), observers, self.samples)
        self.run_id = target.run_id
        joining.recording(self)
        # Not a method of self: the finalizer must not keep the recording alive.
        self._finalizer = weakref.finalize(self, self.journal.abandon)
        self._termination.install(looks)

    def _begin(self, setting: Setting) -> None:
        """Start the probes. Raises BlindProbe, which ends the training."""
        if self.journal is None:
            self._probes = RunningProbes(standard_probes())
            self._probes.start(setting)
            return
        self._probes = self.journal.probes
        try:
            self.journal.begin(setting)
        except BlindProbe as error:
            self.close(error)
            raise

    def _step_ended(self, step: int) -> bool:
        """An optimizer step is over; whether the training should end now."""
        if self._probes is None:
            return False
        if self.journal is None:
            self._probes.step_ended({})
        else:
            self.journal.step_ended(step)
            if self._options.fail_fast and step == STEPS + 1:  # the row of the last of STEPS is closed
                self.stopped = certain_harm(self.journal, self._options)
                self.paused()
            if self._watching is not None and self._watching.stop_requested:
                self.stopped = self._watching.reason
        return self._probes.all_stop(wanted=bool(self.stopped))

    def _finish(self) -> None:
        """The training reached its end: write it down, and say where, unless the user chose the run."""
        try:
            if self.journal is not None and self.open:
                self.journal.finish("instability" if self.stopped else "", self.stopped)
                if self._options.run_id is None and sys.stderr is not None:
                    with suppress(OSError, ValueError):  # nobody reads stderr any more
                        bar: Any = getattr(sys.modules.get("tqdm"), "tqdm", None)  # which would hide the line
                        (bar.write if bar else print)(whereabouts(self.journal.target), file=sys.stderr, end="")
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._probes is not None:
            self._probes.stop()
            self._probes = None
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None
        self._termination.remove()

    def _tell(self, event: str) -> None:
        if self._probes is not None:
            self._probes.emit(event)

    def _repr_html_(self) -> str:
        """In a notebook: how far the training is, its last row, and what the watch said."""
        if self.journal is None:
            return as_html("No training yet", (), ())
        state = (self.journal.failure or "finished") if self.journal.finished else "running"
        where = f"step {self.journal.last_step}{f' of {self._planned}' if self._planned else ''}, {state}"
        last = self.rows.get(self.journal.last_step, {})
        said = () if self._watching is None else self._watching.watch.warnings
        rows = [(name, f"{value:.6g}") for name, value in last.items()]
        rows += [(f"{one.level.name} at step {one.step}", f"{one.stream} {one.seen} ({one.rule})") for one in said]
        return as_html(f"Run {self.run_id or 'without a store'}", ("", "last"), rows, where)
