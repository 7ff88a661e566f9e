"""Sends requests in a separate thread, with retries if a receiver does not accept them. Only the end of the process
waits for them, and only for a while."""

from __future__ import annotations

import atexit
import contextvars
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from canary_mlflow.errors import CanaryError, one_line
from canary_mlflow.notify.bodies import request
from canary_mlflow.notify.events import Event
from canary_mlflow.notify.session import configured, first
from canary_mlflow.notify.webhooks import Webhook

log = logging.getLogger(__name__)

TRIES = 5
FIRST_WAIT = 1.0  # seconds before the second try; then twice as long each time
SECONDS = 10.0  # for one try
PATIENCE = 20.0  # seconds that the end of a process waits for unsent messages
WAITING = 1000  # messages; more are dropped and logged
AGAIN = (408, 425, 429, 500, 502, 503, 504)


class Outbox:
    """A queue and its thread, which starts with the first job."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], object]] = queue.Queue(WAITING)
        self._lock = threading.Lock()
        self._process = 0  # the process that has the thread: a fork has none

    def put(self, job: Callable[[], object]) -> None:
        """Queue a job, to be done in the caller's context (of a workspace); never waits, never raises."""
        context = contextvars.copy_context()
        try:
            self._jobs.put_nowait(lambda: context.run(job))
        except queue.Full:
            log.error("canary: webhooks: %d messages wait already; this one is dropped", WAITING)
            return
        with self._lock:
            if self._process != os.getpid():
                self._process = os.getpid()
                threading.Thread(target=self._work, name="canary-webhooks", daemon=True).start()
                atexit.register(self.close)

    def close(self, patience: float = PATIENCE) -> None:
        """Wait until everything is sent, at most `patience` seconds."""
        until = time.monotonic() + patience
        while self._jobs.unfinished_tasks and time.monotonic() < until:
            time.sleep(0.02)
        if self._jobs.unfinished_tasks:
            log.error("canary: webhooks: %d messages have not left in %g s", self._jobs.unfinished_tasks, patience)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job()
            except Exception as error:  # noqa: BLE001  # later jobs must still run
                log.error("canary: webhooks: %s", one_line(error))
            finally:
                self._jobs.task_done()


OUTBOX = Outbox()


def notify(*events: Event) -> None:
    """Queue the events for all webhooks that want them; errors are logged and never reach the caller."""
    try:
        webhooks = configured()
    except CanaryError as error:
        log.error("canary: webhooks: %s; nothing was sent", error)
        return
    for event in events:
        for webhook in webhooks:
            if webhook.wants(str(event.kind), event.model):
                OUTBOX.put(partial(deliver, webhook, event))


def deliver(webhook: Webhook, event: Event, tries: int = TRIES) -> str:
    """Send an event, with retries; '' if it was accepted, else why not, which is logged too."""
    problem = ""
    for number in range(tries):
        if number:
            time.sleep(FIRST_WAIT * 2 ** (number - 1))
        problem, again = attempt(webhook, event)
        if not problem or not again:
            break
    if problem and first(f"lost {webhook.name}"):  # once per session
        log.error("canary: webhook %s: %s was not delivered: %s", webhook.name, event.kind, problem)
    return problem


def attempt(webhook: Webhook, event: Event) -> tuple[str, bool]:
    """Send one request: (what went wrong, '' for nothing; whether another try may succeed)."""
    import requests

    body, headers = request(webhook, event)
    try:
        with requests.Session() as session:
            answer = session.post(webhook.url, data=body, headers=headers, timeout=SECONDS, allow_redirects=False)
    except requests.RequestException as error:
        return f"{webhook.place}: {type(error).__name__}", True  # its text contains the whole address, a secret
    if answer.status_code < 300:
        return "", False
    return f"{webhook.place}: answered {answer.status_code}", answer.status_code in AGAIN
