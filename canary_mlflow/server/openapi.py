"""The routes in OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MODEL = {"type": "string", "minLength": 1, "maxLength": 256}
VERSION = {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[1-9][0-9]{0,9}$"}]}
POLICY = {"type": "string", "minLength": 1, "maxLength": 100}
ALIAS = {"type": "string", "minLength": 1, "maxLength": 255}
REASON = {"type": "string", "minLength": 1, "maxLength": 500}
NAME = "^[A-Za-z0-9_./@-]{1,100}$"
NUMBERS = {"type": "object", "propertyNames": {"pattern": NAME}, "additionalProperties": {"type": ["number", "null"]}}
EVALUATION = {
    "type": "object",
    "properties": {
        "recorded": NUMBERS,
        "repeated": NUMBERS,
        "different": {"type": "array", "items": {"type": "string", "pattern": NAME}},
        "tolerance": {"type": "number"},
        "failure": REASON,
        "artifact": {"type": "string", "minLength": 1, "maxLength": 100},
    },
    "additionalProperties": False,
}
WEIGHTS = {"type": "string", "enum": ["files", "none"]}
SESSION = {"type": "string", "minLength": 1, "maxLength": 64}
WORD = {"type": "string", "enum": ["begun", "ordered", "ended"]}
SWITCH = {"type": "boolean"}
KEEP = {"type": "integer", "minimum": 1, "maximum": 1_000_000}
DAYS = {"type": "number", "minimum": 0, "maximum": 1_000_000}
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


def description(path: Callable[[str], str]) -> dict[str, Any]:
    """The whole document. `path`: returns a route's path for its name."""
    model = {"name": "model", "in": "query", "schema": MODEL}
    version = {"name": "version", "in": "query", "schema": VERSION}
    numbers = [
        {"name": name, "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": most}}
        for name, most in (("after", 2**31 - 1), ("limit", 10_000))
    ]
    return {
        "openapi": "3.1.0",
        "info": {"title": "canary-mlflow", "version": "1"},
        "paths": {
            path("health"): {"get": operation("health", "Ledger and triggers")},
            path("openapi.json"): {"get": operation("openapi", "This document")},
            path("ledger"): {
                "get": {**operation("ledger", "Rows of the ledger"), "parameters": [model, version, *numbers]}
            },
            path("policies"): {
                "get": {
                    **operation("policies", "The policy in force for a model, and the rows that set policies"),
                    "parameters": [model],
                },
                "post": posted(
                    "set_policy",
                    "Judge models by a shipped policy, or by one whose keys are all in content (administrators)",
                    {"pattern": MODEL, "policy": POLICY, "content": {"type": "object"}, "reason": REASON},
                    ["pattern", "policy", "reason"],
                ),
            },
            path("head"): {"get": operation("head", "The ledger's last row, to be kept elsewhere")},
            path("seals"): {
                "post": posted(
                    "seals",
                    "Record the digests of a new version's files, once",
                    {"model": MODEL, "version": VERSION, "weights": WEIGHTS, "evaluation": EVALUATION},
                    ["model", "version"],
                )
            },
            path("sessions"): {
                "post": posted(
                    "sessions",
                    "Record that a session has begun, or which runs it has, read from the store; or that a run of it, "
                    "which has not begun, is one of the champion's code (ordered: MANAGE on the model)",
                    {"model": MODEL, "session": SESSION, "word": WORD, "run": SESSION},
                    ["model", "session", "word"],
                )
            },
            path("verdicts"): {
                "post": posted(
                    "verdicts",
                    "Judge and sign; a PASS replaces an older champion, any with promote true, none with promote false",
                    {
                        "model": MODEL,
                        "version": VERSION,
                        "promote": {"type": "boolean"},
                        "by_plan": {"type": "boolean"},
                        "policy": POLICY,
                    },
                    ["model", "version"],
                )
            },
            path("overrides"): {
                "post": posted(
                    "overrides",
                    "Give a version a guarded alias whatever its verdict (MANAGE on the model)",
                    {
                        "model": MODEL,
                        "version": VERSION,
                        "reason": REASON,
                        "alias": ALIAS,
                        "without_weights": SWITCH,
                    },
                    ["model", "version", "reason"],
                )
            },
            path("blessings"): {
                "post": posted(
                    "blessings",
                    "Make a version champion by hand (MANAGE on the model)",
                    {"model": MODEL, "version": VERSION, "reason": REASON, "without_weights": SWITCH},
                    ["model", "version", "reason"],
                )
            },
            path("acceptances"): {
                "post": posted(
                    "acceptances",
                    "Accept facts of a version that differ from the champion's (administrators)",
                    {"model": MODEL, "version": VERSION, "reason": REASON},
                    ["model", "version", "reason"],
                )
            },
            path("rollbacks"): {
                "post": posted(
                    "rollbacks",
                    "Return to the former champion (MANAGE on the model)",
                    {"model": MODEL, "reason": REASON},
                    ["model", "reason"],
                )
            },
            path("prunings"): {
                "post": posted(
                    "prunings",
                    "Which files of a model nobody needs; with a version or a session, give up and remove that one's "
                    "(MANAGE on the model and its experiments)",
                    {"model": MODEL, "version": VERSION, "session": SESSION, "keep": KEEP, "older_than": DAYS},
                    ["model"],
                )
            },
            path("adoptions"): {
                "post": posted(
                    "adoptions",
                    "Enter the champion of a model into the ledger (administrators)",
                    {"model": MODEL, "reason": REASON, "alias": ALIAS},
                    ["model", "reason"],
                )
            },
        },
    }


def operation(name: str, summary: str) -> dict[str, Any]:
    """An operation with the responses that all have in common."""
    responses: dict[str, Any] = {}
    for code, meaning in CODES.items():
        schema = {"type": "object"} if code == "200" else ERROR
        content = {} if code == "401" else {"content": {"application/json": {"schema": schema}}}
        responses[code] = {"description": meaning, **content}
    return {"operationId": name, "summary": summary, "responses": responses}


def posted(name: str, summary: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """An operation with a body."""
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {**operation(name, summary), "requestBody": body}
