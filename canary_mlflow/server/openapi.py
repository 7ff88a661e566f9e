"""What a route is, and the description of all in OpenAPI 3.1."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from canary_mlflow.registry.backends.server import BASE
from canary_mlflow.server.requests import FIELDS, Shape

STATIC_PREFIX = "_MLFLOW_STATIC_PREFIX"
ERROR = {
    "type": "object",
    "required": ["error", "message"],
    "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
}
CODES = {
    "200": "done",
    "400": "what was sent makes no sense",
    "401": "nobody known",
    "403": "not allowed, or not judged",
    "404": "no such model, version or run",
    "409": "judged against something that has changed",
    "503": "the database did not answer",
}


def path(name: str) -> str:
    """A route's path, under the server's own prefix if it has one."""
    return f"{os.environ.get(STATIC_PREFIX, '').rstrip('/')}{BASE}/{name}"


@dataclass(frozen=True, kw_only=True)
class Route:
    """A route: `view` answers it. `asks`: the keys of its query; `body`: those of what is posted. `id`: in OpenAPI."""

    id: str
    method: str
    view: Callable[[], Any]
    summary: str
    name: str = ""
    asks: tuple[str, ...] = ()
    body: Shape | None = None

    @property
    def path(self) -> str:
        """Its path; it is named by its id, unless another route is."""
        return path(self.name or self.id)


def get(id: str, view: Callable[[], Any], summary: str, *asks: str, name: str = "") -> Route:
    """A route that only reads."""
    return Route(id=id, method="GET", view=view, summary=summary, asks=asks, name=name)


def post(id: str, view: Callable[[], Any], body: Shape, summary: str, name: str = "") -> Route:
    """A route that has something done."""
    return Route(id=id, method="POST", view=view, summary=summary, body=body, name=name)


def description(routes: Sequence[Route]) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = operation(route)
    return {"openapi": "3.1.0", "info": {"title": "canary-mlflow", "version": "1"}, "paths": paths}


def operation(route: Route) -> dict[str, Any]:
    """What is sent to a route, and the responses that all have in common."""
    responses: dict[str, Any] = {}
    for code, meaning in CODES.items():
        schema = {"type": "object"} if code == "200" else ERROR
        content = {} if code == "401" else {"content": {"application/json": {"schema": schema}}}
        responses[code] = {"description": meaning, **content}
    found: dict[str, Any] = {"operationId": route.id, "summary": route.summary, "responses": responses}
    if route.asks:
        found["parameters"] = [{"name": name, "in": "query", "schema": FIELDS[name]} for name in route.asks]
    if route.body is not None:
        body = {
            "type": "object",
            "properties": {name: FIELDS[name] for name in (*route.body.required, *route.body.optional)},
            "required": list(route.body.required),
            "additionalProperties": False,
        }
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return found
