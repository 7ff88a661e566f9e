"""The page of a session, or of two to six compared: all runs in each chart, the charts ranked by departure. Of two
sides: what they recorded, what the gate would say of them, and whom to compare with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from canary_mlflow import tags
from canary_mlflow.errors import UsageError
from canary_mlflow.gates.facts.check import CODE, CONFIGURATION, GROUPS, WORKLOAD, differences, missing, recorded
from canary_mlflow.gates.facts.exact import ARGUMENTS, FACTS, NOT_EXACT, SEEDED, bare, defaults_of, facts_of, unset
from canary_mlflow.gates.judge import judge
from canary_mlflow.gates.model.metrics import label
from canary_mlflow.gates.model.records import Run, Version, updates_of
from canary_mlflow.gates.model.sides import values_of
from canary_mlflow.gates.model.verdict import Difference, Verdict
from canary_mlflow.ledger import table
from canary_mlflow.ledger.chain import Kind
from canary_mlflow.ledger.writing import keys_in
from canary_mlflow.mlflow_internals import active_workspace
from canary_mlflow.pages.curves import as_json, mean_curve
from canary_mlflow.pages.models import newest_sessions
from canary_mlflow.pages.reference import Reference, away, champion_of, unplaced, usual_of
from canary_mlflow.pages.requests import registry_database, runs_database
from canary_mlflow.pages.run import marks_of
from canary_mlflow.pages.series import LATE, drawn_series, up_to_date
from canary_mlflow.pages.verdict import warned
from canary_mlflow.policies import rules_for
from canary_mlflow.registry.acts.accepting import accepted_among
from canary_mlflow.registry.judging.records import own_name
from canary_mlflow.reports.charts import PANELS, SERIES, Panel, target_keys, target_of
from canary_mlflow.reports.deciding import decided_by
from canary_mlflow.reports.decision import Decision, Question, RunWarning
from canary_mlflow.reports.differences import restated
from canary_mlflow.reports.formatting import counted
from canary_mlflow.reports.sweep import GridRow, columns
from canary_mlflow.tracking.describing.schema import name_of_key
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
            ValuePair(**vars(one), unset=_marks(one.key, name, defaults))
            for one in found
            if one.group == name and not restated(one, found)
        )
        here, there = (side[name] for side in values)
        known = {one.key for one in found if one.group == name}
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


MOST_RUNS = 12  # lines in one chart
SIDES = "abcdef"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One run of the page, its name there, and the side that it belongs to, counted from 0."""

    run: RunFacts
    name: str
    side: int = 0


@dataclass(frozen=True, kw_only=True)
class SessionPage:
    """Everything except verdict and samples; curves come later. `left_out`: how many runs a chart has no room for.
    `panels`: the charts shown at first. `first`: the series that decided, whose charts come first."""

    heads: Sequence[RunFacts]
    runs: Sequence[Shown]
    left_out: int
    model: str
    reference: Reference
    first: Sequence[str] = ()

    @property
    def compare(self) -> bool:
        """Whether several are compared, the first of which is the reference."""
        return len(self.heads) > 1

    @property
    def running(self) -> bool:
        """Whether anything has not ended, so that more may come."""
        return any(one.running for one in self.heads) or any(one.run.running for one in self.runs)

    @property
    def level(self) -> str:
        """The watch's level for the first run that has one; '' if none was watched."""
        return next((one.run.level for one in self.runs if one.run.level), "")

    @property
    def warnings(self) -> list[RunWarning]:
        """The watch's warnings about the runs."""
        return [RunWarning(run=shown.name, warning=one) for shown in self.runs for one in shown.run.warnings]

    @cached_property
    def recorded(self) -> list[str]:
        """The series that a run has recorded."""
        return list(dict.fromkeys(name_of_key(key) for one in self.runs for key in one.run.latest))

    @cached_property
    def panels(self) -> list[Panel]:
        """The charts of what was recorded: of what comes `first`, the usual ones, and one for each other series that
        the watch warned about. While a run goes on all of the usual ones, because more may come; a chart without a
        curve is hidden."""
        known = set(self.recorded)
        going = not self.runs or any(one.run.running for one in self.runs)
        usual = [panel for panel in PANELS if going or known & set(panel.lines)]
        marked = {name for panel in usual for name in panel.marked}
        asked = dict.fromkeys([*self.first, *(one.warning.stream for one in self.warnings)])
        alone = (Panel(title=label(name), lines=(name,)) for name in asked if name in known and name not in marked)
        places = {name: at for at, name in enumerate(self.first)}
        return sorted([*usual, *alone], key=lambda panel: min(places.get(name, len(places)) for name in panel.marked))

    @property
    def others(self) -> list[str]:
        """Every other series that a run has recorded."""
        drawn = {name for panel in self.panels for name in (*panel.lines, panel.spread)}
        return sorted(set(self.recorded) - drawn)


def read_page(heads: Sequence[RunFacts], decision: Decision | None = None) -> SessionPage:
    """The page of one session with its champion, or of several compared. `decision`: on that one."""
    compare = len(heads) > 1
    runs, left_out = runs_of(heads, compare=compare)
    models = {one.run.tags.get(tags.MODEL_NAME, "") for one in runs}  # of a sweep's runs, each its own
    model = heads[0].tags.get(tags.MODEL_NAME, "") or (models.pop() if len(models) == 1 else "")
    own = [one.run for one in runs if one.side == 0]
    if compare:
        said = f"Grey: what {name_of(heads[0])} did; the others are ranked by how far they go from it."
        reference = Reference(said=said, run_ids=tuple(one.run_id for one in own))
    elif own:
        reference = champion_of(own[0], model, heads[0])
    else:
        reference = Reference(said="No run has begun yet.")
    first = decided_by(warned(decision, {one.run.run_id: one.run for one in runs})) if decision else ()
    return SessionPage(heads=heads, runs=runs, left_out=left_out, model=model, reference=reference, first=first)


def newest(page: SessionPage) -> SessionPage:
    """The page with what its runs have not sent yet. Not for curves: those begin after what the store has."""
    return replace(page, runs=[replace(one, run=up_to_date(one.run)) for one in page.runs])


def runs_of(heads: Sequence[RunFacts], *, compare: bool) -> tuple[list[Shown], int]:
    """The runs of all sides that there is room for, and how many were left out."""
    children = children_of(runs_database(), [one.run_id for one in heads if one.parental])
    ids = {one.run_id: children.get(one.run_id, [one.run_id]) for one in heads}
    every = [run_id for found in ids.values() for run_id in found]
    facts = read_facts(runs_database(), every, latest=None, params=target_keys())
    found = []
    for side, head in enumerate(heads):
        for run in (facts[one] for one in ids[head.run_id] if one in facts and not facts[one].deleted):
            if run.tags.get(tags.ROLE, "run") == "run":
                named = run.short if head.run_id in children else ""
                name = ", ".join(filter(None, (SIDES[side], named))) if compare else run.short
                found.append(Shown(run=run, name=name, side=side))
    return found[:MOST_RUNS], max(0, len(found) - MOST_RUNS)


def name_of(head: RunFacts) -> str:
    """A session's own name, without its verdict."""
    return own_name(head.name) or head.run_id[:8]


def targets_of(page: SessionPage) -> dict[str, float | None]:
    """Each panel's target, by its title."""
    params = page.runs[0].run.params if page.runs else {}
    return {panel.title: target_of(panel, params) for panel in page.panels}


def sides_beside(page: SessionPage) -> list[Compared]:
    """What differs from the reference and what is equal, for each other side."""
    if not page.reference.run_ids:
        return []
    others = [
        (
            f"{SIDES[side]}, {name_of(head)}" if page.compare else name_of(head),
            [one.run.run_id for one in page.runs if one.side == side],
        )
        for side, head in enumerate(page.heads)
        if not page.compare or side
    ]
    first = f"a, {name_of(page.heads[0])}" if page.compare else f"champion, version {page.reference.version}"
    return sides_of((first, page.reference.run_ids), others)


def grid_of(sweep: RunFacts) -> tuple[Sequence[GridRow], Sequence[str]]:
    """A row for each cell of a sweep, in the order of its first run, with its runs' verdict, or how far they are; and
    the metrics to show."""
    runs = read_facts(runs_database(), children_of(runs_database(), [sweep.run_id])[sweep.run_id], latest=None)
    cells: dict[str, list[RunFacts]] = {}
    for run in runs.values():
        cells.setdefault(run.tags.get(tags.CELL_NAME) or run.tags.get(tags.MODEL_NAME, ""), []).append(run)
    rows = []
    for name, own in cells.items():
        latest = [{name_of_key(key): one.value for key, one in run.latest.items()} for run in own]
        going, said = sum(run.running for run in own), own[0].tags
        how_far = counted(len(own), "run") + f", {going} running" * bool(going)
        word = said.get(tags.VERDICT) or ("RUNNING" if going else "not judged")
        rows.append(GridRow(name=name, latest=latest, word=word, reason=said.get(tags.VERDICT_REASON) or how_far))
    return rows, columns(rows)


# ---- curves ----------------------------------------------------------------------------------------------------------


def curves_of(
    page: SessionPage, names: Sequence[str], after: int | None, until: int | None, *, rough: bool
) -> dict[str, Any]:
    """The curves of all runs as JSON values, with the reference's band and each series' departure from it; with
    `after`, only what is new since that step; with `until` too, that stretch in full detail. `rough`: only some rows of
    long series, and no reference, so that there is something to see before all is read."""
    wanted = list(names) or list(dict.fromkeys([*SERIES, *(name for one in page.panels for name in one.lines)]))
    since = None if after is None else after - (LATE if until is None else 1)
    tier = page.heads[0].tags.get(tags.TIER, "")
    known = {} if rough else usual_of(page.reference.run_ids, tuple(wanted), steps_of(page), tier)
    runs, few, pace = [], False, math.nan
    for one in page.runs:
        own = since
        if after is not None and until is None and not one.run.running:
            own = max(after, one.run.step) - LATE  # the rest of it was sent when it ended
        series, some = drawn_series(runs_database(), one.run, [*wanted, "iteration_time"], own, until, rough=rough)
        few, pace = few or some, pace if one.run.run_id in page.reference.run_ids else updates_of(series)
        runs.append({
            "id": one.run.run_id, "name": one.name, "side": one.side, "running": one.run.running,
            "warnings": marks_of(one.run),
            "series": {name: mean_curve(found) for name, found in series.items() if name in wanted},
            "away": {} if one.run.run_id in page.reference.run_ids else away(known, series),
        })  # fmt: skip
    bands = {}
    if after is None or until is not None:
        bands = {name: as_json(one.at_pace(pace).drawn(after, until)) for name, one in known.items()}
    again = page.running and unplaced(known, pace, next_of(page))  # with the band where it belongs
    return {"whole": after is None, "rough": few, "next": None if again else next_of(page), "running": page.running,
            "runs": runs, "bands": bands}  # fmt: skip


def next_of(page: SessionPage) -> int:
    """The step after which the next answer has to begin: where the run is that is least far of those that go on."""
    going = [one.run.step for one in page.runs if one.run.running]
    return min(going) if going else max((one.run.step for one in page.runs), default=0)


def steps_of(page: SessionPage) -> int:
    """How many steps the reference has. While it runs, this is a number that changes only when the reference is about
    a 20th longer, so that its band is not computed again for each new step."""
    runs = [one.run for one in page.runs if one.run.run_id in page.reference.run_ids]
    steps = sum(run.step for run in runs)
    return int(20 * math.log1p(steps)) if any(run.running for run in runs) else steps
