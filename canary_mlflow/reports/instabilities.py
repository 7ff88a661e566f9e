"""What went wrong in runs. One that several runs, or several streams of one run, show is said once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from canary_mlflow.reports.decision import RunWarning
from canary_mlflow.tracking.reading.facts import whole
from gates.watch import Level

SEED = "seed "


@dataclass(frozen=True, kw_only=True)
class Instability:
    """When, where, how bad, what was seen, what it usually means, what to try.

    `step`: None if only the end of a run shows it. `source`: who reports it.
    """

    run: str
    step: int | None
    stream: str
    level: str
    rule: str
    seen: str
    meaning: str
    advice: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """Instabilities of one rule with one meaning: the first of them, and all their streams and runs."""

    first: Instability
    streams: Sequence[str]
    runs: Sequence[str]

    @property
    def level(self) -> str:
        """How bad they are."""
        return self.first.level

    def said(self, *, explained: bool = True) -> str:
        """`seeds 0, 1: STOP loss from step 21: is nan. Usually: … Try: …`."""
        first = self.first
        where = f" {'at' if len(self.runs) == len(self.streams) == 1 else 'from'} step {first.step}"
        said = f"{who(self.runs)}: {first.level} {', '.join(self.streams)}{'' if first.step is None else where}"
        why = f" Usually: {first.meaning}. Try: {first.advice}." if explained else ""
        return f"{said}: {first.seen}.{why}"


def of_warnings(found: Iterable[RunWarning]) -> list[Group]:
    """The watch's warnings, grouped."""
    return grouped(Instability(run=one.run, source="", **one.warning.to_dict()) for one in found)  # type: ignore[arg-type]


def grouped(found: Iterable[Instability]) -> list[Group]:
    """The groups, the most serious first, then the earliest."""
    groups: dict[tuple[str, str, str], list[Instability]] = {}
    for one in found:
        groups.setdefault((one.level, one.rule, one.meaning), []).append(one)
    return sorted((_group(some) for some in groups.values()), key=lambda one: (-_rank(one.level), one.first.step or 0))


def _group(found: Sequence[Instability]) -> Group:
    first = min(found, key=lambda one: one.step or 0)
    streams = list(dict.fromkeys(one.stream for one in [first, *found]))
    return Group(first=first, streams=streams, runs=sorted({one.run for one in found}, key=_by_seed))


def _rank(level: str) -> int:
    return Level[level] if level in Level.__members__ else max(Level) + 1  # FAILED: the run's own end


def _by_seed(run: str) -> tuple[int, str]:
    number = whole(run.removeprefix(SEED))
    return (-1, run) if number is None else (number, "")


def who(runs: Sequence[str]) -> str:
    """`seed 1`, `seeds 0, 1, 2`, or the runs' names."""
    if len(runs) > 1 and all(run.startswith(SEED) for run in runs):
        return f"seeds {', '.join(run.removeprefix(SEED) for run in runs)}"
    return ", ".join(runs)
