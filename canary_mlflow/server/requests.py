"""What a client may send: checked before anything is looked up."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.files.documents import parse_json
from canary_mlflow.files.source import TooMuch
from canary_mlflow.registry.actors import REASON_LIMIT

BODY_BYTES = 65_536  # a policy has 7,000
MOST_VERSIONS = 2**31 - 1  # the column is an Integer
NAME = "^[A-Za-z0-9_./@-]{1,100}$"
SWITCHES = {"promote": "promotion over an older champion alone", "by_plan": "false", "without_weights": "false"}


def line(most: int) -> dict[str, Any]:
    """A line of text, in JSON Schema."""
    return {"type": "string", "minLength": 1, "maxLength": most}


NUMBERS = {"type": "object", "propertyNames": {"pattern": NAME}, "additionalProperties": {"type": ["number", "null"]}}
EVALUATION = {
    "recorded": NUMBERS,
    "repeated": NUMBERS,
    "different": {"type": "array", "items": {"type": "string", "pattern": NAME}},
    "failure": line(REASON_LIMIT),
    "tolerance": {"type": "number"},
    "artifact": line(100),
}
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "number": (int, float)
}  # fmt: skip
FIELDS: dict[str, dict[str, Any]] = {
    "model": line(256),
    "version": {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[1-9][0-9]{0,9}$"}]},
    "pattern": line(256),
    "policy": line(100),
    "content": {"type": "object"},
    "reason": line(REASON_LIMIT),
    "alias": line(255),
    "weights": {"type": "string", "enum": ["files", "none"]},
    "evaluation": {"type": "object", "properties": EVALUATION, "additionalProperties": False},
    "session": line(64),
    "row_or_run": line(64),
    "run": line(64),
    "word": {"type": "string", "enum": ["begun", "ordered", "ended"]},
    **{name: {"type": "boolean"} for name in SWITCHES},
    "keep": {"type": "integer", "minimum": 1, "maximum": 1_000_000},
    "older_than": {"type": "number", "minimum": 0, "maximum": 1_000_000},
    "after": {"type": "integer", "minimum": 0, "maximum": MOST_VERSIONS},
    "limit": {"type": "integer", "minimum": 0, "maximum": 10_000},
}
"""Everything that may be sent, in JSON Schema: what is checked here and what the routes' description says."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The keys of a body: those that it must have, and those that it may have."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


def parse(body: bytes, shape: Shape) -> dict[str, Any]:
    """The body as checked values. Raises UsageError in one line."""
    if len(body) > BODY_BYTES:
        raise UsageError(f"body: {len(body)} bytes; expected at most {BODY_BYTES}; shorten it")
    try:
        found = parse_json(body)
    except TooMuch as error:
        raise UsageError(f"body: {error}; see openapi.json") from error
    except ValueError as error:
        raise UsageError("body: no JSON; expected an object; see openapi.json") from error
    if not isinstance(found, dict):
        raise UsageError(f"body: {type(found).__name__}; expected an object; see openapi.json")
    known = (*shape.required, *shape.optional)
    for key in found:
        if key not in known:
            raise UsageError(f"body: unknown key {printable(key)}; expected {', '.join(known)}; leave it out")
    for key in shape.required:
        if key not in found:
            raise UsageError(f"body: no {key}; expected {', '.join(shape.required)}; add it")
    return {key: checked(key, value) for key, value in found.items()}


def checked(key: str, value: Any) -> Any:
    """One checked value. Raises UsageError."""
    if key == "version":
        return version(value)
    if key in SWITCHES:
        if not isinstance(value, bool):
            raise UsageError(f"{key}: no boolean; expected true or false; leave it out for {SWITCHES[key]}")
        return value
    if FIELDS[key].get("type") in ("integer", "number"):
        return number(key, value)
    if key == "evaluation":
        return evaluation(value)
    if key == "content":
        if not isinstance(value, dict):
            raise UsageError("content: no object; expected every key of a policy; see openapi.json")
        return value
    if (allowed := FIELDS[key].get("enum")) is not None:
        if value not in allowed:
            instead = "leave it out for files" if key == "weights" else "see openapi.json"
            raise UsageError(f"{key}: neither of {', '.join(allowed)}; expected one; {instead}")
        return value
    return text(key, value, FIELDS[key]["maxLength"])


def evaluation(value: Any) -> dict[str, Any]:
    """What a run found when it evaluated its saved weights; the ledger row says that this is the run's claim."""
    known = {name: TYPES[schema["type"]] for name, schema in EVALUATION.items()}
    if not isinstance(value, dict):
        raise UsageError(f"evaluation: no object; expected {', '.join(known)}; see openapi.json")
    for key, found in value.items():
        if key not in known or isinstance(found, bool) or not isinstance(found, known[key]):
            raise UsageError(f"evaluation: {printable(key)} is unknown or of another type; expected {', '.join(known)}")
    for name, number in [pair for side in ("recorded", "repeated") for pair in value.get(side, {}).items()]:
        if not (number is None or is_number(number)):
            raise UsageError(f"evaluation: {printable(name)} is not a number; expected one, or null; see openapi.json")
    if not is_number(value.get("tolerance", 0)):
        raise UsageError("evaluation: tolerance is not a number; expected one; see openapi.json")
    names = [*value.get("recorded", {}), *value.get("repeated", {}), *value.get("different", ())]
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(NAME[1:-1], name):
            raise UsageError("evaluation: a name with other characters; expected e.g. eval_loss; see openapi.json")
    for name in {"failure", "artifact"} & value.keys():
        text(name, value[name], EVALUATION[name]["maxLength"])
    return value


def number(key: str, value: Any) -> Any:
    """A number within its limits. Raises UsageError."""
    least, most, whole = FIELDS[key]["minimum"], FIELDS[key]["maximum"], FIELDS[key]["type"] == "integer"
    if not (is_number(value) and least <= value <= most and (not whole or value == int(value))):
        raise UsageError(f"{key}: no number from {least} to {most}; expected one; see openapi.json")
    return int(value) if whole else float(value)


def is_number(value: Any) -> bool:
    """Whether a value is a number that a row can hold and a page can show; JSON readers accept NaN and any size."""
    try:
        return type(value) in (int, float) and math.isfinite(float(value))
    except OverflowError:
        return False


def version(value: Any) -> str:
    """A version number as text. Raises UsageError."""
    if isinstance(value, float) and value.is_integer():  # JSON has one kind of number: 3.0 is an integer
        value = int(value)
    number = value if isinstance(value, str) else str(value) if type(value) is int else ""
    if not (number.isascii() and number.isdigit() and len(number) < 11 and 0 < int(number) <= MOST_VERSIONS):
        raise UsageError("version: no version number; expected one such as 3; see the model's page")
    return str(int(number))


def text(key: str, value: Any, most: int) -> str:
    """A text that a database can hold and a person can read. Raises UsageError."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{key}: no text; expected 1 to {most} characters; give one")
    if len(value) > most:
        raise UsageError(f"{key}: {len(value)} characters; expected at most {most}; shorten it")
    if not value.isprintable():
        raise UsageError(f"{key}: characters that cannot be printed; expected a line of text; leave them out")
    return value


def printable(key: str) -> str:
    """A client's key in ASCII, at most 40 characters of it, safe to repeat in an answer."""
    return ascii(key[:40])


LEDGER = ("model", "version", "after", "limit")


@dataclass(frozen=True, kw_only=True)
class Query:
    """Which rows of the ledger: of a model, of its version, or all; at most `limit` after row `after`."""

    model: str | None
    version: int | None
    after: int
    limit: int


def only_model(arguments: Mapping[str, str]) -> str | None:
    """The model that is asked about; None if none is named. Raises UsageError."""
    return model_in(arguments, ("model",))


def model_in(arguments: Mapping[str, str], known: Sequence[str]) -> str | None:
    """The same in a query that may have other keys too."""
    for key in arguments:
        if key not in known:
            raise UsageError(f"query: unknown key {printable(key)}; expected {', '.join(known)}; leave it out")
    return checked("model", arguments["model"]) if "model" in arguments else None


def query(arguments: Mapping[str, str]) -> Query:
    """What is asked of the ledger. Raises UsageError."""
    model = model_in(arguments, LEDGER)
    if "version" in arguments and model is None:
        raise UsageError("query: a version without its model; expected both; add model")
    numbers = []
    for key, usual in (("after", "0"), ("limit", "1000")):
        given, most = arguments.get(key, usual), FIELDS[key]["maximum"]
        if not (given.isascii() and given.isdigit() and len(given) < 11 and int(given) <= most):
            raise UsageError(f"{key}: no number up to {most}; expected one; leave it out for {usual}")
        numbers.append(int(given))
    of_version = int(version(arguments["version"])) if "version" in arguments else None
    return Query(model=model, version=of_version, after=numbers[0], limit=numbers[1])
