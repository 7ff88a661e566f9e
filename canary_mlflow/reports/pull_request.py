"""The study as Markdown for a pull request: the verdict card, with everything else folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from canary_mlflow.reports import causes, figures, markdown
from canary_mlflow.reports.card import card_of
from canary_mlflow.reports.markdown import escape
from canary_mlflow.reports.study import Study
from canary_mlflow.shown import shown

SHOWN = 12  # instabilities


def render(study: Study) -> str:
    """The whole comment; far below GitHub's 65,536 characters."""
    return "\n".join(lines(study)) + "\n"


def lines(study: Study) -> Iterator[str]:
    """The card, then the folded parts."""
    study = shown(study)
    decision = study.decision
    if decision is None:
        yield f"**No verdict** {escape(study.subject)}"
        yield ""
        yield escape(study.no_verdict)
    else:
        yield from markdown.card_lines(card_of(decision))
        yield from folded("Evidence", evidence(study))
    yield from folded(f"Instabilities: {len(study.troubles)}", troubles(study))
    if not study.troubles:
        yield from ("", "No instability was seen." if study.candidates else "No run to look at.")
    yield from folded("Performance", performance(study))
    yield from folded("Peak memory by algorithm", memory(study))
    yield from (f"- {escape(note)}" for note in study.notes)


def folded(title: str, body: Iterable[str]) -> Iterator[str]:
    """A part that opens on a click; nothing if it is empty."""
    found = list(body)
    if found:
        yield from ("", f"<details><summary>{escape(title)}</summary>", "", *found, "", "</details>", "")


def evidence(study: Study) -> Iterator[str]:
    """What the report of a version says below its card."""
    assert study.decision is not None
    without = replace(study.decision, warnings=())  # they stand under the instabilities
    yield from markdown.details(without)


def troubles(study: Study) -> Iterator[str]:
    """What went wrong, by cause: when, what it means, what to try."""
    found = causes.causes(study.troubles)
    yield from (f"- {escape(causes.sentence(one))}" for one in found[:SHOWN])
    if len(found) > SHOWN:
        yield f"- and {len(found) - SHOWN} more in the report"


def performance(study: Study) -> Iterator[str]:
    """The performance metrics of both sides."""
    if not study.performance:
        return
    yield "| metric | baseline | candidate | change |"
    yield "|---|---:|---:|---:|"
    for one in study.performance:
        before, now = figures.quantity(one.baseline, one.unit), figures.quantity(one.candidate, one.unit)
        yield f"| {escape(one.metric)} | {before} | {now} | {figures.change(one.change, relative=True, unit='')} |"


def memory(study: Study) -> Iterator[str]:
    """Peak memory by algorithm."""
    if study.memory.peaks:
        yield f"| {escape(study.memory.like)} | peak memory, median | range | runs |"
        yield "|---|---:|---:|---:|"
    for one in study.memory.peaks:
        middle, low, high = (figures.quantity(value, "MiB") for value in (one.median, one.lowest, one.highest))
        yield f"| {escape(one.algo.upper())} | {middle} | {low} to {high} | {one.runs} |"
    if study.memory.said:
        yield ""
        yield escape(" ".join(study.memory.said))
