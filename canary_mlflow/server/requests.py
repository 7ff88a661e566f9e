"""What a client may send: checked before anything is looked up."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.files.documents import parse_json
from canary_mlflow.files.source import TooMuch

LONGEST = {"model": 256, "pattern": 256, "alias": 255, "reason": 500, "policy": 100, "weights": 10, "failure": 500,
           "session": 64, "run": 64, "word": 10, "artifact": 100}  # fmt: skip
NAME = re.compile(r"[A-Za-z0-9_./@-]{1,100}")
SWITCHES = {"promote": "promotion over an older champion alone", "by_plan": "false", "without_weights": "false"}
LEAST = {"keep": 1, "older_than": 0}
MOST_NUMBER = 1_000_000
WEIGHTS = ("files", "none")
WORDS = ("begun", "ordered", "ended")
BODY_BYTES = 65_536  # a policy has 7,000
MOST_VERSIONS = 2**31 - 1  # the column is an Integer


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
    if key in LEAST:
        return number(key, value)
    if key == "evaluation":
        return evaluation(value)
    if key == "content":
        if not isinstance(value, dict):
            raise UsageError("content: no object; expected every key of a policy; see openapi.json")
        return value
    if key == "weights" and value not in WEIGHTS:
        raise UsageError(f"weights: neither of {', '.join(WEIGHTS)}; expected one; leave it out for files")
    if key == "word" and value not in WORDS:
        raise UsageError(f"word: neither of {', '.join(WORDS)}; expected one; see openapi.json")
    return text(key, value)


def evaluation(value: Any) -> dict[str, Any]:
    """What a run found when it evaluated its saved weights; the ledger row says that this is the run's claim."""
    known: dict[str, type | tuple[type, ...]]
    known = {"recorded": dict, "repeated": dict, "different": list, "failure": str, "tolerance": (int, float),
             "artifact": str}  # fmt: skip
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
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise UsageError("evaluation: a name with other characters; expected e.g. eval_loss; see openapi.json")
    for name in {"failure", "artifact"} & value.keys():
        text(name, value[name])
    return value


def number(key: str, value: Any) -> Any:
    """A number within its limits; a whole one for `keep`. Raises UsageError."""
    fits = is_number(value) and LEAST[key] <= value <= MOST_NUMBER and (key != "keep" or value == int(value))
    if not fits:
        raise UsageError(f"{key}: no number from {LEAST[key]} to {MOST_NUMBER}; expected one; see openapi.json")
    return int(value) if key == "keep" else float(value)


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


def text(key: str, value: Any) -> str:
    """A text that a database can hold and a person can read. Raises UsageError."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{key}: no text; expected 1 to {LONGEST[key]} characters; give one")
    if len(value) > LONGEST[key]:
        raise UsageError(f"{key}: {len(value)} characters; expected at most {LONGEST[key]}; shorten it")
    if not value.isprintable():
        raise UsageError(f"{key}: characters that cannot be printed; expected a line of text; leave them out")
    return value


def printable(key: str) -> str:
    """A client's key in ASCII, at most 40 characters of it, safe to repeat in an answer."""
    return ascii(key[:40])


def only_model(arguments: Mapping[str, str]) -> str | None:
    """The model that is asked about; None if none is named. Raises UsageError."""
    for key in arguments:
        if key != "model":
            raise UsageError(f"query: unknown key {printable(key)}; expected model; leave it out")
    return text("model", arguments["model"]) if "model" in arguments else None


@dataclass(frozen=True, kw_only=True)
class Query:
    """Which rows of the ledger: of a model, of its version, or all; at most `limit` after row `after`."""

    model: str | None
    version: int | None
    after: int
    limit: int


def query(arguments: Mapping[str, str]) -> Query:
    """What is asked of the ledger. Raises UsageError."""
    known = ("model", "version", "after", "limit")
    for key in arguments:
        if key not in known:
            raise UsageError(f"query: unknown key {printable(key)}; expected {', '.join(known)}; leave it out")
    model = text("model", arguments["model"]) if "model" in arguments else None
    if "version" in arguments and model is None:
        raise UsageError("query: a version without its model; expected both; add model")
    numbers = []
    for key, usual, most in (("after", "0", MOST_VERSIONS), ("limit", "1000", 10_000)):
        given = arguments.get(key, usual)
        if not (given.isascii() and given.isdigit() and len(given) < 11 and int(given) <= most):
            raise UsageError(f"{key}: no number up to {most}; expected one; leave it out for {usual}")
        numbers.append(int(given))
    of_version = int(version(arguments["version"])) if "version" in arguments else None
    return Query(model=model, version=of_version, after=numbers[0], limit=numbers[1])
