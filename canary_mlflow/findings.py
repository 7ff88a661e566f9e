"""One thing that was looked at on this machine, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """How bad it is: FAIL keeps something from working, WARN may."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was looked at, what was found, and what to do (empty when all is well)."""

    name: str
    level: Level
    found: str
    advice: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def line(finding: Finding) -> tuple[str, dict[str, Any]]:
    """A finding as one line of text, and its style."""
    advice = f"; {finding.advice}" if finding.advice else ""
    colour = {Level.OK: None, Level.WARN: "yellow", Level.FAIL: "red"}[finding.level]
    return f"{finding.level:<4}  {finding.name:<9}  {finding.found}{advice}", {"fg": colour}
