"""Sends a run's numbers to MLflow: its outbox takes them at once, a thread sends that, and none is silently lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from canary_mlflow.errors import one_line
from canary_mlflow.tracking.delivery.courier import BATCH, Attempts, Courier, Point, is_refused, points_of
from canary_mlflow.tracking.delivery.outbox import UNDELIVERED, Item, Outbox
from canary_mlflow.tracking.delivery.thread_clock import ThreadClock
from canary_mlflow.tracking.stores.places import without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("canary_mlflow")

# Seconds between sends. Rare, because a send to a database takes 0.1 s of the interpreter per 1000 values, during which
# training gets only every other turn: a short run is sent when it is over.
PERIOD = 10.0


class Recorder:
    """Writes one run. What hands something over never waits for the store, and nothing of it raises.

    All of it is in `folder`/undelivered.jsonl until the store has taken it, in order. `close` leaves there what is not
    delivered by then.
    """

    def __init__(
        self,
        client: MlflowClient,
        run_id: str,
        folder: Path,
        *,
        period: float = PERIOD,
        outbox: Outbox | None = None,
    ) -> None:
        self.client = client
        self.run_id = run_id
        self.period = period
        self.lost = 0  # values that are neither in the store nor in the file
        self.why_lost = ""  # the first reason
        self.undelivered: Path | None = None  # where the rest was left
        self.why_waiting = ""  # after `close`: what the store said last before we gave up
        store = without_password(client.tracking_uri)
        self.outbox = outbox or Outbox(folder / UNDELIVERED, run_id=run_id, store=store)
        self._courier = Courier(client, run_id)
        self._left: list[Item] = []  # tags and artifacts that the store did not take in time
        self._attempts = Attempts()
        self._clock = ThreadClock()  # of the sending thread
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread unless it runs. Best done early, as Python may refuse to start one while it is ending."""
        if self._thread is not None:
            return
        self._attempts, self._left = Attempts(), []
        # A daemon, because a store that hangs must not keep a finished training from exiting.
        self._thread = threading.Thread(target=self._work, name="canary-recorder", daemon=True)
        self._thread.start()

    def put(self, step: int, values: Mapping[str, float], when: float | None = None) -> None:
        """Hand over one row: canonical name → value, at a time in seconds since the epoch, by default now."""
        self.put_all([(when or time.time(), step, values)])

    def put_all(self, rows: Iterable[tuple[float, int, Mapping[str, float]]]) -> None:
        """Hand over rows, each with its time and step."""
        self._add(*({"timestamp": int(1000 * when), "step": step, "metrics": values} for when, step, values in rows))

    def tag(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run as soon as the rows that wait are sent."""
        self._add({"tags": dict(tags)})
        self._attempts.wake()

    def artifact(self, name: str, content: str) -> None:
        """Write a text among the run's artifacts."""
        self._add({"artifact": name, "content": content})

    def move(self, file: Path) -> None:
        """Put a file among the run's artifacts, and delete it once the store has it."""
        self._add({"file": str(file.absolute()), "remove": True})

    def end(self, status: str) -> None:
        """End the run now: FINISHED or FAILED."""
        self._add({"status": status, "end_time": int(time.time() * 1000)})

    def close(self, timeout: float = 60.0) -> int:
        """Send what waits, and return how many values are not in the store.

        Waits as long as the store takes something; gives up after `timeout` seconds without that, and leaves the rest
        in the file (`undelivered`). The recorder may be used again afterwards.
        """
        thread = self._thread
        if thread is None:
            return self.lost + self.outbox.values
        self._attempts.close(timeout)
        while thread.is_alive() and not self._attempts.over():
            thread.join(0.1 if timeout > 0.1 else timeout)
        self._thread = None  # a thread that still hangs in a call sends nothing more after it
        # Kept now: if that call fails later, perhaps because this process is ending, that is not why we gave up.
        self.why_waiting = self._attempts.why or "it did not answer in time"
        left, lost, error = self.outbox.close()
        self.undelivered = self.outbox.path if left else None
        if error:
            self._lose(lost, f"{self.outbox.path}: {error.strerror}")
        return self.lost + self.outbox.values

    def losses(self) -> Iterator[str]:
        """Sentences on what is lost and what still waits; for use after `close`."""
        if self.lost:
            yield f"{self.lost} values are lost: {self.why_lost}"
        if self.outbox.unreadable:
            yield f"{self.outbox.unreadable} lines of {self.outbox.path} were cut short and are lost"
        if self.undelivered:
            yield (
                f"MLflow did not take everything ({self.outbox.values} values wait; {self.why_waiting}); "
                f"expected a store that answers; `canary deliver {self.undelivered}` sends the rest"
            )

    def _add(self, *items: Item) -> None:
        """Queue items behind those that wait."""
        lost, error = self.outbox.put(*items)
        if lost and error:
            self._lose(lost, f"{self.outbox.path}: {error.strerror}")
        if self._thread is None:
            self.start()

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
        while items := self.outbox.take(BATCH):
            if items[0] in self._left:
                return True  # all others are sent
            error = None
            if "metrics" in items[0]:
                error = self._send_points(points_of(items))
            else:
                self._send_other(items[0])
            if error is not None or me is not self._thread:
                return False
            self.outbox.done()
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
            log.warning("canary: run %s: %s refused: %s", self.run_id, next(iter(item)), one_line(error))
        else:
            self._left.append(item)
            self.outbox.put(item)  # behind all others

    def _lose(self, count: int, why: str) -> None:
        self.lost += count
        self.why_lost = self.why_lost or why
