"""What explains a verdict, judged by measurements alone: rules with ids, the ones that explain most first. They do not
look at names of faults or at recorded settings. Finding no cause is an answer too."""

from __future__ import annotations

from collections.abc import Sequence

from gates.model.records import Run
from gates.model.verdict import RootCause
from gates.root_causes.evidence import Sides
from gates.root_causes.rules import RULES


def root_causes(baseline: Sequence[Run], candidate: Sequence[Run]) -> list[RootCause]:
    """The causes that were found, those that explain most first. Runs that broke off count as far as they got."""
    if not baseline or not candidate:
        return []
    sides = Sides(baseline=baseline, candidate=candidate)
    found = [one for rule in RULES.values() for one in rule(sides)]
    return sorted(found, key=lambda one: -one.rank)
