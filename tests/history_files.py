"""Files of histories, written for tests, and what was read of them."""

from __future__ import annotations

import json
from pathlib import Path

from canary_mlflow.files.history import History


def write(folder: Path, name: str, body: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(body.encode() if isinstance(body, str) else body)
    return path


def lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def values(history: History, name: str) -> list[float]:
    return history.series[name].values.tolist()
