"""Retrying until a job works, cannot work, or runs out of time."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from canary_mlflow.errors import one_line
from canary_mlflow.tracking.delivery.courier import is_hopeless, is_refused
from canary_mlflow.tracking.describing.failures import is_full

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0  # seconds between attempts, on average
CHANCE = random.SystemRandom().random  # from no stream of the training's, and different in each process


class Attempts:
    """The attempts of a thread that works for another, which may wake it and in the end waits only so long.

    Each pause is stretched or shortened by chance: many runs that meet one failure would all come back at once.
    """

    def __init__(self) -> None:
        self.closing = False
        self.why = ""  # what the last failure said
        self._patience = self._deadline = float("inf")
        self._wake = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Wait until woken or told to close; return whether it is closing."""
        self._wake.wait(around(seconds))
        return self._heard()

    def wake(self) -> None:
        """Let the waiting thread go on now."""
        self._wake.set()

    def close(self, patience: float) -> None:
        """From now on give up after `patience` seconds without a success."""
        self._patience = patience
        self._deadline = time.monotonic() + patience
        self.closing = True
        self._wake.set()

    def over(self) -> bool:
        """Whether the time that `close` left is over."""
        return time.monotonic() >= self._deadline

    def make(self, job: Callable[[], object]) -> Exception | None:
        """Do the job, again and again while that may help; return None, or the last error if it does not."""
        longest = FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                job()
                self._deadline = time.monotonic() + self._patience
                return None
            except Exception as error:  # noqa: BLE001 - whatever a store raises, training goes on; it is counted and said
                self.why = one_line(error)
                # A store that takes long to fail has too much to do.
                pause = around(min(max(longest, time.monotonic() - began), LONGEST_PAUSE))
                if is_refused(error) or time.monotonic() + pause > self._deadline:
                    return error
                if self.closing and (is_hopeless(error) or is_full(error)):  # nobody makes room within a minute
                    return error
            self._rest(pause)
            longest *= 2

    def _rest(self, seconds: float) -> None:
        """Wait between attempts; a call to `close` ends the wait."""
        if self.closing:
            time.sleep(min(seconds, max(0.0, self._deadline - time.monotonic())))
        elif self._wake.wait(seconds):
            self._heard()

    def _heard(self) -> bool:
        closing = self.closing  # read first: what is put before close() is sent
        if not closing:
            self._wake.clear()
            if self.closing:  # said while we cleared
                self._wake.set()
        return closing


def around(seconds: float) -> float:
    """Between half and one and a half of it."""
    return seconds * (0.5 + CHANCE())
