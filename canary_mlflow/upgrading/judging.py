"""Compares two sets of packages by what one command did with each: exact facts, exceptions, invariants, the course of
its trainings, what it saved, and what it cost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from canary_mlflow.gates.facts.check import said
from canary_mlflow.gates.facts.exact import DEFAULTED, bare, fact_differences, pairs_of, rounding_of
from canary_mlflow.gates.facts.regressions import decisive_first, regressions
from canary_mlflow.gates.facts.work import MATERIAL, WORK, beyond, compare_work
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.verdict import Difference
from canary_mlflow.upgrading.probing import Probe
from canary_mlflow.upgrading.run_comparison import BESIDES, REPEATS, Symptom, dearer, differences

CRASH = "crash"
INVARIANTS = "invariants"
NONFINITE = "nonfinite"
FOLLOWS = ("first.loss", "first.grad_norm")
"""What differs because something else does, such as the tokens: told after it."""
BUDGET = {"flops": 0.2, "traffic": 0.2, "allocated": 0.2}
"""By how much more a step may ask for before that blocks: the gate's limits for its cost and its memory."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What a set of packages does differently. `suspects`: what seems to cost more, in too few repetitions to
    know. `work`: a material difference in the work of a step, the most telling first. `besides`: what is logged
    otherwise and is no harm by itself. `open`: why nothing can be told, in a clause; '' if it can."""

    symptoms: tuple[Symptom, ...]
    differences: tuple[Difference, ...]
    suspects: tuple[Symptom, ...] = ()
    work: tuple[str, ...] = ()
    besides: tuple[str, ...] = ()
    open: str = ""

    @property
    def blocks(self) -> bool:
        """Whether it is shown to be worse."""
        return bool(self.symptoms)

    @property
    def flipped(self) -> tuple[Difference, ...]:
        """Settings that nobody gave and that a library now resolves differently."""
        return tuple(one for one in self.differences if bare(one.key).startswith(DEFAULTED))

    def shows(self, others: Sequence[Symptom]) -> bool:
        """Whether it has one of these symptoms."""
        return not {one.key for one in self.symptoms}.isdisjoint(one.key for one in others)


def compare(baseline: Sequence[Probe], candidate: Sequence[Probe]) -> Diagnosis:
    """What the candidate's first probe shows against the baseline's. The others are repetitions: of the baseline, to
    see what is not reproducible, as in a script without a seed, and tells nothing; of both, to know what they cost."""
    before, now = baseline[0], candidate[0]
    if before.ended:
        return Diagnosis(
            symptoms=(), differences=(), open=f"the command fails with the packages at hand: {before.ended}"
        )
    crash = (Symptom(key=f"{CRASH}:{now.kind}", said=now.ended),) if now.ended else ()
    if crash and not (before.runs and now.runs):
        return Diagnosis(symptoms=crash, differences=())
    if not before.runs or not now.runs:
        return Diagnosis(
            symptoms=(), differences=(), open="it recorded no run; expected CanaryCallback in the training"
        )
    again = [run for probe in baseline[1:] for run in probe.runs]
    runs = (*before.runs, *again)
    facts = _facts(before.runs, again, now.runs)
    symptoms = [Symptom(key=one.key, said=said(one)) for one in facts if one.decides]
    unknown = "" if any(run.facts for run in now.runs) else "its runs recorded no facts"
    did = [] if crash else _did_otherwise(baseline, now)
    dear = () if crash else _costs(baseline, candidate)
    known = min(len(baseline), len(candidate)) >= REPEATS
    return Diagnosis(
        symptoms=(
            *crash,
            *sorted(symptoms, key=lambda one: bare(one.key).startswith(FOLLOWS)),
            *_hard(runs, now.runs),
            *_more_work(before.runs, now.runs),
            *(one for one in did if not one.key.startswith(BESIDES)),
            *_unsent(facts),
            *(dear if known else ()),
        ),
        differences=tuple(facts),
        suspects=() if known else dear,
        work=_other_work(before.runs, now.runs),
        besides=tuple(one.said for one in did if one.key.startswith(BESIDES)),
        open="" if crash else unknown,
    )


def _did_otherwise(baseline: Sequence[Probe], now: Probe) -> list[Symptom]:
    """Another course, other files: each kind once, as it first shows."""
    rounding = min(rounding_of(run, "") for run in (*baseline[0].runs, *now.runs))
    first: dict[str, Symptom] = {}
    for one in differences([probe.recording for probe in baseline], now.recording, rounding):
        first.setdefault(one.key, one)
    return [*first.values()]


def _costs(baseline: Sequence[Probe], candidate: Sequence[Probe]) -> tuple[Symptom, ...]:
    here, there = ([probe.costs for probe in side] for side in (baseline, candidate))
    return tuple(dearer(here, there, baseline[0].recording.unit))


def _facts(before: Sequence[Run], again: Sequence[Run], now: Sequence[Run]) -> list[Difference]:
    """The facts that differ, each once, those that decide marked. A script may train several times with one seed: its
    first training is compared with the first, and so on."""
    kept: dict[str, Difference] = {}
    sides = [_trainings(side) for side in (before, now, again)]
    for at, (here, there) in enumerate(zip(*sides[:2], strict=False)):
        baseline = [*here, *(sides[2][at] if at < len(sides[2]) else ())]
        found = decisive_first(fact_differences(baseline, there))
        decides = {one.key: one for one in regressions(found, (*baseline, *there))}
        for one in found:
            if one.key not in kept or (one.key in decides and not kept[one.key].decides):
                kept[one.key] = decides.get(one.key, one)
    return list(kept.values())


def _trainings(runs: Sequence[Run]) -> list[list[Run]]:
    """The first run of each seed, then the second of each, and so on."""
    met: Counter[int | None] = Counter()
    found: list[list[Run]] = []
    for run in runs:
        if met[run.seed] == len(found):
            found.append([])
        found[met[run.seed]].append(run)
        met[run.seed] += 1
    return found


def _unsent(facts: Sequence[Difference]) -> Iterator[Symptom]:
    """Where a training does not send its values any more."""
    pairs = [pair for one in facts if bare(one.key) == "arguments.report_to" for pair in pairs_of(one).values()]
    for before, now in (map(json_or_text, pair) for pair in pairs):
        if isinstance(before, list) and isinstance(now, list):
            for name in sorted({*before} - {*now}):
                yield Symptom(key=f"reported:{name}", said=f"values are no longer sent to {name}")


def json_or_text(text: str) -> Any:
    """A value as canary_mlflow.tracking.describing.fact_tags writes it: texts as they are, everything else as JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _hard(before: Sequence[Run], now: Sequence[Run]) -> Iterator[Symptom]:
    """Symptoms that need no comparison of numbers, only that the other side does not have them."""
    for run in now:
        if run.invariants.startswith("broken") and not any(one.invariants.startswith("broken") for one in before):
            yield Symptom(key=INVARIANTS, said=run.invariants.partition(":")[2].strip())
        if run.nan_steps + run.inf_steps and not any(one.nan_steps + one.inf_steps for one in before):
            yield Symptom(key=NONFINITE, said=f"{run.nan_steps + run.inf_steps} steps with NaN or infinities")


def _more_work(before: Sequence[Run], now: Sequence[Run]) -> list[Symptom]:
    """A step that asks torch for more than the budget allows. Counts have no noise, so one pair of runs tells."""
    over = [line for here, there in _pairs(before, now) for line in beyond(here.facts, there.facts, BUDGET)]
    counts = {line.partition(" ")[0]: line for line in reversed(over)}
    return [Symptom(key=f"{WORK}{count}", said=f"work of a step: {line}") for count, line in counts.items()]


def _other_work(before: Sequence[Run], now: Sequence[Run]) -> tuple[str, ...]:
    found = (compare_work(here.facts, there.facts) for here, there in _pairs(before, now))
    return next((one.said for one in found if one.kind == MATERIAL), ())


def _pairs(before: Sequence[Run], now: Sequence[Run]) -> list[tuple[Run, Run]]:
    return [
        (here, there)
        for left, right in zip(_trainings(before), _trainings(now), strict=False)
        for here in left for there in right if here.seed == there.seed
    ]  # fmt: skip
