"""What the watch says: levels, findings of single detectors, warnings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol


class Level(IntEnum):
    """WARN: look at it. CRITICAL: the run is probably lost. STOP: it is lost."""

    WARN = 1
    CRITICAL = 2
    STOP = 3


class Detection(NamedTuple):
    """What one detector sees at one row: how bad it is, and what was measured."""

    level: Level
    seen: str


class Detector(Protocol):
    """One rule on one stream of one run; keeps a state of constant size."""

    __slots__ = ()
    rule: str

    def update(self, step: int, value: float) -> Detection | None:
        """Take the next value; return what is wrong for as long as it is wrong."""

    def rests(self) -> bool:
        """Whether it will find nothing any more in finite values, nor at the end: it need not be shown them."""
        return False

    def finish(self, completed: bool) -> Detection | None:
        """Return what only the end of the run shows, for most rules nothing. `completed`: it ended as planned."""
        return None


@dataclass(frozen=True, kw_only=True)
class WatchWarning:
    """One warning: when, where, how bad, by which rule, what was seen, what it usually means, what to try."""

    step: int
    stream: str
    level: Level
    rule: str
    seen: str
    meaning: str
    advice: str

    def to_dict(self) -> dict[str, object]:
        """The warning as plain values, for JSON."""
        return {**vars(self), "level": self.level.name}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> WatchWarning:
        """The inverse of `to_dict`. Raises KeyError or TypeError for anything else."""
        return cls(**{**found, "level": Level[found["level"]]})
