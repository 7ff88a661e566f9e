"""What went wrong in runs: what the watch said while they ran, and how a run broke off.
What several runs, or several streams of one run, show is said once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from canary_mlflow.errors import StoreError
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.watch import Level, WatchWarning
from canary_mlflow.reports.decision import RunWarning
from canary_mlflow.tags import WATCH_WARNINGS
from canary_mlflow.tracking.reading.facts import count, warnings_in, whole

SEED = "seed "
# How a run broke off → what that usually means, what to try.
ENDINGS: Mapping[str, tuple[str, str]] = {
    "instability": (
        "the training itself went wrong: an overflow, a division by zero, a learning rate too high",
        "look at the last steps above; a lower learning rate, bf16 instead of fp16, clip gradients",
    ),
    "oom": ("more memory was asked for than there is", "a smaller batch, shorter sequences, gradient checkpointing"),
    "timeout": ("the run was slower than its tier allows, or hung", "look at step time and data wait; raise the limit"),
    "crash": ("the process died without saying why", "look at the run's log; run it again with the same seed"),
    "interrupted": ("somebody or something ended it from outside", "run it again: it says nothing about the change"),
    "error": ("an exception ended the training, or something outside", "fix what the reason names and run it again"),
}


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


def instabilities_of(run: str, found: Run, tags: Mapping[str, str]) -> list[Instability]:
    """The instabilities of one run, the earliest first, how it ended last."""
    try:
        warnings = warnings_in(tags)
    except StoreError:  # somebody else's tag
        warnings = ()
    listed = [instability(run, one) for one in sorted(warnings, key=lambda one: one.step)]
    return [*listed, *ending(run, found)]


def instability(run: str, warning: WatchWarning) -> Instability:
    """A warning of the watch."""
    return Instability(run=run, source="reported while it ran", **warning.to_dict())  # type: ignore[arg-type]


def ending(run: str, found: Run) -> Iterator[Instability]:
    """How the run broke off, if it did."""
    if found.failure:
        meaning, advice = ENDINGS.get(found.failure, ("", ""))
        yield Instability(
            run=run,
            step=found.last_step or None,
            stream="run",
            level="FAILED",
            rule=found.failure,
            seen=found.failure_reason or f"ended as {found.failure}",
            meaning=meaning or "a kind of end that this version does not know",
            advice=advice or "look at the run's log",
            source="recorded with the run",
        )


def unlisted(run: str, tags: Mapping[str, str], listed: int) -> str:
    """That a run was warned more often than its tag tells; empty where it was not."""
    more = count(tags.get(WATCH_WARNINGS, "")) - listed
    return f"{run}: {more} further warnings in warnings.jsonl, among its artifacts." if more > 0 else ""
