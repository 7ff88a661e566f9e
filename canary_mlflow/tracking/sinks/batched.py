"""Sinks whose rows a separate thread writes, a few times a second."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence

from canary_mlflow.errors import StoreError, one_line
from canary_mlflow.tracking.delivery.recorder import Recorder
from canary_mlflow.tracking.delivery.thread_clock import ThreadClock
from canary_mlflow.tracking.observers import Ending, Observer

GATHER = 0.2  # seconds of rows that are written at once; a killed process loses no more than that
PATIENCE = 30.0  # seconds that a disk may take at the end


Dated = tuple[float, int, Mapping[str, float]]  # when a row closed (seconds since the epoch), its step, the row


class BatchedSink(Observer):
    """Takes rows in 1 µs; a thread calls `write` with some of them at a time, in order, and `close` once at the end.

    The thread polls: waking it would cost a step 20 µs and more, and up to 5 ms if it takes the interpreter at once.
    Rows for which `write` raised are counted; `finish` raises StoreError with their number.
    """

    def __init__(self) -> None:
        self._rows: deque[Dated] = deque()
        self._clock = ThreadClock()
        self._end = threading.Event()
        # A daemon, because a disk that hangs must not keep a finished training from exiting.
        self._thread = threading.Thread(target=self._work, name=f"canary-{self.name}", daemon=True)
        self._lost = 0
        self._why = ""

    def write(self, rows: Sequence[Dated]) -> None:
        """Keep all rows, or raise and keep none."""

    def close(self) -> None:
        """No more rows."""

    def begin(self, recorder: Recorder | None) -> None:
        self._thread.start()

    def row_closed(self, step: int, row: Mapping[str, float]) -> None:
        self._rows.append((time.time(), step, row))

    def finish(self, ending: Ending) -> Mapping[str, str]:
        if not self._thread.ident:  # `begin` failed, which is already reported
            return {}
        self._end.set()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            raise StoreError(f"not written to its end within {PATIENCE:.0f} s")
        if self._lost:
            raise StoreError(f"{self._lost} rows were not kept: {self._why}")
        return {}

    def _work(self) -> None:
        ended = False
        while not ended:
            ended = self._end.wait(GATHER)
            rows = [self._rows.popleft() for _ in range(len(self._rows))]
            if rows:
                with self._clock.working():
                    self._keep(rows)
        try:
            self.close()
        except Exception as error:  # noqa: BLE001 - as below
            self._why = self._why or one_line(error)

    def _keep(self, rows: Sequence[Dated]) -> None:
        """Write all rows at once; if that fails, as on a disk that is nearly full, one after the other."""
        try:
            self.write(rows)
        except Exception as error:  # noqa: BLE001 - whatever a writer raises; counted here, said at the end
            self._why = self._why or one_line(error)
            if len(rows) == 1:
                self._lost += 1
                return
            for row in rows:
                self._keep([row])


class MlflowSink(BatchedSink):
    """Puts each row into the run's outbox, which the recorder sends when that suits the training and the store."""

    name = "mlflow"

    def begin(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        super().begin(recorder)

    def write(self, rows: Sequence[Dated]) -> None:
        for when, step, row in rows:
            if self._recorder is not None and row:
                self._recorder.put(step, row, when)

    def late(self, step: int, row: Mapping[str, float]) -> None:
        if self._recorder is not None:
            self._recorder.put(step, row)
