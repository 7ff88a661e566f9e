"""The JSON schemas of what commands print with --json, in files beside this one: NAME-VERSION.json.

Within a version, keys may be added and nothing else changes: readers ignore keys that they do not know. Other changes
make a new file with the next version, and the old one stays. `schema` in an output names its schema; a list has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from canary_mlflow.errors import UsageError

FOLDER = Path(__file__).parent
PRINTED: dict[str, tuple[int, tuple[str, ...]]] = {
    "decision": (1, ("gate", "compare", "judge", "ab", "evals compare")),
    "report": (1, ("report",)),
    "diff": (1, ("diff",)),
    "samples": (1, ("samples",)),
    "replay": (1, ("replay",)),
    "import": (1, ("import",)),
    "calibration": (1, ("calibrate",)),
    "power-table": (1, ("power",)),
    "bisect": (1, ("bisect",)),
    "bisect-plan": (1, ("bisect",)),
    "upgrade": (1, ("upgrade",)),
    "upgrade-plan": (1, ("upgrade",)),
    "revisions-plan": (1, ("ab",)),
    "act": (1, ("bless", "override", "rollback", "adopt")),
    "request": (1, ("override",)),
    "acceptance": (1, ("accept-facts",)),
    "plan": (1, ("plan",)),
    "profile": (1, ("profile",)),
    "reward-check": (1, ("check-reward",)),
    "environment": (1, ("env",)),
    "doctor": (1, ("doctor",)),
    "pruning": (1, ("prune",)),
    "evals": (1, ("evals show",)),
}
"""Name → its newest version, and the commands that print it."""


def urn(name: str) -> str:
    """The value of `schema` in an output: `urn:canary-mlflow:schema:decision:1`."""
    return f"urn:canary-mlflow:schema:{name}:{PRINTED[name][0]}"


def stamped(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """An output with the name of its schema as its first key."""
    return {"schema": urn(name), **value}


def read(word: str) -> dict[str, Any]:
    """The schema NAME, NAME/VERSION, or the one that a command prints. Raises UsageError."""
    name, slash, version = word.removeprefix("canary ").partition("/")
    found = name if name in PRINTED else next((one for one, (_, by) in PRINTED.items() if name in by), "")
    if not found:
        raise UsageError(f"{word}: no schema; expected one of {', '.join(PRINTED)}, or a command that prints one")
    known = sorted(int(file.stem.rpartition("-")[2]) for file in FOLDER.glob(f"{found}-[0-9]*.json"))
    if slash and version not in map(str, known):
        raise UsageError(f"{word}: no such version; expected {' or '.join(f'{found}/{one}' for one in known)}")
    file = FOLDER / f"{found}-{version or PRINTED[found][0]}.json"
    schema: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return schema
