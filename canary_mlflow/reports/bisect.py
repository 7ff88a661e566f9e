"""What a search among commits found, as lines: the commit first, then its author, the symptom and what it rests on."""

from __future__ import annotations

from collections.abc import Iterator

from canary_mlflow.bisecting.bisection import Bisection
from canary_mlflow.gates.model.wording import counted, listed
from canary_mlflow.reports.next_step import lasting

SHOWN = 5


def lines(found: Bisection) -> Iterator[str]:
    """The report for people."""
    commit = found.commit
    if commit is None:
        yield f"{found.outcome}  {found.why}"
    else:
        between = listed([*map(str, (*found.skipped, commit))], SHOWN, clauses=True)
        several = f"one of {len(found.skipped) + 1} commits, as {found.why}: {between}"
        yield f"{found.outcome}  {several if found.skipped else commit}"
        yield f"  {commit.author}, {commit.date}; git diff {str(found.last_good)[:10]} {commit.sha[:10]}"
        yield f"  Shows: {found.evidence}."
        yield f"  The last that does not: {found.last_good}."
    untold = [f"{step.commit}: {step.said}" for step in found.steps if step.answer == "untestable" and step.trainings]
    if untold:
        yield f"  Skipped: {listed(untold, SHOWN, clauses=True)}."
    sure = f"; a wrong answer has a chance of at most {found.chance:g}" if found.chance else ""
    trainings = f"{counted(found.trainings, 'training')}, {found.minutes:g} minutes"
    yield f"  {counted(found.commits, 'commit')}, {trainings}{sure}."


def plan_line(commits: int, least: int, most: int, minutes: float | None) -> str:
    """What a dry run says. `minutes`: of one training; None if it is not known."""
    known = minutes is not None and f"{lasting(least * minutes)} to {lasting(most * minutes)}"
    return (
        f"{counted(commits, 'commit')}: would make {least} trainings where what blocks repeats exactly, about {most} "
        f"where it has noise; {known or 'how many minutes that takes is known once GOOD has been trained'}."
    )
