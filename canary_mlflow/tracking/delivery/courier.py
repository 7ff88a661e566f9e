"""Carries a run's items to its store: attempts, until one works, none can, or the time for them is over."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import one_line
from canary_mlflow.tags import COMPLETED, FAILURE, FAILURE_REASON
from canary_mlflow.tracking.delivery.lines import to_json
from canary_mlflow.tracking.delivery.outbox import Item
from canary_mlflow.tracking.describing.failures import is_full
from canary_mlflow.tracking.describing.schema import mlflow_key
from canary_mlflow.tracking.stores.session import log_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient

BATCH = 1000  # MLflow's limit for one log_batch
# Seconds for one request: longer than a server's own waits, 30 s for a connection to its database and 20 s for SQLite's
# lock. It goes on with what we no longer wait for, so that sending it again only adds to its work.
TIMEOUT = 60
ENDING = (COMPLETED, FAILURE, FAILURE_REASON)
REFUSED = "INVALID_PARAMETER_VALUE"
DATA_ERROR = "/9h9h)"  # at the end of the link by which SQLAlchemy explains one: https://docs.sqlalchemy.org/errors
HOPELESS = frozenset({"RESOURCE_DOES_NOT_EXIST", "PERMISSION_DENIED"})
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0  # seconds between attempts, on average
CHANCE = random.SystemRandom().random  # from no stream of the training's, and different in each process
Point = tuple[str, float, int, int]  # MLflow key, value, timestamp (ms), step


class Courier:
    """Writes to one run. Everything may be sent twice: a store keeps one of two equal points, and the last tag.

    A server is asked once per call. MLflow's client would retry seven times with pauses of up to 128 s, even if the
    server were back meanwhile. MLflow's SQL stores recognise equal points by their primary key.
    """

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self.client = client
        self.run_id = run_id
        self._remote = client.tracking_uri.startswith(("http://", "https://"))

    def points(self, points: Sequence[Point]) -> None:
        """Write at most BATCH points."""
        if self._remote:
            metrics = [
                {"key": key, "value": to_json(value), "timestamp": timestamp, "step": step}
                for key, value, timestamp, step in points
            ]
            self._post("log-batch", {"metrics": metrics})
            return
        from mlflow.entities import Metric

        self.client.log_batch(self.run_id, metrics=[Metric(*point) for point in points])

    def other(self, item: Item) -> None:
        """Write an item that is not a row of metrics."""
        if "tags" in item:
            self._tags(item["tags"])
        elif "status" in item:
            self._status(item["status"], item["end_time"])
        elif "artifact" in item:
            self._answering()
            self.client.log_text(self.run_id, item["content"], item["artifact"])
        else:
            self._file(Path(item["file"]), remove=item["remove"])

    def _file(self, path: Path, *, remove: bool) -> None:
        if remove and not path.exists():
            return  # it was sent, and the process ended before the outbox could note it
        self._answering()
        self.client.log_artifact(self.run_id, str(path))
        if remove:
            path.unlink(missing_ok=True)

    def _tags(self, tags: Mapping[str, str]) -> None:
        if COMPLETED in tags and self._failed():
            tags = {name: value for name, value in tags.items() if name not in ENDING}
        if self._remote:
            self._post("log-batch", {"tags": [{"key": key, "value": value} for key, value in tags.items()]})
        else:
            log_tags(self.client, self.run_id, tags)

    def _status(self, status: str, end_time: int) -> None:
        if self._failed():
            return
        if self._remote:
            self._post("update", {"status": status, "end_time": end_time})
        else:
            self.client.set_terminated(self.run_id, status, end_time)

    def _failed(self) -> bool:
        """Whether the run was already ended by someone who knew better: the session of a killed process."""
        if self._remote:
            return bool(self._get()["run"]["info"]["status"] == "FAILED")
        return bool(self.client.get_run(self.run_id).info.status == "FAILED")

    def _answering(self) -> None:
        """Raise unless the server answers, before a call that would retry seven times."""
        if self._remote:
            self._get()

    def _get(self) -> Any:
        return self._request("GET", "get", {"params": {"run_id": self.run_id}})

    def _post(self, what: str, content: dict[str, Any]) -> None:
        self._request("POST", what, {"json": {"run_id": self.run_id, **content}})

    def _request(self, method: str, what: str, content: dict[str, Any]) -> Any:
        from mlflow.utils.credentials import get_default_host_creds
        from mlflow.utils.rest_utils import http_request, verify_rest_response

        endpoint = f"/api/2.0/mlflow/runs/{what}"
        host = get_default_host_creds(self.client.tracking_uri)
        response = http_request(
            host, endpoint, method, max_retries=0, timeout=TIMEOUT, raise_on_status=False, **content
        )
        return verify_rest_response(response, endpoint).json()


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
        if not self.closing:
            self._wake.wait(around(seconds))
            self._wake.clear()
        return self.closing  # read last: what is put before close() is sent

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
            self._wake.clear()


def points_of(rows: Sequence[Item]) -> list[Point]:
    """The points of some rows, in their order."""
    return [
        (mlflow_key(name), value, row["timestamp"], row["step"])
        for row in rows
        for name, value in row["metrics"].items()
    ]


def is_refused(error: Exception) -> bool:
    """Whether the store refuses what was sent: sending it again cannot help.

    BAD_REQUEST alone says nothing: MLflow answers so to most errors of its database, such as no free connection.
    """
    refused = getattr(error, "error_code", "") == REFUSED or DATA_ERROR in str(error)
    return isinstance(error, (TypeError, FileNotFoundError)) or refused


def is_hopeless(error: Exception) -> bool:
    """Whether sending it again can only help after someone has stepped in."""
    return getattr(error, "error_code", "") in HOPELESS


def around(seconds: float) -> float:
    """Between half and one and a half of it."""
    return seconds * (0.5 + CHANCE())
