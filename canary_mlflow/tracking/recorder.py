"""A run's numbers on their way to MLflow: put down without waiting, sent by a thread, counted when lost."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from canary_mlflow.errors import one_line
from canary_mlflow.tracking.schema import mlflow_key

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

log = logging.getLogger("canary_mlflow")

BATCH = 1000  # MLflow's limit for one log_batch
# Seconds between sends. Seldom, because a send takes 0.1 s of the interpreter per 1000 values, in which training gets
# only every other turn: a short run is sent when it is over. What waits is lost only to SIGKILL.
PERIOD = 10.0
MOST_WAITING = 1_000_000  # values kept while the store does not answer
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0  # seconds between attempts
# Sending the same again cannot help.
FINAL = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "PERMISSION_DENIED"})


class Recorder:
    """Writes metrics of one run. `put` never waits and never raises; what cannot be sent is counted.

    A value's timestamp is taken when it is put, so that MLflow recognises a batch that is sent twice.
    """

    def __init__(self, client: MlflowClient, run_id: str, *, period: float = PERIOD) -> None:
        self.client = client
        self.run_id = run_id
        self.period = period
        self.rows_lost = 0  # values that MLflow did not take
        self.why_lost = ""
        self._waiting: deque[tuple[int, int, Mapping[str, float]]] = deque()
        self._count = 0  # values put
        self._sent = 0  # values sent or lost
        self._jobs: deque[tuple[str, Callable[[], object]]] = deque()
        self._wake = threading.Event()
        self._busy = False
        self._cpu = 0.0  # the thread's, when it last fell idle
        self._closing = False
        self._patience = self._deadline = float("inf")
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread unless it runs; best done early, because a Python that is ending may refuse."""
        if self._thread is not None:
            return
        self._closing = False
        self._patience = self._deadline = float("inf")
        self._wake.clear()
        # A daemon, because a store that hangs must not keep a finished training from exiting.
        self._thread = threading.Thread(target=self._work, name="canary-recorder", daemon=True)
        self._thread.start()

    def put(self, step: int, values: Mapping[str, float]) -> None:
        """Hand over one row: names (made MLflow keys by the thread) and values. It must not change afterwards."""
        if self._count - self._sent > MOST_WAITING:
            self._lose(len(values), f"more than {MOST_WAITING} values waited for the store")
            return
        self._count += len(values)
        self._waiting.append((time.time_ns() // 1_000_000, step, values))
        self.start()

    def call(self, what: str, job: Callable[[], object]) -> None:
        """Have the thread do something once everything put before `close` is sent: tags, artifacts, the status."""
        self._jobs.append((what, job))
        self.start()

    def cpu_seconds(self) -> float:
        """CPU time of the sending thread, which is no part of training."""
        thread = self._thread
        # Reading another thread's clock takes 20 µs; an idle thread's stands still.
        if not self._busy or thread is None or thread.ident is None or not thread.is_alive():
            return self._cpu
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))

    def close(self, timeout: float = 60.0) -> int:
        """Send what waits, do the jobs, and return how many values were lost.

        Waits as long as the store takes something; gives up after `timeout` seconds in which it took nothing.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return self.rows_lost
        self._patience = timeout
        self._deadline = time.monotonic() + timeout
        self._closing = True
        self._wake.set()
        while thread.is_alive() and time.monotonic() < self._deadline:
            thread.join(0.1 if timeout > 0.1 else timeout)
        if thread.is_alive():
            left = self._count - self._sent
            undone = ", ".join(what for what, _ in self._jobs)
            self._lose(
                left, f"the store did not take them within {timeout:.0f} s" + (f" ({undone} too)" if undone else "")
            )
        return self.rows_lost

    def _work(self) -> None:
        closing = False
        while not closing:
            self._wake.wait(self.period)
            closing = self._closing  # read before sending: what is put before close() is sent
            self._busy = True
            self._send_waiting()
            self._cpu, self._busy = time.thread_time(), False
        while self._jobs:
            what, job = self._jobs[0]
            self._attempt(what, job)
            self._jobs.popleft()

    def _send_waiting(self) -> None:
        from mlflow.entities import Metric

        while self._waiting:
            batch: list[Metric] = []
            while self._waiting and len(batch) + len(self._waiting[0][2]) <= BATCH:
                timestamp, step, values = self._waiting.popleft()
                batch += [Metric(mlflow_key(name), value, timestamp, step) for name, value in values.items()]
            if not batch:  # one row wider than MLflow's limit
                timestamp, step, values = self._waiting.popleft()
                rows = [Metric(mlflow_key(name), value, timestamp, step) for name, value in values.items()]
                for start in range(0, len(rows), BATCH):
                    self._send(rows[start : start + BATCH])
                continue
            self._send(batch)

    def _send(self, batch: list[Metric]) -> None:
        """Send a batch; when MLflow refuses it for good, find the values it means by halving."""
        error = self._attempt("metrics", lambda: self.client.log_batch(self.run_id, metrics=batch))
        if error is None:
            self._sent += len(batch)
        elif len(batch) > 1 and getattr(error, "error_code", "") in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST"):
            half = len(batch) // 2
            self._send(batch[:half])
            self._send(batch[half:])
        else:
            self._sent += len(batch)
            self._lose(len(batch), one_line(error))

    def _attempt(self, what: str, job: Callable[[], object]) -> Exception | None:
        """Do it, again and again while that may help; the last error when it does not."""
        pause = FIRST_PAUSE
        while True:
            try:
                job()
                self._deadline = time.monotonic() + self._patience
                return None
            except Exception as error:  # noqa: BLE001 - whatever a store raises, training goes on; it is counted and said
                if getattr(error, "error_code", "") in FINAL or time.monotonic() + pause > self._deadline:
                    if what != "metrics":
                        self.why_lost = self.why_lost or f"{what}: {one_line(error)}"
                        log.warning("canary: run %s: %s not written: %s", self.run_id, what, one_line(error))
                    return error
            self._rest(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _rest(self, seconds: float) -> None:
        """Wait between attempts, but not through the call to close."""
        if self._closing:
            time.sleep(min(seconds, max(0.0, self._deadline - time.monotonic())))
        else:
            self._wake.wait(seconds)

    def _lose(self, count: int, why: str) -> None:
        self.rows_lost += count
        self.why_lost = why
