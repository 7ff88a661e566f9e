"""The study on a terminal: the verdict's report, then what only a study has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import IO

from rich.console import Group, RenderableType
from rich.text import Text

from canary_mlflow.reports import causes, figures, layer_drift, text
from canary_mlflow.reports.console import PLAIN_WIDTH, as_text, indented, labelled, print_on
from canary_mlflow.reports.study import Study
from canary_mlflow.shown import shown

SHOWN = 10  # lines of each list, unless all are asked for


def render(study: Study, *, width: int = PLAIN_WIDTH, full: bool = False) -> str:
    """The study as plain text of at most `width` columns."""
    return as_text(lambda columns: Group(*parts(study, columns, full=full)), width)


def show(study: Study, stream: IO[str], *, full: bool = False) -> None:
    """Print the study on a stream."""
    print_on(stream, lambda columns: Group(*parts(study, columns, full=full)))


def parts(study: Study, width: int, *, full: bool = False) -> Iterator[RenderableType]:
    """Verdict, instabilities, performance, layers, memory."""
    study = shown(study)
    if study.decision is None:
        yield Text.assemble(("NO VERDICT", "bold yellow"), "  ", (study.subject, "bold"))
        yield indented(study.no_verdict)
    else:
        yield from text.parts(replace(study.decision, warnings=()), width, full=full)  # they stand under `unstable`
    yield ""
    most = None if full else SHOWN
    yield from section("unstable", troubles(study), most)
    yield from section("speed", performance(study), most)
    yield from section("layers", layers(study, full=full), most)
    yield from section("memory", memory(study), most)
    yield from section("profile", profile(study), most)
    yield from section("notes", [*study.notes, *gone(study)], most)


def section(title: str, lines: Iterable[str], most: int | None) -> Iterator[RenderableType]:
    """A labelled list of at most `most` lines (None: all); nothing if it is empty."""
    found = list(lines)
    if found:
        yield labelled(title, "\n".join(found if most is None else text.cut(found, most)))


def troubles(study: Study) -> Iterator[str]:
    """What went wrong, by cause: when, what it means, what to try."""
    yield from (causes.sentence(one) for one in causes.causes(study.troubles))
    if not study.troubles:
        yield "nothing seen" if study.candidates else "no run to look at"


def performance(study: Study) -> Iterator[str]:
    """Each performance metric on both sides, or the candidate's alone."""
    for one in study.performance:
        now = figures.quantity(one.candidate, one.unit)
        if one.baseline is None:
            yield f"{one.metric}: {now}"
        else:
            by = figures.change(one.change, relative=True, unit="")
            yield f"{one.metric}: {figures.quantity(one.baseline, one.unit)} → {now} ({by})"


def layers(study: Study, *, full: bool) -> Iterator[str]:
    """How far the weights moved: all layers in a line, and each that stands out; with `full` each of them."""
    if said := layer_drift.summary(study.layer_drift):
        yield said
        shown = study.layer_drift if full else layer_drift.standing_out(study.layer_drift)
        yield from map(layer_drift.sentence, shown)


def memory(study: Study) -> Iterator[str]:
    """Peak memory by algorithm."""
    for one in study.memory.peaks:
        yield f"{one.algo.upper()}: peak {figures.quantity(one.median, 'MiB')} ({figures.counted(one.runs, 'run')})"
    yield from study.memory.said


def profile(study: Study) -> Iterator[str]:
    """The phases of a step, with the champion's share."""
    if study.profiled is None:
        return
    own, champion = study.profiled.profile, study.profiled.champion
    theirs = {cost.name: cost for cost in champion.phases} if champion else {}
    for cost in own.phases:
        there = f" (champion {theirs[cost.name].ms:.1f} ms)" if cost.name in theirs else ""
        yield f"{cost.name}: {cost.ms:.1f} ms, {own.share(cost):.0%} of a step{there}"
    yield f"operators, modules, trace: canary profile {study.candidates[0].run_id}"


def gone(study: Study) -> list[str]:
    """A sentence on the runs that are no longer in the store; empty if there are none."""
    return [f"No longer in the store: {', '.join(study.gone)}."] if study.gone else []
