"""The answers of a page's runs beside the champion's, read from the runs' own folders and never fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from canary_mlflow.errors import UsageError
from canary_mlflow.files.source import read_bytes
from canary_mlflow.pages.requests import folder_of
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.reading.samples import FILE, MOST_BYTES, Answer, read


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One fixed prompt: the first and the last answer of the run, and the champion's last, each with its name."""

    prompt: str
    answers: Sequence[tuple[str, Answer]]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """One run's answers: to fixed prompts, and the best and worst by reward at the last step that has some."""

    name: str
    fixed: Sequence[Asked]
    worst: Sequence[Answer]
    best: Sequence[Answer]


def answers_of(runs: Sequence[tuple[str, RunFacts]], champion: Sequence[RunFacts]) -> list[Answers]:
    """The answers of each (name, run) that has a table; a table that cannot be read is left out."""
    theirs = next((found for run in champion if (found := table(run))), [])
    last = {one.prompt: one for one in theirs if one.kind == "fixed"}
    made = []
    for name, run in runs:
        if not (found := table(run)):
            continue
        fixed: dict[str, list[Answer]] = {}
        for one in found:
            if one.kind == "fixed":
                fixed.setdefault(one.prompt, []).append(one)
        asked = [Asked(prompt=prompt, answers=spread(own, last.get(prompt))) for prompt, own in fixed.items()]
        made.append(Answers(name=name, fixed=asked, worst=latest(found, "worst"), best=latest(found, "best")))
    return made


def spread(own: Sequence[Answer], champion: Answer | None) -> list[tuple[str, Answer]]:
    """(name, answer) of the first and the last, or one if they are of the same step, and of the champion's if any."""
    ends = own[:1] if own[0].step == own[-1].step else (own[0], own[-1])
    return [*((f"step {one.step}", one) for one in ends), *([("champion", champion)] if champion else [])]


def latest(found: Sequence[Answer], kind: str) -> list[Answer]:
    """The answers of this kind at the last step that has some, the lowest reward first."""
    some = [one for one in found if one.kind == kind]
    return sorted((one for one in some if one.step == some[-1].step), key=lambda one: one.reward or 0.0)


def table(run: RunFacts) -> list[Answer]:
    """A run's table of samples; empty if it has none that this server can read."""
    folder = folder_of(run)
    if folder is None:
        return []
    try:
        return read(read_bytes(folder / FILE, 2 * MOST_BYTES, within=folder).decode("utf-8", "replace"), FILE)
    except (OSError, ValueError, UsageError):
        return []
