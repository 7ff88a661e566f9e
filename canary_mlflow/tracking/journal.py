"""One run as it happens: rows by optimizer step from probes and logs, and an end that is always written."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import one_line
from canary_mlflow.tracking.failures import classify
from canary_mlflow.tracking.learning import learned
from canary_mlflow.tracking.metrics_json import metrics_json
from canary_mlflow.tracking.probes import Probe, Row, Setting
from canary_mlflow.tracking.recorder import Recorder
from canary_mlflow.tracking.schema import name_of
from canary_mlflow.tracking.session import log_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("canary_mlflow")

LATE = 10.0  # seconds that a value logged after the end may take


@dataclass(frozen=True, kw_only=True)
class Target:
    """The MLflow run that is written, and what metrics.json says about it.

    `client` None: the store could not be reached, rows are kept in memory alone. `owned`: this journal started the
    run and ends it; otherwise whoever started it sets FINISHED.
    """

    client: MlflowClient | None
    run_id: str
    owned: bool
    algo: str
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    warmup_steps: int = 0


class Journal:
    """Keeps a run's rows and sees to it that MLflow learns how the run ended.

    A row is open from the first event of its optimizer step to the first event of another: Transformers' Trainer ends
    a step and then logs it, TRL's PPOTrainer logs it and then ends it.
    """

    def __init__(self, target: Target, probes: dict[str, Probe]) -> None:
        self.target = target
        self.probes = probes
        self.rows: dict[int, Row] = {}
        self.last_step = 0
        self.finished = False
        self.troubles: dict[str, str] = {}
        self.recorder = None if target.client is None else Recorder(target.client, target.run_id)
        self.rows_lost = 0
        self.learned: tuple[bool, str] | None = None
        self._open: int | None = None
        self._began = time.time()
        self._finiteness: Any = probes.get("finiteness")
        self._parameters: Any = probes.get("parameters")

    def begin(self, setting: Setting) -> None:
        """Training begins."""
        if self.recorder is not None:
            self.recorder.start()
        self._each("start", lambda probe: probe.start(setting))

    def cpu_seconds(self) -> float:
        """CPU time that went into writing, not training."""
        return 0.0 if self.recorder is None else self.recorder.cpu_seconds()

    def step_ended(self, step: int) -> None:
        """An optimizer step is over."""
        row = self._row(step)
        self._each("step_ended", lambda probe: probe.step_ended(row))
        self.last_step = max(self.last_step, step)

    def logged(self, step: int, logs: Mapping[str, object]) -> None:
        """The trainer logged something; what is no number is left out."""
        values = {name_of(key): number for key, value in logs.items() if (number := as_number(value)) is not None}
        if self.finished:
            self._late(step, values)
            return
        self._row(step).update(values)

    def paused(self) -> None:
        """An evaluation or a checkpoint ended."""
        self._each("paused", lambda probe: probe.paused())

    def iteration_began(self) -> None:
        """An epoch begins."""
        self._each("iteration_began", lambda probe: probe.iteration_began())

    def iteration_ended(self, step: int) -> None:
        """An epoch is over."""
        row = self._row(step)
        self._each("iteration_ended", lambda probe: probe.iteration_ended(row))

    def abandon(self) -> None:
        """The trainer is gone, or Python ends, and training never ended: record why, as far as Python knows."""
        if not self.finished:
            self.fail(getattr(sys, "last_value", None))

    def fail(self, error: BaseException | None) -> None:
        """Training broke off with this exception."""
        if not self.finished:
            failure, reason = classify(error, self.nan_steps + self.inf_steps)
            self.finish(failure, f"{reason} (after step {self.last_step})", timeout=30.0)

    @property
    def nan_steps(self) -> int:
        """Steps whose loss, gradient norm or another stability metric was NaN."""
        return self._finiteness.nan_steps if self._finiteness else 0

    @property
    def inf_steps(self) -> int:
        """The same for infinity."""
        return self._finiteness.inf_steps if self._finiteness else 0

    def finish(self, failure: str = "", reason: str = "", timeout: float = 60.0) -> None:
        """Close the last row, write tags, metrics.json and the status, say what was lost; once."""
        if self.finished:
            return
        self.finished = True
        self._close_row()
        self._each("stop", lambda probe: probe.stop())
        ordered = [self.rows[step] for step in sorted(self.rows) if step > 0]
        moved = self._parameters.moved if self._parameters else None
        self.learned = learned(ordered, self.target.algo, moved)
        if self.recorder is None:
            self.rows_lost = sum(map(len, self.rows.values()))
        else:
            self._write_end(self.recorder, failure, reason, ordered)
            self.rows_lost = self.recorder.close(timeout)
        self._say()

    def _write_end(self, recorder: Recorder, failure: str, reason: str, ordered: list[Row]) -> None:
        client, run_id = recorder.client, recorder.run_id
        content = json.dumps(self._metrics_json(failure, ordered), indent=2, allow_nan=False)
        recorder.call("metrics.json", lambda: client.log_text(run_id, content, "metrics.json"))
        recorder.call("tags", lambda: log_tags(client, run_id, self._end_tags(failure, reason)))
        if failure:
            recorder.call("status FAILED", lambda: client.set_terminated(run_id, "FAILED"))
        elif self.target.owned:
            recorder.call("status FINISHED", lambda: client.set_terminated(run_id, "FINISHED"))

    def _end_tags(self, failure: str, reason: str) -> dict[str, str]:
        assert self.learned is not None
        finite = self._parameters.finite if self._parameters else None
        # The last update itself may have broken them, which no logged value shows.
        poisoned = int(finite is False)
        return {
            "canary.completed": _word(not failure),
            "canary.last_step": str(self.last_step),
            "canary.failure": failure,
            "canary.failure_reason": reason,
            "canary.nan_steps": str(max(self.nan_steps, 0 if self.inf_steps else poisoned)),
            "canary.inf_steps": str(self.inf_steps),
            "canary.parameters_finite": "unknown" if finite is None else _word(finite),
            "canary.learned": _word(self.learned[0]),
            "canary.learned_reason": self.learned[1],
            "canary.rows_lost": str(self.recorder.rows_lost if self.recorder else 0),
            "canary.troubles": "; ".join(f"{what}: {why}" for what, why in self.troubles.items()),
        }

    def _metrics_json(self, failure: str, ordered: list[Row]) -> dict[str, Any]:
        return metrics_json(
            ordered,
            run_id=self.target.run_id,
            timestamp=datetime.fromtimestamp(self._began, UTC).isoformat(timespec="seconds"),
            status={"": "completed", "timeout": "timeout"}.get(failure, "failed"),
            duration_seconds=time.time() - self._began,
            nan_steps=self.nan_steps,
            inf_steps=self.inf_steps,
            config=self.target.config,
            env=self.target.environment,
            warmup_steps=self.target.warmup_steps,
        )

    def _row(self, step: int) -> Row:
        if self._open != step:
            self._close_row()
            self._open = step
        return self.rows.setdefault(step, {})

    def _close_row(self) -> None:
        if self._open is None:
            return
        row = self.rows[self._open]
        self._each("row_closed", lambda probe: probe.row_closed(row))
        self._put(self._open, row)
        self._open = None

    def _put(self, step: int, values: Mapping[str, float]) -> None:
        if self.recorder is not None and values:
            self.recorder.put(step, dict(values))

    def _late(self, step: int, values: Row) -> None:
        """An evaluation after training: recorded at once, because nobody will close it."""
        self.rows.setdefault(step, {}).update(values)
        self._put(step, values)
        if self.recorder is not None:
            self.rows_lost = self.recorder.close(LATE)

    def _each(self, what: str, act: Callable[[Probe], None]) -> None:
        """Let every probe act; one that raises is switched off, and named at the end."""
        broken = []
        for name, probe in self.probes.items():
            try:
                act(probe)
            except Exception as error:  # noqa: BLE001 - measuring must not stop what is measured
                broken.append(name)
                self.troubles[f"probe {name}"] = f"{what}: {type(error).__name__}: {one_line(error)}"
        for name in broken:
            del self.probes[name]

    def _say(self) -> None:
        for what, why in self.troubles.items():
            log.warning("canary: run %s: %s: %s", self.target.run_id, what, why)
        if self.rows_lost:
            why = self.recorder.why_lost if self.recorder else "the store could not be reached"
            log.warning("canary: run %s: %d values did not reach MLflow: %s", self.target.run_id, self.rows_lost, why)


def as_number(value: object) -> float | None:
    """A logged value as a float: Python and numpy numbers, tensors of one element; None for anything else."""
    if isinstance(value, (int, float)):
        return float(value)
    item = getattr(value, "item", None)
    if item is None or getattr(value, "size", None) is None or getattr(value, "ndim", 0) != 0:
        return None
    number = item()
    return float(number) if isinstance(number, (int, float)) else None


def _word(flag: bool) -> str:
    return "true" if flag else "false"
