"""A file of an evaluation harness, untrusted: whole JSON, rows of JSONL or CSV, or the parts of a zip."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.files.documents import parse_json
from canary_mlflow.files.source import MAX_ROWS, open_regular
from canary_mlflow.files.text import opened, rest_of

WHAT = "an evaluation's results"


class EvalFile:
    """One file as its readers see it. `kind`: json, jsonl, csv, eval …, from its name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kind = (path.with_suffix("") if path.suffix == ".gz" else path).suffix.removeprefix(".")

    @cached_property
    def value(self) -> Mapping[str, Any]:
        """The object that a JSON file holds; empty for any other file. Raises UsageError."""
        if self.kind != "json":
            return {}
        with opened(self.path, what=WHAT) as text:
            found = self._parsed(rest_of(text))
        return found if isinstance(found, dict) else {}

    def rows(self) -> Iterator[dict[str, Any]]:
        """The objects of JSONL, or the rows of CSV with its header's names. Raises UsageError."""
        with opened(self.path, what=WHAT) as text:
            lines = enumerate((line for line in text if not line.isspace()), 1)
            rows = csv.DictReader(text) if self.kind == "csv" else (self._parsed(line, at) for at, line in lines)
            for number, row in enumerate(rows, 1):
                if not isinstance(row, dict) or number > MAX_ROWS:
                    found = f"more than {MAX_ROWS:,} rows" if isinstance(row, dict) else f"line {number} is no object"
                    raise UsageError(f"{self.path}: {found}; expected one object per item; fix or split it")
                yield row

    @cached_property
    def first(self) -> Mapping[str, Any]:
        """The first row; empty for a file without rows."""
        return next(self.rows(), {}) if self.kind in ("jsonl", "csv") else {}

    def beside(self, name: str) -> EvalFile | None:
        """The file of this name in the same folder, or gzipped; None if there is none."""
        paths = (self.path.parent / name, self.path.parent / f"{name}.gz")
        found = next((path for path in paths if "/" not in name and path.is_file()), None)
        return EvalFile(found) if found else None

    def digest(self) -> str:
        """The SHA-256 of its bytes."""
        with open_regular(self.path) as raw:
            return hashlib.file_digest(raw, "sha256").hexdigest()

    def _parsed(self, text: str, line: int = 0) -> Any:
        try:
            return parse_json(text)
        except ValueError as error:
            where = f": line {line}" if line else ""
            raise UsageError(
                f"{self.path}{where}: no readable JSON ({error}); expected {WHAT}; copy it again"
            ) from None


def digest(*parts: object) -> str:
    """A short digest of JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def at(record: object, path: str) -> Any:
    """The value at a path of keys, such as doc.passage; None if there is none."""
    for key in path.split("."):
        record = record.get(key) if isinstance(record, Mapping) else None
    return record
