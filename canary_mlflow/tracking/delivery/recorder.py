"""Sends a run's numbers to MLflow: training queues them without waiting, a thread sends them, none is silently lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from canary_mlflow.errors import one_line
from canary_mlflow.tracking.delivery.attempts import Attempts
from canary_mlflow.tracking.delivery.backlog import Backlog
from canary_mlflow.tracking.delivery.courier import BATCH, Courier, Point, is_refused, points_of
from canary_mlflow.tracking.delivery.items import Item, Sample, Tags, values_in
from canary_mlflow.tracking.delivery.thread_clock import ThreadClock
from canary_mlflow.tracking.stores.places import without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("canary_mlflow")

# Seconds between sends. Rare, because a send to a database takes 0.1 s of the interpreter per 1000 values, during which
# training gets only every other turn: a short run is sent when it is over. Only SIGKILL loses what waits.
PERIOD = 10.0
SAFE = 2.0  # seconds of closing after which all is put on disk: who ends this process may not wait as long as we do
UNDELIVERED = "undelivered.jsonl"


class Recorder:
    """Writes one run. `put` and `tag` never wait for the store and never raise.

    What the store does not take waits in memory, then in `folder`/undelivered.jsonl, and is sent in order once the
    store is back. `close` leaves what is not delivered by then in that file.
    """

    def __init__(
        self,
        client: MlflowClient,
        run_id: str,
        folder: Path,
        *,
        period: float = PERIOD,
        backlog: Backlog | None = None,
    ) -> None:
        self.client = client
        self.run_id = run_id
        self.period = period
        self.lost = 0  # values that are neither in the store nor in the file
        self.why_lost = ""  # the first reason
        self.undelivered: Path | None = None  # where the rest was left
        self.why_waiting = ""  # after `close`: what the store said last before we gave up
        store = without_password(client.tracking_uri)
        self.backlog = backlog or Backlog(folder / UNDELIVERED, run_id=run_id, store=store)
        self._courier = Courier(client, run_id)
        self._left: list[Item] = []  # tags and artifacts that the store did not take in time
        self._attempts = Attempts()
        self._clock = ThreadClock()  # of the sending thread
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread unless it runs. Best done early, as Python may refuse to start one while it is ending."""
        if self._thread is not None:
            return
        self._attempts = Attempts()
        # A daemon, because a store that hangs must not keep a finished training from exiting.
        self._thread = threading.Thread(target=self._work, name="canary-recorder", daemon=True)
        self._thread.start()

    def put(self, step: int, values: Mapping[str, float], when: float | None = None) -> None:
        """Hand over one row: canonical name → value, at a time in seconds since the epoch, by default now. It must not
        change afterwards."""
        self.add(Sample(int(1000 * (when or time.time())), step, values))

    def tag(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run as soon as the rows that wait are sent."""
        self.add(Tags(tags=dict(tags)))
        self._attempts.wake()

    def add(self, item: Item) -> None:
        """Queue an item behind those that wait."""
        try:
            self.backlog.put(item)
        except (OSError, TypeError) as error:
            self._lose(values_in(item), f"{self.backlog.path}: {getattr(error, 'strerror', None) or one_line(error)}")
        if self._thread is None:
            self.start()

    def close(self, timeout: float = 60.0) -> int:
        """Send what waits, and return how many values are not in the store.

        Waits as long as the store takes something; gives up after `timeout` seconds without that, and leaves the rest
        in the file (`undelivered`). The recorder may be used again afterwards.
        """
        thread = self._thread
        if thread is None:
            return self.lost + self.backlog.values
        self._attempts.close(timeout)
        thread.join(min(SAFE, timeout))
        if thread.is_alive():
            self._keep()
        while thread.is_alive() and not self._attempts.over():
            thread.join(0.1 if timeout > 0.1 else timeout)
        self._thread = None  # a thread that still hangs in a call sends nothing more after it
        # Kept now: if that call fails later, perhaps because this process is ending, that is not why we gave up.
        self.why_waiting = self._attempts.why or "it did not answer in time"
        if error := self._keep():
            self._lose(self.backlog.forget(), f"{self.backlog.path}: {error.strerror}")
        return self.lost + self.backlog.values

    def losses(self) -> Iterator[str]:
        """Sentences on what is lost and what still waits; for use after `close`."""
        if self.lost:
            yield f"{self.lost} values are lost: {self.why_lost}"
        if self.backlog.unreadable:
            yield f"{self.backlog.unreadable} lines of {self.backlog.path} were cut short and are lost"
        if self.undelivered:
            yield (
                f"MLflow did not take everything ({self.backlog.values} values wait; {self.why_waiting}); "
                f"expected a store that answers; `canary deliver {self.undelivered}` sends the rest"
            )

    def _keep(self) -> OSError | None:
        """Leave what is not delivered in the file; return the error if the disk does not take it."""
        try:
            if self._thread is None:
                while self._left:
                    self.backlog.put(self._left.pop(0))
            self.undelivered = self.backlog.to_disk()
        except OSError as error:
            return error
        return None

    def _work(self) -> None:
        attempts, closing = self._attempts, False
        while not closing:
            closing = attempts.wait(self.period)
            with self._clock.working():
                if not self._send_all():
                    return

    def _send_all(self) -> bool:
        """Send what waits; return False if the time for it is over."""
        me = threading.current_thread()
        while items := self.backlog.take(BATCH):
            error = None
            if isinstance(items[0], Sample):
                error = self._send_points(points_of([item for item in items if isinstance(item, Sample)]))
            else:
                self._send_other(items[0])
            if error is not None or me is not self._thread:
                return False
            self.backlog.done()
        return True

    def _send_points(self, points: Sequence[Point]) -> Exception | None:
        """Send points; if MLflow refuses some for good, find them by halving. Return the error if the store took
        none."""
        if len(points) <= BATCH:
            error = self._attempts.make(lambda: self._courier.points(points))
            if error is None or not is_refused(error):
                return error
            if len(points) == 1:
                self._lose(1, one_line(error))
                return None
        half = len(points) // 2
        return self._send_points(points[:half]) or self._send_points(points[half:])

    def _send_other(self, item: Item) -> None:
        """Send tags, an artifact or the status. An item that the store cannot take does not hold up the others."""
        error = self._attempts.make(lambda: self._courier.other(item))
        if error is None:
            return
        if is_refused(error):
            log.warning("canary: run %s: %s refused: %s", self.run_id, type(item).__name__.lower(), one_line(error))
        else:
            self._left.append(item)

    def _lose(self, count: int, why: str) -> None:
        self.lost += count
        self.why_lost = self.why_lost or why
