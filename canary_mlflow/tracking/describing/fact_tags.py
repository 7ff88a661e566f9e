"""The exact facts of a run as its tags: one JSON object per group. Loads no torch."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from canary_mlflow.tags import DATA, FACTS

LONGEST_VALUE = 300  # characters; a longer one is kept as its beginning and a digest
LONGEST_TABLE = 5000
"""As LONGEST_VALUE, of a table in JSON, whose parts are compared."""
LONGEST_TAG = 7500  # characters; MLflow refuses more than 8000, or cuts them, and what is left is not JSON
DIGITS = 16

_PART = re.compile(r"\.\d+$")


def to_tags(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Group → key → value, as tags. What does not fit into one tag goes on in the next, `<group>.2` and so on."""
    found: dict[str, str] = {}
    for group, facts in groups.items():
        parts: list[dict[str, str]] = [{}]
        for key, value in facts.items():
            if len(json.dumps({**parts[-1], key: as_text(value)})) > LONGEST_TAG:
                parts.append({})
            parts[-1][key] = as_text(value)
        tags = (f"{FACTS}{group}.{at}" if at > 1 else FACTS + group for at in range(1, len(parts) + 1))
        found |= {tag: json.dumps(part) for tag, part in zip(tags, parts, strict=True) if part}
    return found


def facts_in(tags: Mapping[str, str]) -> dict[str, str]:
    """The inverse, over all groups; a tag that is not a JSON object is ignored. {} for a run that recorded no facts."""
    found = {f"{group}.{key}": value for group, facts in _objects(tags) for key, value in sorted(facts.items())}
    if found:
        rows = (name for name in sorted(tags) if name.startswith(DATA))
        found |= {f"data.{name.removeprefix(DATA)}": tags[name] for name in rows}
    return found


def as_text(value: object) -> str:
    """A value as it is stored and compared."""
    if isinstance(value, (set, frozenset)):
        value = sorted(map(str, value))
    readable = jsonable(value)
    text = readable if isinstance(readable, str) else json.dumps(readable, sort_keys=True)
    longest = LONGEST_TABLE if text.startswith("[{") else LONGEST_VALUE
    return text if len(text) <= longest else f"{text[:LONGEST_VALUE]}… {digest(text)}"


def digest(text: str) -> str:
    """A short name of a text."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGITS]


def _objects(tags: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    for name in sorted(tags):
        if not name.startswith(FACTS):
            continue
        try:
            found = json.loads(tags[name])
        except ValueError:
            continue
        if isinstance(found, dict):
            yield _PART.sub("", name.removeprefix(FACTS)), {str(key): str(value) for key, value in found.items()}


def jsonable(value: Any) -> Any:
    """The same value with every non-finite number as None, and sets in order."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
