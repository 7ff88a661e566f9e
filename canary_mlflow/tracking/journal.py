"""One run as it happens: rows by optimizer step from probes and logs, and an end that is always written."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from canary_mlflow.gates.model.records import Raised
from canary_mlflow.tracking.delivery.recorder import PERIOD, Recorder
from canary_mlflow.tracking.describing.compact import compact
from canary_mlflow.tracking.describing.evaluations import PREFIX, Evaluated, Evaluations
from canary_mlflow.tracking.describing.failures import classify, raised
from canary_mlflow.tracking.describing.learning import learned
from canary_mlflow.tracking.describing.schema import as_number, name_of
from canary_mlflow.tracking.describing.trained import FILE as TRAINED
from canary_mlflow.tracking.ending import Findings, Target, end_tags, shortfall, summary
from canary_mlflow.tracking.observers import Ending, Observer, RunningObservers
from canary_mlflow.tracking.probes import Probe, Row, Setting
from canary_mlflow.tracking.probes.running import RunningProbes
from canary_mlflow.tracking.reading.samples import FILE, Samples
from canary_mlflow.tracking.signals import recording

log = logging.getLogger("canary_mlflow")

FLOATS = {float}


class Journal:
    """Keeps a run's rows and makes sure that MLflow learns how the run ended.

    A row is open from the first event of its optimizer step to the first event of another: Transformers' Trainer ends
    a step and then logs it, TRL's PPOTrainer logs it and then ends it. A closed row goes to the observers in their
    order, once the probes are done with it.
    """

    def __init__(
        self,
        target: Target,
        probes: dict[str, Probe],
        observers: Sequence[Observer] = (),
        samples: Samples | None = None,
    ) -> None:
        self.target = target
        self.samples = samples
        self.probes = RunningProbes(probes)
        self.observers = RunningObservers(observers)
        self.rows: dict[int, Row] = {}
        self.last_step = 0
        self.finished = False
        self.failure = ""  # after the end, as in Ending
        self._begun = self._ended = False
        self.troubles: dict[str, str] = {}
        self.recorder = (
            None if target.client is None else Recorder(target.client, target.run_id, target.folder / target.run_id)
        )
        self.rows_lost = 0
        self.learned: tuple[bool | None, str] | None = None
        self._open: int | None = None
        self._resumed = False
        self._evaluations = Evaluations(None)
        self.evaluated = Evaluated()
        self._began = time.time()
        self._keys: tuple[str, ...] = ()  # of what was logged last, and its canonical names
        self._names: list[str] = []
        self._evaluates = False  # whether some of these are an evaluation's
        self._finiteness: Any = probes.get("finiteness")
        self._parameters: Any = probes.get("parameters")
        self._trained: Any = probes.get("trained")

    def begin(self, setting: Setting) -> None:
        """Training begins, or is known better than when it began. Raises BlindProbe."""
        self._resumed = setting.resumed
        self._evaluations = Evaluations(setting.trainer)
        if not self._begun:
            self._begun = True
            if self.recorder is not None:
                self.recorder.start()
            self.observers.call_each("begin", lambda observer: observer.begin(self.recorder))
            for what, why in self.observers.troubles.items():
                log.warning("canary: %s: %s", what, why)
        self.probes.start(setting)

    def step_ended(self, step: int) -> None:
        """An optimizer step is over."""
        self.probes.step_ended(self._row(step))
        self.last_step = max(self.last_step, step)

    def logged(self, step: int, logs: Mapping[str, object], evaluated: Any = None, model: Any = None) -> None:
        """The trainer logged something; what is not a number is left out. `evaluated`: the data set of its last
        evaluation; `model`: what was evaluated."""
        values, measured = self._numbers(logs), False
        if self._evaluates:
            trained = None
            with suppress(Exception):  # weights that are not here: what is not known is left out
                trained = self._parameters.as_at_the_end(model) if self.finished else None
            measured = self.evaluated.look(logs, evaluated, trained)
            values |= self._evaluations.means(step, logs)
        if self.finished:
            if measured:
                self.probes.evaluated(values, self.rows.get(step, {}))
            self._late(step, values, self._late_tags() if measured else {})
            return
        self._row(step).update(values)
        self.probes.emit("logged")

    def iteration_ended(self, step: int) -> None:
        """An epoch is over."""
        row = self._row(step)
        self.probes.iteration_ended(row)

    def abandon(self) -> None:
        """Record why training broke off, as far as Python knows: the trainer is gone, or Python ends."""
        if not self.finished:
            self.fail(getattr(sys, "last_value", None))

    def fail(self, error: BaseException | None) -> None:
        """Training broke off with this exception."""
        if not self.finished:
            failure, reason = classify(error, self.nan_steps + self.inf_steps)
            with recording():
                self.probes.leave_ranks()
                self.finish(failure, f"{reason} (after step {self.last_step})", raised(error), timeout=30.0)

    def terminated(self, error: BaseException) -> None:
        """A signal ends the process. The script's own active run is ended here too: at Python's exit MLflow would call
        it FINISHED, however it ended."""
        self.fail(error)
        mlflow = sys.modules.get("mlflow")
        active = mlflow.active_run() if mlflow else None
        if mlflow and active and active.info.run_id == self.target.run_id:
            with suppress(mlflow.exceptions.MlflowException):  # the store cannot be reached
                mlflow.end_run("FAILED")

    @property
    def nan_steps(self) -> int:
        """Steps whose loss, gradient norm or another metric that is never undefined was NaN."""
        return self._finiteness.nan_steps if self._finiteness else 0

    @property
    def inf_steps(self) -> int:
        """The same for infinity."""
        return self._finiteness.inf_steps if self._finiteness else 0

    def finish(
        self, failure: str = "", reason: str = "", raised_by: Raised | None = None, *, timeout: float = 60.0
    ) -> None:
        """Close the last row, write tags, metrics.json and the status, report losses. Only the first call counts."""
        if self.finished:
            return
        self.finished = True
        self._close_row()
        if not failure:
            self.probes.emit("ended")
        self.probes.stop()
        ordered = [self.rows[number] for number in sorted(self.rows) if number > 0]
        if not failure:
            failure, reason = shortfall(self.target, ordered, self.probes.lost_sight)
            if failure:
                self.troubles["evidence"] = reason
        self.failure = failure
        ending = Ending(failure=failure, reason=reason, raised=raised_by, last_step=self.last_step)
        found = self._findings(ordered)
        self.learned = (found.learned, found.learned_reason)
        tags = dict(self.probes.tags())
        self.observers.call_each("finish", lambda observer: tags.update(observer.finish(ending)))
        if self.recorder is None:
            self.rows_lost = sum(map(len, self.rows.values())) if "mlflow" in self.observers else 0
        else:
            content = summary(self.target, ending, found, ordered, self._began)
            tags |= end_tags(ending, found, self.recorder.lost, self._all_troubles())
            self._write_end(self.recorder, ending, content, compact("found", tags) | self._late_tags())
            self.rows_lost = self.recorder.close(timeout)
        self._say()
        self._ended = True

    def _write_end(
        self, recorder: Recorder, ending: Ending, content: Mapping[str, Any], tags: Mapping[str, str]
    ) -> None:
        recorder.artifact("metrics.json", json.dumps(content, indent=2, allow_nan=False))
        if self.samples is not None and (texts := self.samples.text()):
            recorder.artifact(FILE, texts)
        if self._trained is not None and self._trained.text:
            recorder.artifact(TRAINED, self._trained.text)
        recorder.tag(tags)
        if not ending.completed or self.target.owned:
            recorder.end("FINISHED" if ending.completed else "FAILED")

    def _findings(self, ordered: list[Row]) -> Findings:
        moved = self._parameters.moved if self._parameters else None
        good, why = learned(ordered, self.target.algo, moved)
        if self._resumed and moved is not False:  # most of the gain may lie before the checkpoint
            good, why = None, "resumed from a checkpoint: how it began is not known"
        return Findings(
            nan_steps=self.nan_steps,
            inf_steps=self.inf_steps,
            parameters_finite=self._parameters.finite if self._parameters else None,
            learned=good,
            learned_reason=why,
        )

    def _numbers(self, logs: Mapping[str, object]) -> Row:
        """The logged numbers under their canonical names."""
        keys = tuple(logs)
        if keys != self._keys:  # a training logs the same ones at nearly every step
            self._keys, self._names = keys, [*map(name_of, keys)]
            self._evaluates = any(key.startswith(PREFIX) for key in keys)
        found = dict(zip(self._names, logs.values(), strict=True))
        if set(map(type, found.values())) == FLOATS:
            return found  # type: ignore[return-value]
        numbers = ((name_of(key), as_number(value)) for key, value in logs.items())
        return {name: number for name, number in numbers if number is not None}

    def _row(self, step: int) -> Row:
        if self._open != step:
            self._close_row()
            self._open = step
            self.rows[step] = dict(self.rows.get(step, ()))  # one that was closed already stays as it was
        return self.rows[step]

    def _close_row(self) -> None:
        if self._open is None:
            return
        row = self.rows[self._open]
        self.probes.row_closed(row)
        self.observers.row_closed(self._open, row)
        self._open = None

    def _late(self, step: int, values: Row, tags: Mapping[str, str]) -> None:
        """Record an evaluation after training at once, because nothing will close its row."""
        self.rows[step] = {**self.rows.get(step, {}), **values}
        self.observers.call_each("late", lambda observer: observer.late(step, values))
        if self.recorder is not None:
            if tags:
                self.recorder.tag(tags)
            self.rows_lost = self.recorder.close(PERIOD)

    def _late_tags(self) -> dict[str, str]:
        """What an evaluation after the training may change."""
        return compact("late", self.evaluated.tags())

    def _all_troubles(self) -> dict[str, str]:
        """What broke → why."""
        return self.probes.troubles | self.observers.troubles | self.troubles

    def _say(self) -> None:
        said = [f"{what}: {why}" for what, why in self._all_troubles().items()]
        if self.recorder is not None:
            said += self.recorder.losses()
        elif self.rows_lost:
            said.append(f"{self.rows_lost} values did not reach MLflow: the store could not be reached")
        for sentence in said:
            log.warning("canary: run %s: %s", self.target.run_id, sentence)
