"""Who may call which route of the server, asked of a real one with MLflow's basic authentication."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guard_doors import Refused, request
from guard_modes import ADMIN, PASSWORD, Mode

WHO = ("anonymous", "reader", "editor", "manager", "admin")
# route → what is sent; the acts name a version that is not there, so that who may ask at all is told apart from 403.
ROUTES: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "GET health": ("GET", "health", None),
    "GET openapi.json": ("GET", "openapi.json", None),
    "GET ledger?model=m": ("GET", "ledger?model=m", None),
    "GET ledger": ("GET", "ledger", None),
    "GET head": ("GET", "head", None),
    "GET policies?model=m": ("GET", "policies?model=m", None),
    "GET policies": ("GET", "policies", None),
    "POST policies": ("POST", "policies", {"pattern": "nobody", "policy": "./lax.yaml", "reason": "a test"}),
    "POST seals": ("POST", "seals", {"model": "m", "version": "99"}),
    "POST evals": ("POST", "evals", {"model": "m", "version": "99", "run": "0" * 32}),
    "POST withdrawals": (
        "POST",
        "withdrawals",
        {"model": "m", "version": "99", "row_or_run": "9", "reason": "a test"},
    ),
    "POST sessions": ("POST", "sessions", {"model": "m", "session": "0" * 32, "word": "ended"}),
    "POST sessions, a run ordered": (
        "POST",
        "sessions",
        {"model": "m", "session": "0" * 32, "word": "ordered", "run": "0" * 32},
    ),
    "POST verdicts": ("POST", "verdicts", {"model": "m", "version": "99"}),
    "POST verdicts with an outcome": ("POST", "verdicts", {"model": "m", "version": "3", "outcome": "PASS"}),
    "POST overrides": ("POST", "overrides", {"model": "m", "version": "99", "reason": "a test"}),
    "POST blessings": ("POST", "blessings", {"model": "m", "version": "99", "reason": "a test"}),
    "POST rollbacks": ("POST", "rollbacks", {"model": "lab", "reason": "a test"}),
    "POST adoptions": ("POST", "adoptions", {"model": "lab", "reason": "a test"}),
    "POST acceptances": ("POST", "acceptances", {"model": "m", "version": "99", "reason": "a test"}),
    "POST prunings": ("POST", "prunings", {"model": "m", "version": "99"}),
}


def users(mode: Mode) -> dict[str, Mapping[str, str]]:
    """The five, with the permissions of MLflow that they are called after."""
    from mlflow.exceptions import MlflowException
    from mlflow.server.auth.client import AuthServiceClient

    service = AuthServiceClient(mode.front)
    found: dict[str, Mapping[str, str]] = {"anonymous": {}, "admin": ADMIN}
    for name, permission in (("reader", "READ"), ("editor", "EDIT"), ("manager", "MANAGE")):
        try:
            service.create_user(name, PASSWORD)
        except MlflowException:  # known already, from an earlier test
            pass
        else:
            for model in ("m", "lab"):
                service.grant_user_permission(name, "registered_model", model, permission)
        found[name] = {"MLFLOW_TRACKING_USERNAME": name, "MLFLOW_TRACKING_PASSWORD": PASSWORD}
    return found


def may_edit(mode: Mode, kind: str, name: str) -> None:
    """Let the editor edit one more thing."""
    from mlflow.server.auth.client import AuthServiceClient

    AuthServiceClient(mode.front).grant_user_permission("editor", kind, name, "EDIT")


def answer(mode: Mode, route: str, user: Mapping[str, str]) -> str:
    """The status of the answer."""
    method, path, body = ROUTES[route]
    try:
        request(f"{mode.front}/api/2.0/canary/{path}", method, body, user)
    except Refused as error:
        return str(error.status)
    return "200"
