"""Warnings by cause: a warning from several runs, or from several streams of one run, is shown once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from canary_mlflow.reports.decision import RunWarning
from canary_mlflow.reports.study import Trouble
from canary_mlflow.tracking.reading.numbers import whole
from gates.watch import Level

SEED = "seed "


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What one rule said about these runs and streams, in the words of its first warning."""

    level: str
    rule: str
    streams: Sequence[str]
    step: int | None
    seen: str
    meaning: str
    advice: str
    runs: Sequence[str]


def of_warnings(found: Iterable[RunWarning]) -> list[Cause]:
    """The causes of the watch's warnings, the most serious first."""
    return causes(Trouble(run=one.run, source="", **one.warning.to_dict()) for one in found)  # type: ignore[arg-type]


def causes(found: Iterable[Trouble]) -> list[Cause]:
    """The causes, the most serious first, then the earliest."""
    groups: dict[tuple[str, str, str], list[Trouble]] = {}
    for one in found:
        groups.setdefault((one.level, one.rule, one.meaning), []).append(one)
    return sorted((_cause(group) for group in groups.values()), key=lambda one: (-_rank(one.level), one.step or 0))


def _cause(group: Sequence[Trouble]) -> Cause:
    first = min(group, key=lambda one: one.step or 0)
    return Cause(
        level=first.level,
        rule=first.rule,
        streams=list(dict.fromkeys(one.stream for one in [first, *group])),
        step=first.step,
        seen=first.seen,
        meaning=first.meaning,
        advice=first.advice,
        runs=sorted({one.run for one in group}, key=_by_seed),
    )


def _rank(level: str) -> int:
    return Level[level] if level in Level.__members__ else max(Level) + 1  # FAILED: the run's own end


def _by_seed(run: str) -> tuple[int, str]:
    number = whole(run.removeprefix(SEED))
    return (-1, run) if number is None else (number, "")


def sentence(cause: Cause, *, explained: bool = True) -> str:
    """`seeds 0, 1: STOP loss from step 21: is nan. Usually: … Try: …`."""
    where = (
        ""
        if cause.step is None
        else f" {'at' if len(cause.runs) == len(cause.streams) == 1 else 'from'} step {cause.step}"
    )
    said = f"{who(cause.runs)}: {cause.level} {', '.join(cause.streams)}{where}: {cause.seen}."
    return f"{said} Usually: {cause.meaning}. Try: {cause.advice}." if explained else said


def who(runs: Sequence[str]) -> str:
    """`seed 1`, `seeds 0, 1, 2`, or the runs' names."""
    if len(runs) > 1 and all(run.startswith(SEED) for run in runs):
        return f"seeds {', '.join(run.removeprefix(SEED) for run in runs)}"
    return ", ".join(runs)
