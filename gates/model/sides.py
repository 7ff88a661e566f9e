"""The two sides of a comparison: which runs are evidence, and whether the sides can be compared at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from statistics import fmean

import numpy as np

from canary_mlflow.gates.model.metrics import METRICS, RECORDINGS, metrics_with
from canary_mlflow.gates.model.paradigm import bound_of_sides
from canary_mlflow.gates.model.records import EDGE, Run, Version
from canary_mlflow.gates.model.verdict import Check, Difference, ReasonCode, open_check
from canary_mlflow.gates.model.wording import counted, listed

_CLOCKS = metrics_with("clock")
OTHER_WORK = 1.05
"""Tokens of a step, as a factor, from which on its work is another: batches of other seeds differ by less."""

ABSENT = "absent"
"""The value of a fact that a run did not record."""

NO_EVIDENCE = ("interrupted", "error")
CRASHES = {
    "instability": "became unstable",
    "oom": "ran out of memory",
    "timeout": "ran out of time",
    "crash": "crashed",
}
"""Failures that are the version's own, in words."""

Pick = Callable[[Run], Mapping[str, str]]
Values = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """The runs of one side: all of them once, those that count as evidence, and why the others do not. `copies`: the
    ids of runs that are copies of another, each with the id of the run that stays."""

    runs: tuple[Run, ...]
    evidence: tuple[Run, ...]
    left_out: tuple[str, ...]
    copies: Mapping[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> tuple[Run, ...]:
        """The evidence runs that reached their end: only these have metrics worth comparing."""
        return tuple(run for run in self.evidence if run.finished)

    @property
    def interrupted(self) -> tuple[Run, ...]:
        """Runs that were ended from outside: no evidence on the code, except for the harm that their rows show."""
        return tuple(run for run in self.runs if run.failure == "interrupted" and run.run_id not in self.copies)

    @property
    def stopped(self) -> tuple[Run, ...]:
        """Interrupted runs of whose seed no other run is evidence: who stops the seeds that go badly would choose those
        that pass."""
        told = {run.seed for run in self.evidence} | {None}
        return tuple(run for run in self.interrupted if run.seed not in told)

    @property
    def broken_off(self) -> tuple[Run, ...]:
        """Runs that ended for an unknown reason (an exception, no word, too little recorded) more often than runs of
        their seed finished. Nobody can tell whether the code or the machine is to blame, so other runs cannot stand in
        for them."""
        known = {run.run_id for run in self.evidence} | self.copies.keys()
        again: Counter[int | None] = Counter(run.seed for run in self.evidence if run.seed is not None)
        lost = [run for run in self.runs if run.run_id not in known and run.failure != "interrupted"]
        often = Counter(run.seed for run in lost)
        return tuple(run for run in lost if often[run.seed] > again[run.seed])


def candidate_side(runs: Iterable[Run]) -> Side:
    """The candidate's side. A run that crashed on its own is evidence (against it); one stopped from outside is
    none."""
    return _side(runs)


def baseline_side(runs: Iterable[Run], candidate: Side) -> Side:
    """The baseline's side: as the candidate's, without runs that set no standard for others or that belong to the
    candidate."""
    return _side(runs, candidate, standard=True)


def as_a_candidate(baseline: Version | None, candidate: Side) -> Side:
    """The baseline's runs, fresh ones included, counted as a candidate's would be: to see what its own code fails."""
    return _side((*baseline.runs, *baseline.fresh) if baseline else (), candidate)


def _side(given: Iterable[Run], other: Side | None = None, *, standard: bool = False) -> Side:
    """The side of these runs, without those of the `other`. `standard`: they must set one."""
    given = tuple(given)
    runs = once(given)
    copies = _copies(runs)

    def why_not(run: Run) -> str:
        if run.run_id in copies:
            return f"it is run {copies[run.run_id]} again"
        for one in other.runs if other else ():
            if run.run_id == one.run_id or _same_run(run, one):
                copy = "" if run.run_id == one.run_id else f" ({one.called}, with the same time of every step: a copy)"
                return f"it is also a run of the candidate{copy}"
        return (_why_no_standard(run) if standard else "") or _why_no_evidence(run)

    reasons = [(run, why_not(run)) for run in runs]
    times = Counter(run.run_id for run in given)
    repeated = (
        f"{run.called}: it was given {times[run.run_id]} times, it counts once" for run in runs if times[run.run_id] > 1
    )
    return Side(
        runs=runs,
        evidence=tuple(run for run, reason in reasons if not reason),
        left_out=(
            *(f"{run.called}: {reason}" for run, reason in reasons if reason),
            *sorted(repeated),
        ),
        copies=copies,
    )


def _why_no_standard(run: Run) -> str:
    if run.failure in CRASHES:
        return f"it failed ({run.failure})"
    if run.learned is False:
        return "it showed no learning"
    return f"it was made with {run.not_promotable}" if run.not_promotable else ""


def _why_no_evidence(run: Run) -> str:
    if run.failure in NO_EVIDENCE:
        what = "it was interrupted" if run.failure == "interrupted" else "it failed"
        return f"{what} ({run.failure_reason})" if run.failure_reason else what
    if run.failure and run.failure not in CRASHES:
        return f"it ended in a way that is not known here ({run.failure})"
    return "" if run.completed or run.failure in CRASHES else "it did not finish"


def once(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Each run id once, sorted by id, so that neither order nor repetition of the input matters."""
    by_id = {run.run_id: run for run in reversed([*runs])}
    return tuple(by_id[run_id] for run_id in sorted(by_id))


def planned(runs: Iterable[Run]) -> int:
    """How many runs of a plan of looks these are. A seed counts once, because it recurs only if a run was repeated."""
    return len({(run.seed, run.run_id if run.seed is None else "") for run in runs})


def _copies(runs: tuple[Run, ...]) -> dict[str, str]:
    """As in `Side.copies`. The one that failed stays, or else the one about which more is known, so that a copy hides
    nothing."""
    found: dict[str, str] = {}
    kept: list[Run] = []
    for run in sorted(runs, key=lambda run: (run.finished, -_known(run), run.run_id)):
        first = next((other for other in kept if _same_run(run, other)), None)
        if first is None:
            kept.append(run)
        else:
            found[run.run_id] = first.run_id
    return found


def _known(run: Run) -> int:
    return len(run.series) + len(run.workload) + len(run.hardware) + len(run.environment) + (run.seed is not None)


def _same_run(run: Run, other: Run) -> bool:
    """Whether two runs are one: bit-equal in every series that both have, among them a clock that varies, as no two
    runs take the same time at every step. If their facts contradict each other, neither is a copy, and the comparison
    finds out why."""
    shared = run.series.keys() & other.series.keys()
    if contradictions(run.workload, other.workload) or contradictions(run.hardware, other.hardware):
        return False
    ticks = [name for name in _CLOCKS if name in shared and run.series[name].varies]
    return bool(ticks) and all(run.series[name].same_values(other.series[name]) for name in [*ticks, *sorted(shared)])


def contradictions(facts: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    """The keys for which both have a value, and not the same."""
    return [
        key
        for key in facts.keys() & others.keys()
        if not (says_as_much(key, facts[key], others[key]) or says_as_much(key, others[key], facts[key]))
    ]


def says_as_much(key: str, here: str, there: str) -> bool:
    """Whether `there` says of a fact what `here` says, or more. A release of a trainer that keeps the texts of a
    script's data gives `300 rows, DIGEST`; one that drops them gives `300 rows`, which says less, but nothing else."""
    if here == there or not key.endswith("_data"):
        return here == there
    one, other = here.split("; "), there.split("; ")  # of several data sets
    return len(one) == len(other) and all(
        more == rows or more.startswith(f"{rows}, ") for rows, more in zip(one, other, strict=True)
    )


def conditions(baseline: Side, candidate: Side) -> dict[str, str]:
    """What overlays look at: the candidate's workload and hardware, without what its runs disagree on, and for each
    metric whether the baseline has it until the last tenth of a run (`recorded`) or only earlier (`early`: it does not
    tell what came later), only the candidate has it (`new`: nothing to compare it with) or neither side (`absent`)."""
    known, other = (baseline, candidate) if baseline.evidence else (candidate, baseline)
    before, now = ({name for run in side.evidence for name in run.series} for side in (known, other))
    late = {
        name for run in known.evidence for name, series in run.series.items() if series.reaches(1 - EDGE, run.last_step)
    }
    states = tuple(zip(RECORDINGS, (late, before, now, METRICS), strict=True))
    found = {name: next(word for word, names in states if name in names) for name in METRICS}
    found["work"] = work_of(known, other)
    if bound := bound_of_sides(known.evidence, other.evidence):
        found["bound"] = bound
    for what in ("workload", "hardware"):
        for key, values in values_of(candidate.evidence or candidate.runs, attrgetter(what)).items():
            if len(values) == 1:
                found[key] = values[0]
    return found


def work_of(baseline: Side, candidate: Side) -> str:
    """`changed` if a step has more or fewer tokens than before, as with sequence packing: the cost of a token then
    tells more than that of a step. `same` otherwise, or if no tokens were counted."""
    means = []
    for side in (baseline, candidate):
        means.append([float(np.mean(values)) for run in side.evidence if len(values := run.finite("tokens"))])
    if not all(means):
        return "same"
    before, now = map(fmean, means)
    return "changed" if max(before, now) > OTHER_WORK * min(before, now) else "same"


def mismatches(baseline: Side, candidate: Side, what: str) -> list[Difference]:
    """Keys of `what` (workload or hardware) that do not have the same value in all runs of both sides."""
    left, right = baseline.evidence, candidate.evidence

    def same(key: str, here: Values, there: Values) -> bool:
        return (len(here) == 1 and same_values(key, here, there)) or same_tokens(key, left, right)

    return differing(left, right, attrgetter(what), same)


def differing(
    baseline: Sequence[Run],
    candidate: Sequence[Run],
    pick: Pick,
    same: Callable[[str, Values, Values], bool] | None = None,
    group: str = "",
) -> list[Difference]:
    """What both sides recorded of these keys and is not the `same`, data without texts also by its tokens."""
    return [
        Difference(key=key, baseline=" | ".join(tokens or here), candidate=" | ".join(others or there), group=group)
        for key, here, there in values_of_both(baseline, candidate, pick)
        for tokens, others in [other_tokens(key, baseline, candidate)]
        if tokens or not (same or same_values)(key, here, there)
    ]


def same_values(key: str, here: Values, there: Values) -> bool:
    """Whether both sides have the same values of a fact, or one value each, and only the baseline's says less: what a
    candidate does not say, it may hide."""
    return here == there or (len(here) == len(there) == 1 and says_as_much(key, here[0], there[0]))


def same_tokens(key: str, baseline: Sequence[Run], candidate: Sequence[Run], ending: str = "") -> bool:
    """Whether all runs recorded the same tokens of this data, as their trainers prepared it: from which texts, and what
    stands beside them in other columns, is then no other work, nor are columns that changed places, such as chosen and
    rejected answers: that is harm. What the baseline recorded of them, all must say. `ending`: of the columns that
    count."""
    least = _tokens(key, baseline[0], ending) if baseline else {}
    runs = [_tokens(key, run, ending) for run in (*baseline, *candidate)]
    return bool(least and candidate) and all(
        sorted(said for fact, said in run.items() if fact in least) == sorted(least.values()) for run in runs
    )


def other_tokens(key: str, baseline: Sequence[Run], candidate: Sequence[Run]) -> tuple[Values, Values]:
    """The ids of both sides' data, if nothing else says which rows they are, as no text is left, and they are not the
    same ones by one tokenizer; else nothing. Of a baseline whose runs have ids of their own nothing is known."""
    runs = (*baseline, *candidate)
    if key not in ("eval_data", "train_data") or any(", " in run.workload.get(key, ", ") for run in runs):
        return (), ()
    rules = {tuple((fact, said) for fact, said in run.facts.items() if fact.startswith("tokenizer.")) for run in runs}
    columns = {tuple(_tokens(key, run, "ids")) for run in runs}
    here, there = ({tuple(sorted(_tokens(key, run, "ids").values())) for run in side} for side in (baseline, candidate))
    if here == there or not len(here) == len(rules) == len(columns) == 1 or columns == {()}:
        return (), ()
    return tuple(map(" ".join, here)), tuple(map(" ".join, sorted(there)))


def _tokens(key: str, run: Run, ending: str = "") -> dict[str, str]:
    """What the run recorded of this data's columns of tokens."""
    held_out, trained = "data.tokens.held_out.", "data.tokens."
    known = {fact: said for fact, said in run.facts.items() if fact.startswith(trained) and fact.endswith(ending)}
    if key not in ("eval_data", "train_data"):
        return {}
    return {fact: said for fact, said in known.items() if fact.startswith(held_out) == (key == "eval_data")}


def values_of_both(
    baseline: Iterable[Run], candidate: Iterable[Run], pick: Pick
) -> Iterator[tuple[str, Values, Values]]:
    """Every key that a run of either side has, with its values on both."""
    left, right = values_of(baseline, pick), values_of(candidate, pick)
    for key in sorted(left.keys() | right.keys()):
        yield key, left.get(key, (ABSENT,)), right.get(key, (ABSENT,))


def values_of(runs: Iterable[Run], pick: Pick) -> dict[str, Values]:
    """Every key with the sorted set of values it has in the runs; ABSENT where a run lacks it."""
    facts = [pick(run) for run in runs]
    keys = {key for each in facts for key in each}
    return {key: tuple(sorted({str(each.get(key, ABSENT)) for each in facts})) for key in keys}


def obstacles(baseline: Version | None, left: Side, right: Side, made: tuple[Run, ...]) -> list[Check]:
    """What stands in the way of a comparison: no runs, no baseline, different work or hardware; worst first, empty if
    nothing does. `made`: the baseline's fresh runs."""
    if not right.evidence:
        code = ReasonCode.BROKEN_OFF if right.broken_off else ReasonCode.MISSING_DATA
        return [open_check("runs", _no_evidence("candidate", right), code)]
    if baseline is None:
        return [open_check("baseline", "there is no baseline to compare with", ReasonCode.NO_BASELINE)]
    if not left.evidence:
        return [open_check("baseline", _no_evidence("baseline", left), ReasonCode.MISSING_DATA)]
    found = []
    fresh = replace(left, evidence=(*left.evidence, *made))
    for what in ("workload", "hardware"):
        if keys := mismatches(fresh, right, what):
            changed = (f"{item.key}: {item.baseline} → {item.candidate}" for item in keys)
            reason = f"the {what} is not the same ({', '.join(changed)})"
            found.append(open_check(what, reason, ReasonCode.NOT_COMPARABLE))
    if not found and not right.finished:
        found.append(open_check("runs", "no candidate run finished", ReasonCode.MISSING_DATA))
    return found


def _no_evidence(name: str, side: Side) -> str:
    if not side.runs:
        return f"the {name} has no runs"
    return f"none of the {name}'s {counted(len(side.runs), 'run')} is evidence ({listed(side.left_out)})"
