"""What explains a verdict, by what was measured: rules with ids, those first that explain most. Names of
faults and recorded settings are not looked at. No cause found is an answer."""

from __future__ import annotations

from collections.abc import Sequence

from gates.model.records import Run
from gates.model.verdict import RootCause
from gates.root_causes.evidence import Sides
from gates.root_causes.rules import RULES


def root_causes(baseline: Sequence[Run], candidate: Sequence[Run]) -> list[RootCause]:
    """What explains most first; empty where nothing does. Runs that broke off tell as far as they came."""
    if not baseline or not candidate:
        return []
    sides = Sides(baseline=baseline, candidate=candidate)
    found = [one for rule in RULES.values() for one in rule(sides)]
    return sorted(found, key=lambda one: -one.rank)
