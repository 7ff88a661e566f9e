"""Everything that two sides recorded, side by side: what differs, what is equal, and which values nobody set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gates.facts.differences import CODE, CONFIGURATION, GROUPS, differences, recorded
from gates.facts.exact import FACTS, FIRST, bare, defaults_of, facts_of
from gates.facts.work import WORK
from gates.model.records import Run
from gates.model.sides import values_of
from gates.model.verdict import Difference

ARGUMENTS = "arguments."
NAMES = {"git_commit": "commit", "uncommitted": "uncommitted changes"}  # as the differences call them


@dataclass(frozen=True, kw_only=True)
class ValuePair:
    """A value of both sides; several values of one side are joined by ` | `. `unset`: for each side, whether it is
    the library's default, given to no run of that side."""

    key: str
    baseline: str
    candidate: str
    unset: tuple[bool, bool] = (False, False)
    seeds: tuple[int, ...] = ()
    rounding: bool = False


@dataclass(frozen=True, kw_only=True)
class Group:
    """What both sides recorded in one group. `differing`: as `differences` returns it, in the same order."""

    name: str
    differing: tuple[ValuePair, ...]
    equal: tuple[ValuePair, ...]


def side_by_side(baseline: Sequence[Run], candidate: Sequence[Run]) -> tuple[Group, ...]:
    """The groups in which both sides recorded something, in the order of `differences`."""
    found, compared = differences(baseline, candidate)
    sides = baseline, candidate
    unset = _unset(baseline), _unset(candidate)
    values = [{**recorded(side), FACTS: values_of(side, _facts)} for side in sides]
    groups = []
    for name in GROUPS:
        if name not in compared:
            continue
        differing = tuple(_row(one, name, unset) for one in found if one.group == name)
        here, there = (side[name] for side in values)
        known = {one.key for one in differing}
        equal = tuple(
            ValuePair(key=title, baseline=text, candidate=text, unset=_marks(title, name, unset))
            for key in sorted(here.keys() & there.keys())
            if here[key] == there[key] and (title := NAMES.get(key, key) if name == CODE else key) not in known
            for text in (" | ".join(here[key]),)
        )
        groups.append(Group(name=name, differing=differing, equal=equal))
    return tuple(groups)


def _row(one: Difference, group: str, unset: tuple[frozenset[str], frozenset[str]]) -> ValuePair:
    return ValuePair(
        key=one.key,
        baseline=one.baseline,
        candidate=one.candidate,
        unset=_marks(one.key, group, unset),
        seeds=one.seeds,
        rounding=one.rounding,
    )


def _marks(key: str, group: str, unset: tuple[frozenset[str], frozenset[str]]) -> tuple[bool, bool]:
    """Whether each side left this value unset; a setting is looked up among the arguments of the same name."""
    if group not in (FACTS, CONFIGURATION):
        return False, False
    argument = key if group == FACTS else ARGUMENTS + key
    return argument in unset[0], argument in unset[1]


def _unset(side: Sequence[Run]) -> frozenset[str]:
    """The arguments that no run of a side was given, as `arguments.optim`."""
    return frozenset(set.intersection(*(set(defaults_of(run)) for run in side))) if side else frozenset()


def _facts(run: Run) -> Mapping[str, str]:
    """The run's facts that do not follow from a seed, with the defaults; without the work counts, too many to read."""
    own = {**defaults_of(run), **facts_of(run)}
    return {key: value for key, value in own.items() if not bare(key).startswith((FIRST, WORK))}
