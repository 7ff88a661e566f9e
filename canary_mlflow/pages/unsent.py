"""The newest rows of a run that goes on, from the file that it writes beside sending them.

A training sends its rows to the store every ten seconds, because sending slows it down. It writes them to
stability.jsonl within a fifth of a second; a server that can read this file shows them as early as that.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from canary_mlflow import tags
from canary_mlflow.files.documents import parse_json
from canary_mlflow.files.source import open_regular
from canary_mlflow.registry.guard.server_files import behind_server
from canary_mlflow.tracking.describing.schema import mlflow_key
from canary_mlflow.tracking.reading.facts import Latest, RunFacts
from canary_mlflow.tracking.reading.points import Points
from canary_mlflow.tracking.sinks.jsonl import FIELDS, NAME
from canary_mlflow.tracking.stores.places import local_folder
from gates.model.metrics import METRICS

TAIL = 1 << 18  # bytes at the end of the file that are looked at: some ten seconds of the fastest training
MANY = 1 << 53  # steps; a float has no room for more
WORDS = ("NaN", "Infinity", "-Infinity")  # as tracking/delivery/lines.py writes what JSON cannot


def unsent(run: RunFacts) -> dict[str, Points]:
    """The points by MLflow key after the last step that the store has; empty if the run has ended, or its file cannot
    be read here."""
    if not run.running:
        return {}
    place = local_folder(behind_server(run.artifacts)) if run.artifacts else None
    if place is None:
        return {}
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for step, moment, row in rows_after(run.step, tail(place)):
        for name, value in values_of(row, run.tags.get(tags.ALGO, "")):
            found[mlflow_key(name)].append((step, moment, value))
    return {key: np.array(rows[::-1], dtype=np.float64) for key, rows in found.items()}


def up_to_date(run: RunFacts) -> RunFacts:
    """The run with its newest rows, so that its page has one clock."""
    last = ((key, max(rows.tolist())) for key, rows in unsent(run).items())
    news = {key: Latest(step=int(step), timestamp=int(moment), value=value) for key, (step, moment, value) in last}
    return replace(run, latest={**run.latest, **news})


def tail(folder: Path) -> list[bytes]:
    """The last whole lines of the file; none if it cannot be read."""
    try:
        with open_regular(folder / NAME, within=folder) as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            return file.read().split(b"\n")[:-1]
    except OSError:
        return []


def rows_after(step: int, lines: list[bytes]) -> Iterator[tuple[int, float, dict[str, Any]]]:
    """(step, ms, row) of each later step, the last first, up to the first line that is none."""
    for line in reversed(lines):
        try:
            row = parse_json(line)
            number, moment = int(row["step"]), datetime.fromisoformat(row["timestamp"]).timestamp() * 1000
        except (ValueError, KeyError, TypeError, OverflowError):
            return
        if not step < number < MANY:
            return
        yield number, moment, row


def values_of(row: Mapping[str, Any], algo: str) -> Iterator[tuple[str, float]]:
    """(canonical name, value) of each series of a row."""
    for field, value in row.items():
        name = FIELDS.get(field, field)
        if name not in METRICS or (algo == "ppo" and name == "tokens_per_second"):  # there of another meaning
            continue
        if value in WORDS or (isinstance(value, int | float) and abs(value) <= sys.float_info.max):
            yield name, float(value)
