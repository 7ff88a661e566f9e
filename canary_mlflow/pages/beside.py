"""What differs and what is equal between a page's reference and its other sides, as `canary diff` computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from canary_mlflow.pages.facts import read_all_params, read_facts
from canary_mlflow.pages.side_by_side import Group, side_by_side
from canary_mlflow.tracking.reading.histories import run_from
from canary_mlflow.tracking.stores.read_only import reading
from gates.facts.differences import WORKLOAD, missing


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Two sides: their names, what both recorded, and the groups that they did not both record."""

    baseline: str
    candidate: str
    groups: Sequence[Group]
    unknown: Sequence[str]

    @property
    def differing(self) -> int:
        """How many values differ."""
        return sum(len(group.differing) for group in self.groups)

    @property
    def equal(self) -> int:
        """How many values are equal."""
        return sum(len(group.equal) for group in self.groups)


def sides_of(
    tracking: str, reference: tuple[str, Sequence[str]], others: Sequence[tuple[str, Sequence[str]]]
) -> list[Compared]:
    """The reference beside each of the others, each given as a name and run ids. One without runs is left out."""
    ids = [*reference[1], *(run_id for _, runs in others for run_id in runs)]
    with reading(tracking) as connection:
        facts, params = read_facts(connection, ids, latest=()), read_all_params(connection, ids)
    made = {run_id: run_from(run_id, one.tags, [], {}, params[run_id]) for run_id, one in facts.items()}
    left = [made[one] for one in reference[1] if one in made]
    found = []
    for name, runs in others:
        right = [made[one] for one in runs if one in made]
        if left and right:
            groups = side_by_side(left, right)
            compared = {group.name for group in groups} | {WORKLOAD}
            found.append(Compared(baseline=reference[0], candidate=name, groups=groups, unknown=missing(compared)))
    return found
