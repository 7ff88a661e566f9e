"""What a search among commits found, as lines: the commit first, then its author, the symptom and what it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canary_mlflow.bisecting.bisection import Bisection
from canary_mlflow.gates.model.wording import counted, listed
from canary_mlflow.reports.next_step import lasting

SHOWN = 5


def lines(found: Bisection) -> Iterator[str]:
    """The report for people."""
    commit = found.commit
    if commit is None:
        yield f"{found.outcome}  {found.why}"
    elif found.outcome == "BLOCK":
        yield f"BLOCK  {commit}"
        yield f"  {commit.author}, {commit.date}; commit {commit.sha}"
    else:
        between = [*found.skipped, commit]
        yield f"{found.outcome}  one of {counted(len(between), 'commit')}, as {found.why}"
        yield f"  {listed([*map(str, between)], SHOWN, clauses=True)}."
    if commit is not None:
        yield f"  Shows: {found.evidence}."
        yield f"  The last that does not: {found.last_good}."
        yield f"  Between: git diff {str(found.last_good)[:10]} {commit.sha[:10]}"
    untold = [step for step in found.steps if step.answer == "untestable" and step.trainings]
    for step in untold[:SHOWN]:
        yield f"  Skipped {step.commit}: {step.said}."
    if len(untold) > SHOWN:
        yield f"  and {len(untold) - SHOWN} more"
    for note in found.notes:
        yield f"  Note: {note}."
    if commit is not None:
        sure = f"a wrong answer has a chance of at most {found.chance:g}" if found.chance else "it repeats exactly"
        yield f"  {counted(found.commits, 'commit')}; {sure}."
    yield f"  {counted(found.trainings, 'training')}, {found.minutes:g} minutes."


def plan_lines(commits: int, least: int, most: int, minutes: float | None, notes: Sequence[str]) -> Iterator[str]:
    """What a dry run says. `minutes`: of one training; None if it is not known."""
    time = (
        f"about {lasting(least * minutes)} to {lasting(most * minutes)}"
        if minutes is not None
        else "how many minutes is known once GOOD has been trained"
    )
    yield (
        f"{counted(commits, 'commit')}: would make {least} trainings where what blocks repeats exactly, up to {most} "
        f"where it has noise; {time}."
    )
    for note in notes:
        yield f"Note: {note}."
