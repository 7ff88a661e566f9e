"""Two sides beside each other: what they recorded, what the gate would say of them, and whom to compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from canary_mlflow import tags
from canary_mlflow.api import rules_for
from canary_mlflow.errors import UsageError
from canary_mlflow.gates.facts.differences import CODE, CONFIGURATION, GROUPS, WORKLOAD, differences, missing, recorded
from canary_mlflow.gates.facts.exact import ARGUMENTS, FACTS, NOT_EXACT, SEEDED, bare, defaults_of, facts_of, unset
from canary_mlflow.gates.judge import judge
from canary_mlflow.gates.model.records import Run, Version
from canary_mlflow.gates.model.sides import values_of
from canary_mlflow.gates.model.verdict import Difference, Verdict
from canary_mlflow.ledger import table
from canary_mlflow.ledger.rows import Kind
from canary_mlflow.ledger.writing import keys_in
from canary_mlflow.pages.models import newest_sessions
from canary_mlflow.pages.requests import registry_database, runs_database
from canary_mlflow.registry.acts.accepting import accepted_among
from canary_mlflow.registry.workspaces import active_workspace
from canary_mlflow.reports.decision import Decision, Question
from canary_mlflow.tracking.reading.database import children_of, read_facts, runs_over
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.stores.read_only import has_ledger

NAMES = {"git_commit": "commit", "uncommitted": "uncommitted changes"}  # as the differences call them
MOST = 2_000_000  # values that are read for a verdict: two seconds
WEEK = 6.5 * 86_400_000  # ms; half a day less, because a nightly does not always begin at the same minute


# ---- what both recorded ----------------------------------------------------------------------------------------------


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


def sides_of(reference: tuple[str, Sequence[str]], others: Sequence[tuple[str, Sequence[str]]]) -> list[Compared]:
    """The reference beside each of the others, each given as a name and run ids. One without runs is left out."""
    ids = [*reference[1], *(run_id for _, runs in others for run_id in runs)]
    made = runs_over(runs_database(), ids, series=False)
    left = [made[one] for one in reference[1] if one in made]
    found = []
    for name, runs in others:
        right = [made[one] for one in runs if one in made]
        if left and right:
            groups = side_by_side(left, right)
            compared = {group.name for group in groups} | {WORKLOAD}
            found.append(Compared(baseline=reference[0], candidate=name, groups=groups, unknown=missing(compared)))
    return found


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


# ---- what the gate would say -----------------------------------------------------------------------------------------


def gate_would_say(heads: Sequence[RunFacts], labels: Sequence[str]) -> tuple[Decision | None, str]:
    """The decision on two sessions as `canary compare` makes it, or a sentence on why there is none. It is computed
    when the page is read, and not stored."""
    left, right = heads
    if any(one.tags.get(tags.ROLE) != "session" for one in heads):
        return None, "Not judged: a verdict needs two sessions."
    command = f"canary compare {left.run_id} {right.run_id}"
    children = children_of(runs_database(), [left.run_id, right.run_id])
    facts = read_facts(runs_database(), [one for found in children.values() for one in found], latest=None)
    runs = [[facts[one] for one in children[head.run_id] if facts[one].tags.get(tags.ROLE) == "run"] for head in heads]
    if any(one.running for one in (*heads, *runs[0], *runs[1])):
        return None, "Not judged: one of them has not ended."
    if sum(one.step * len(one.latest) for side in runs for one in side) > MOST:
        return None, f"Not judged here, where it would take too long: {command}"
    tiers = (one.tags.get(tags.TIER, "") for one in (right, *runs[1], left, *runs[0]))
    tier = next(filter(None, tiers), "")
    before, model = (one.tags.get(tags.MODEL_NAME, "") for one in heads)
    sides = [(name, tuple(one.run_id for one in side)) for name, side in zip((before, model), runs, strict=True)]
    try:
        verdict = verdict_on(sides[0], sides[1], tier, accepted(model))
    except UsageError:
        return None, f"Not judged: these runs carry no tier, which chooses the rules; {command} --policy NAME"
    decision = Decision(
        verdict=verdict, model=model, question=Question.COMPARISON, baseline_label=labels[0], candidate_label=labels[1]
    )
    return decision, ""


@lru_cache(maxsize=32)
def verdict_on(
    left: tuple[str, tuple[str, ...]], right: tuple[str, tuple[str, ...]], tier: str, known: tuple[Difference, ...]
) -> Verdict:
    """The verdict on two sides, each a model and its runs, which have ended and so no longer change. Raises UsageError
    for a tier without a policy."""
    policy = rules_for(None, tier, "these sessions")
    sides = [
        Version(model=model, version=None, runs=tuple(runs_over(runs_database(), ids).values()))
        for model, ids in (left, right)
    ]
    return judge(policy, *sides, accepted=known)


def accepted(model: str) -> tuple[Difference, ...]:
    """The differing facts that were accepted for the model."""
    connection = registry_database()
    if not model or not has_ledger(connection):
        return ()
    mine = [row for row in table.read(connection, model, active_workspace()) if row.kind == Kind.FACTS]
    return tuple(accepted_among(mine, keys_in(connection))) if mine else ()


# ---- whom to compare with --------------------------------------------------------------------------------------------


def earlier_than(session: RunFacts) -> Sequence[tuple[str, RunFacts]]:
    """(name, session) of the session of the same model before this one, and of one from a week before. Only sessions
    that left a version are found."""
    model, tier = (session.tags.get(key, "") for key in (tags.MODEL_NAME, tags.TIER))
    ids = newest_sessions(registry_database(), model) if model else []
    found = read_facts(runs_database(), ids, tags=(tags.VERDICT, tags.TIER)).values()
    alike = [one for one in found if not one.deleted and one.tags.get(tags.TIER, "") == tier]
    before = sorted((one for one in alike if one.started < session.started), key=lambda one: -one.started)
    aged = [one for one in before[1:] if session.started - one.started >= WEEK]
    return [*(("the one before", one) for one in before[:1]), *(("a week before", one) for one in aged[:1])]
