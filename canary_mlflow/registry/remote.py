"""The guard of a server, asked over HTTP: it judges, signs and promotes; a client reads the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from canary_mlflow.errors import (
    BaselineMoved,
    CanaryError,
    NoSuchVersion,
    Refused,
    StoreError,
    UsageError,
    one_line,
)
from canary_mlflow.registry.locks import registry_uri
from canary_mlflow.registry.policies.in_force import InForce
from canary_mlflow.reports.decision import Decision, decision_from_dict
from canary_mlflow.reports.links import version_page
from canary_mlflow.tracking.stores.places import without_password

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


def is_guarded_server(client: MlflowClient) -> bool:
    """Whether the client's registry is a server with the guard's routes."""
    return registry_uri(client).startswith(("http://", "https://")) and ask(client, "GET", "health") is not None


def remote_gate(client: MlflowClient, model: str, version: str, *, by_plan: bool, promote: bool | None) -> Decision:
    """Ask the server for a verdict, by the policy in force there. Raises the error that the server's answer means."""
    body: dict[str, Any] = {"model": model, "version": version}
    if by_plan:
        body["by_plan"] = True
    if promote is not None:
        body["promote"] = promote
    answer = ask(client, "POST", "verdicts", body)
    decision = decision_from_dict((answer or {})["decision"])
    return replace(
        decision, store=without_password(client.tracking_uri), page=version_page(model, str(decision.version))
    )


def in_force_there(client: MlflowClient, model: str) -> InForce | None:
    """The policy by which a guarded server judges a model; None for other servers. Raises as `in_force` does."""
    answer = ask(client, "GET", f"policies?model={quote(model, safe='')}")
    found = (answer or {}).get("in_force")
    if found is None:
        return None
    return InForce(content=found["content"], row=found["row"], pattern=str(found["pattern"]))


def remote_act(client: MlflowClient, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The server's answer to blessings, overrides or rollbacks: what was done, under `act`, or asked for."""
    return ask(client, "POST", route, body) or {}


def ask(client: MlflowClient, method: str, route: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """The answer's JSON; None if the server does not have the route. Raises a CanaryError for a refusal."""
    import requests
    from mlflow.exceptions import MlflowException
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    uri = registry_uri(client)
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
