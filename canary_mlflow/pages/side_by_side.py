"""Everything that two sides recorded, side by side: what differs, what is equal, and which values nobody set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gates.facts.differences import CODE, CONFIGURATION, GROUPS, differences, recorded
from gates.facts.exact import ARGUMENTS, FACTS, NOT_EXACT, SEEDED, bare, defaults_of, facts_of, unset
from gates.model.records import Run
from gates.model.sides import values_of
from gates.model.verdict import Difference

NAMES = {"git_commit": "commit", "uncommitted": "uncommitted changes"}  # as the differences call them


@dataclass(frozen=True, kw_only=True)
class ValuePair(Difference):
    """A value of both sides, equal or not. `unset`: for each side, whether it is the library's default, given to no run
    of that side."""

    unset: tuple[bool, bool]


@dataclass(frozen=True, kw_only=True)
class Group:
    """What both sides recorded in one group. `differing`: as `differences` returns it, in the same order."""

    name: str
    differing: tuple[ValuePair, ...]
    equal: tuple[ValuePair, ...]


def side_by_side(baseline: Sequence[Run], candidate: Sequence[Run]) -> tuple[Group, ...]:
    """The groups in which both sides recorded something, in the order of `differences`."""
    found, compared = differences(baseline, candidate)
    defaults = unset(baseline), unset(candidate)
    values = [{**recorded(side), FACTS: values_of(side, _facts)} for side in (baseline, candidate)]
    groups = []
    for name in GROUPS:
        if name not in compared:
            continue
        differing = tuple(
            ValuePair(**vars(one), unset=_marks(one.key, name, defaults)) for one in found if one.group == name
        )
        here, there = (side[name] for side in values)
        known = {one.key for one in differing}
        equal = []
        for key in sorted(here.keys() & there.keys()):
            text = " | ".join(here[key])
            title = NAMES.get(key, key) if name == CODE else key
            if here[key] == there[key] and title not in known:
                marks = _marks(title, name, defaults)
                equal.append(ValuePair(key=title, baseline=text, candidate=text, group=name, unset=marks))
        groups.append(Group(name=name, differing=differing, equal=tuple(equal)))
    return tuple(groups)


def _marks(key: str, group: str, defaults: tuple[frozenset[str], frozenset[str]]) -> tuple[bool, bool]:
    """Whether each side left this value unset; a setting is looked up among the arguments of the same name."""
    if group not in (FACTS, CONFIGURATION):
        return False, False
    argument = key if group == FACTS else ARGUMENTS + key
    return argument in defaults[0], argument in defaults[1]


def _facts(run: Run) -> Mapping[str, str]:
    """The run's facts that do not follow from a seed, with the defaults; without work and layers, too many to read."""
    own = {**defaults_of(run), **facts_of(run)}
    return {key: value for key, value in own.items() if not bare(key).startswith((*SEEDED, *NOT_EXACT))}
