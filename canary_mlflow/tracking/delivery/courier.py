"""Carries a run's items to its store: one attempt each, and an exception if it fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from canary_mlflow.tags import COMPLETED, FAILURE, FAILURE_REASON
from canary_mlflow.tracking.delivery.items import File, Item, Sample, Status, Tags, Text
from canary_mlflow.tracking.delivery.lines import to_json
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
        if isinstance(item, Tags):
            self._tags(item)
        elif isinstance(item, Status):
            self._status(item)
        elif isinstance(item, Text):
            self._answering()
            self.client.log_text(self.run_id, item.content, item.name)
        elif isinstance(item, File):
            if item.remove and not item.path.exists():
                return  # it was sent, and the process ended before the queue could note it
            self._answering()
            self.client.log_artifact(self.run_id, str(item.path))
            if item.remove:
                item.path.unlink(missing_ok=True)

    def _tags(self, item: Tags) -> None:
        tags = dict(item.tags)
        if COMPLETED in tags and self._failed():
            tags = {name: value for name, value in tags.items() if name not in ENDING}
        if self._remote:
            self._post("log-batch", {"tags": [{"key": key, "value": value} for key, value in tags.items()]})
        else:
            log_tags(self.client, self.run_id, tags)

    def _status(self, item: Status) -> None:
        if self._failed():
            return
        if self._remote:
            self._post("update", {"status": item.status, "end_time": item.end_time})
        else:
            self.client.set_terminated(self.run_id, item.status, item.end_time)

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


def points_of(samples: Sequence[Sample]) -> list[Point]:
    """The points of some rows, in their order."""
    return [
        (mlflow_key(name), value, sample.timestamp, sample.step)
        for sample in samples
        for name, value in sample.values.items()
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
