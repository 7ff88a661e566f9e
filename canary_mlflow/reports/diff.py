"""How two sides differ, without judging: exact facts, configuration, code, packages, data, hardware, work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from canary_mlflow.gates.facts.check import GROUPS, differences, missing, said
from canary_mlflow.gates.facts.exact import FACTS
from canary_mlflow.gates.facts.work import WorkDiff, beyond, comparable, compare_work
from canary_mlflow.gates.model.records import Version
from canary_mlflow.gates.model.sides import candidate_side, mismatches
from canary_mlflow.gates.model.verdict import Difference
from canary_mlflow.reports.differences import difference, differing, origin
from canary_mlflow.reports.layer_drift import LayerMoved, moved, sentence

EQUAL, OTHER, NOT_COMPARABLE = 0, 1, 3
SHOWN_LAYERS = 12


@dataclass(frozen=True, kw_only=True)
class Diff:
    """What differs. `compared`: the groups that both sides recorded. `obstacle`: why the facts of the two sides cannot
    be compared, as a clause; '' if they can."""

    baseline: str
    candidate: str
    differences: tuple[Difference, ...]
    compared: tuple[str, ...]
    obstacle: str
    work: WorkDiff
    layer_drift: tuple[LayerMoved, ...]
    facts: tuple[Mapping[str, str], Mapping[str, str]]  # of the first two runs whose work can be compared

    @property
    def exit_code(self) -> int:
        """0 if nothing differs by more than rounding, 1 if something does, 3 if the sides cannot be compared."""
        if self.obstacle:
            return NOT_COMPARABLE
        return OTHER if any(not one.rounding for one in self.differences) else EQUAL

    def to_dict(self) -> dict[str, Any]:
        """The difference as plain JSON values."""
        plain = {key: value for key, value in asdict(self).items() if key != "facts"}
        return {**plain, "exit_code": self.exit_code}

    def over(self, budget: Mapping[str, float]) -> list[str]:
        """The counts of work that grew by more than their share in `budget`."""
        return beyond(*self.facts, budget)


def between(baseline: Version, candidate: Version, labels: tuple[str, str]) -> Diff:
    """The difference between two sides, from all their runs."""
    found, compared = differences(baseline.runs, candidate.runs)
    pair = comparable(baseline.runs, candidate.runs)
    return Diff(
        baseline=labels[0],
        candidate=labels[1],
        differences=found,
        compared=compared,
        obstacle=_obstacle(baseline, candidate, labels, compared),
        work=compare_work(*pair),
        layer_drift=tuple(moved(baseline.runs, candidate.runs)),
        facts=pair,
    )


def _obstacle(baseline: Version, candidate: Version, labels: tuple[str, str], compared: tuple[str, ...]) -> str:
    for side, label in ((baseline, labels[0]), (candidate, labels[1])):
        if not side.runs:
            return f"{label} has no runs"
    if FACTS not in compared:
        return "the exact facts of both sides are not recorded"
    sides = candidate_side(baseline.runs), candidate_side(candidate.runs)
    for what in ("workload", "hardware"):
        if keys := [one.key for one in mismatches(*sides, what)]:
            return f"the {what} is not the same ({', '.join(keys)})"
    return ""


def lines(diff: Diff) -> Iterator[str]:
    """The report for people."""
    yield f"{diff.candidate} against {diff.baseline}"
    if diff.obstacle:
        yield f"  Not comparable: {diff.obstacle}."
    for group, found in by_group(diff).items():
        yield f"  {group}"
        yield from (f"    {said(one) if group == FACTS and not one.rounding else difference(one)}" for one in found)
    if where := origin(differing(diff.differences), diff.differences).strip():
        yield f"  {where}"
    if diff.work.kind:
        yield f"  Work of a step: {diff.work.kind}{': ' if diff.work.said else ''}{'; '.join(diff.work.said)}."
    apart = [one for one in diff.layer_drift if one.baseline != one.candidate]
    if apart:
        yield "  how far each layer moved"
        yield from (f"    {sentence(one)}" for one in apart[:SHOWN_LAYERS])
        if len(apart) > SHOWN_LAYERS:
            yield f"    and {len(apart) - SHOWN_LAYERS} more, all with --json"
    elif diff.layer_drift:
        yield "  Each layer moved as far as before."
    others = {one.group for one in diff.differences}
    equal = [group for group in diff.compared if group not in others]
    unknown = missing(diff.compared)
    if equal:
        yield f"  Equal: {', '.join(equal)}."
    if unknown:
        yield f"  Missing on one or both sides: {', '.join(unknown)}."


def by_group(diff: Diff) -> Mapping[str, list[Difference]]:
    """The differences of each group that has any, in the groups' order."""
    groups = {group: [one for one in diff.differences if one.group == group] for group in GROUPS}
    return {group: found for group, found in groups.items() if found}
