"""The items that a run sends to its store: values that wait in a queue, or in a file, until they are delivered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from canary_mlflow.tracking.delivery.lines import to_json


class Sample(NamedTuple):
    """One row of metrics. Its timestamp is taken once, so that a store recognises a row that is sent twice. Made at
    each step, and a named tuple is made four times as fast as a frozen dataclass."""

    timestamp: int  # ms since the epoch
    step: int
    values: Mapping[str, float]  # canonical name → value

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        metrics = {name: to_json(value) for name, value in self.values.items()}
        return {"timestamp": self.timestamp, "step": self.step, "metrics": metrics}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tags:
    """Tags of the run."""

    tags: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"tags": dict(self.tags)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """An artifact with its content."""

    name: str
    content: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"artifact": self.name, "content": self.content}


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """An artifact that lies in a file; `remove`: delete the file once the store has it."""

    path: Path
    remove: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"file": str(self.path.absolute()), "remove": self.remove}


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """The run's end: FINISHED or FAILED."""

    status: str
    end_time: int  # ms since the epoch

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"status": self.status, "end_time": self.end_time}


Item = Sample | Tags | Text | File | Status


def from_dict(content: Mapping[str, Any]) -> Item:
    """The inverse of `to_dict`. Raises KeyError, TypeError or ValueError for anything else."""
    if "metrics" in content:
        values = {str(name): float(value) for name, value in content["metrics"].items()}
        return Sample(timestamp=int(content["timestamp"]), step=int(content["step"]), values=values)
    if "tags" in content:
        return Tags(tags={str(name): str(value) for name, value in content["tags"].items()})
    if "content" in content:
        return Text(name=str(content["artifact"]), content=str(content["content"]))
    if "file" in content:
        return File(path=Path(content["file"]), remove=bool(content["remove"]))
    return Status(status=str(content["status"]), end_time=int(content["end_time"]))


def values_in(item: Item) -> int:
    """How many values of metrics an item holds."""
    return len(item.values) if isinstance(item, Sample) else 0
