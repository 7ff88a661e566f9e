"""A server that guards its own registry: it judges, signs and promotes when it is asked over HTTP. Whoever only reads
from here, as for a dry run, finds what stock MLflow shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mlflow.exceptions import MlflowException
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.rest_utils import http_request

from canary_mlflow.errors import BaselineMoved, CanaryError, NoSuchVersion, Refused, StoreError, UsageError, one_line
from canary_mlflow.ledger.chain import FIRST, ReadRow, Row, checked
from canary_mlflow.ledger.keys import PublicKeys, trusted
from canary_mlflow.ledger.succession import with_rows
from canary_mlflow.registry.backends.registry import Done
from canary_mlflow.registry.backends.stock import Stock
from canary_mlflow.registry.policies.in_force import InForce

if TYPE_CHECKING:
    from mlflow import MlflowClient

BASE = "/api/2.0/canary"
ERRORS: dict[int, type[CanaryError]] = {
    400: UsageError,
    401: Refused,
    403: Refused,
    404: NoSuchVersion,
    409: BaselineMoved,
}
SECONDS = 300  # a verdict reads every metric and file of both sides


class Server(Stock):
    """A guarded server, as its clients see it."""

    def __init__(self, client: MlflowClient, uri: str) -> None:
        super().__init__(client)
        self.uri = uri

    def do(
        self, route: str, body: Mapping[str, Any], here: Callable[[], Done], there: Callable[[Mapping[str, Any]], Done]
    ) -> Done:
        return there(ask(self.uri, "POST", route, body) or {})

    def life(self, session_id: str, model: str) -> list[Row]:
        try:
            rows, _ = self.ledger(f"model={quote(model, safe='')}")
        except CanaryError:
            return []
        return [row for row in rows if row.alias == session_id]

    def checked_rows(self, model: str, version: int) -> list[ReadRow] | None:
        """Only the first row's predecessor is known here; the keys as the server's rows tell of them."""
        rows, keys = self.ledger(f"model={quote(model, safe='')}&version={version}")
        return checked([(row, FIRST if row.seq == 1 else None) for row in rows], partial(server_keys, keys))

    def ledger(self, about: str) -> tuple[list[Row], Mapping[str, Any]]:
        """Rows, page by page, and what the server says of the keys that signed them. Raises Refused."""
        rows: list[Row] = []
        while True:
            after = rows[-1].seq if rows else 0
            answer = ask(self.uri, "GET", f"ledger?{about}&after={after}") or {"rows": []}
            rows += read_rows(answer)
            if not answer.get("more"):
                return rows, answer.get("keys") or {"rows": (), "first": {}}

    def policies(self, model: str | None) -> Mapping[str, Any]:
        """The policy in force for a model, and the rows that set policies: as the server's route answers."""
        return ask(self.uri, "GET", "policies" + (f"?model={quote(model, safe='')}" if model else "")) or {}

    def policy_rows(self, model: str | None) -> list[Row]:
        return read_rows(self.policies(model))

    def governing(self, model: str) -> InForce | None:
        found = self.policies(model).get("in_force")
        if found is None:
            return None
        return InForce(content=found["content"], row=found["row"], pattern=str(found["pattern"]))


def read_rows(answer: Mapping[str, Any]) -> list[Row]:
    """The rows in a server's answer."""
    return [Row(**plain) for plain in answer.get("rows", ())]


def server_keys(answer: Mapping[str, Any]) -> PublicKeys:
    """The keys that are trusted here, with what, by the server, its ledger's rows say about them."""
    return with_rows(trusted(), read_rows(answer), answer["first"].get)


@lru_cache(maxsize=16)
def is_guarded_server(uri: str) -> bool:
    """Whether a server has the guard's routes. Raises StoreError where none answers."""
    return ask(uri, "GET", "health") is not None


def ask(uri: str, method: str, route: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """The answer's JSON; None if the server does not have the route. Raises a CanaryError for a refusal."""
    import requests

    try:
        response = http_request(
            get_default_host_creds(uri), f"{BASE}/{route}", method, timeout=SECONDS, max_retries=1, json=body
        )
        found = response.json() if response.headers.get("Content-Type", "").startswith("application/json") else {}
    except (MlflowException, requests.RequestException, ValueError) as error:
        raise StoreError(f"{uri}: {one_line(error)}; expected a server that answers; try again") from error
    if response.status_code == 200 and isinstance(found, dict) and found:
        return found
    if response.status_code in (200, 404) and "message" not in found:
        return None
    said = found.get("message") or f"HTTP {response.status_code}; expected an answer of the guard; see the server's log"
    raise ERRORS.get(response.status_code, StoreError)(said)
