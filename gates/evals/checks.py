"""One check for each benchmark that a policy names, and one for their mean, the suite.

Eight benchmarks that each must show that nothing was lost nearly never all do. So the mean is the gate, and each
benchmark a guard, which blocks but need not pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from canary_mlflow.gates.evals.pairing import Paired, Problem, copied, obstacle, pair
from canary_mlflow.gates.evals.rule import Seeds, against, seed_means, seeds_of
from canary_mlflow.gates.evals.suite import SHARES, Compared, suite_test
from canary_mlflow.gates.model.eval_rules import SUITE, About, EvalRule, EvalRules
from canary_mlflow.gates.model.items import Evaluated, ItemCounts
from canary_mlflow.gates.model.rules import Role
from canary_mlflow.gates.model.verdict import Check, CheckOutcome, Evidence, ReasonCode
from canary_mlflow.gates.model.wording import change, counted, listed, p_value, quantity


def eval_checks(
    rules: EvalRules, baseline: Evaluated, candidate: Evaluated, level: float, passing: float
) -> tuple[Check, ...]:
    """A check of each benchmark with a rule, then of the suite; a benchmark without a rule decides nothing. `level`: of
    BLOCK, for each of them. `passing`: of PASS."""
    asked = {name: rule for name, rule in rules.rules.items() if rule.role is not Role.IGNORE}
    found = {}
    for name, rule in asked.items():
        found[name] = _compared(name, rule, baseline, candidate, passing)
    every = list(found.values())
    if rules.suite is not None:
        every.append(_suite(rules.suite, [item for name, item in found.items() if asked[name].decides]))
    return tuple(item if isinstance(item, Check) else _answer(item, level, passing) for item in every)


def _compared(name: str, rule: EvalRule, baseline: Evaluated, candidate: Evaluated, passing: float) -> Compared | Check:
    """Both sides' items, or the check that says why not."""
    left, right = baseline.get(name, ()), candidate.get(name, ())
    if not left or not right:
        whose, there = ("candidate", candidate) if left else ("baseline", baseline)
        said = f"no evaluation of the {whose}" + (f", which has {listed(sorted(there))}" if there else "")
        return _open(name, rule.role, (said, ReasonCode.MISSING_DATA))  # not NO_BASELINE, which begins a model
    if all(table.aggregate is not None and not table.items for table in (*left, *right)):
        return _open(name, rule.role, ("aggregated only: no items to pair", ReasonCode.MISSING_DATA))
    paired = pair(left, right)
    if problem := obstacle(rule, left, right, paired):
        return _open(name, rule.role, problem)
    assert paired is not None
    higher, base = left[0].higher, float(paired.baseline.mean())
    if higher and not paired.found.stakes.any():
        reason = f"the baseline scores 0 on all {counted(len(paired.found.stakes), 'item')}: nothing to lose"
        return Check(metric=name, role=rule.role, outcome=CheckOutcome.NOT_JUDGED, reason=reason)
    if copied(left, right, paired):
        said = f"all {len(paired.keys)} answers are the same, as if the same weights had been asked twice"
        return _open(name, rule.role, (said, ReasonCode.SUSPECT_DATA))
    in_points = all(side.min() >= 0 and side.max() <= 1 for side in (paired.baseline, paired.candidate))
    if in_points and rule.margin >= 1:
        said = f"no score can fall by its limit of {rule.margin:g}; write 0.02 for 2 points"
        return _open(name, rule.role, (said, ReasonCode.SUSPECT_DATA))
    recipe = rule.about is About.RECIPE or max(len(left), len(right)) > 1  # several seeds are no weights
    sides = [seed_means(side) for side in (paired.baseline, paired.candidate)]
    test = against(paired.found, _limit(rule, base, higher), seeds_of(sides, rule.prior) if recipe else Seeds())
    note = f"left out, without a score of the baseline: {counted(paired.left_out, 'item')}"
    return Compared(
        name=name,
        role=rule.role,
        test=test,
        sides=(base, float(paired.candidate.mean())),
        higher=higher,
        in_points=in_points,
        seeds=(len(left), len(right)),
        counts=_counts(paired, test.margin, passing),
        notes=(note,) if paired.left_out else (),
        source=left[0].source,
        prior=rule.prior,
        paired=paired,
    )


def _counts(paired: Paired, margin: float, passing: float) -> ItemCounts:
    changed = np.round(paired.found.harms, 12)
    return ItemCounts(
        items=len(paired.keys),
        groups=paired.found.effective,
        broke=int((changed > 0).sum()),
        mended=int((changed < 0).sum()),
        lost=paired.found.missing,
        needed=paired.found.needed(margin, passing),
    )


def _limit(rule: EvalRule, base: float, higher: bool) -> float:
    return min(rule.margin, rule.share * base) if rule.share and higher and base > 0 else rule.margin


def _suite(margin: float, deciding: Sequence[Compared | Check]) -> Compared | Check:
    """The mean over the benchmarks that decide. What has nothing to lose has no part in it."""
    for one in deciding:
        if isinstance(one, Check) and one.reason_code:
            return _open(SUITE, Role.GATE, (one.reason, one.reason_code))
    parts = [one for one in deciding if isinstance(one, Compared) and one.paired]
    if not parts:
        return _open(SUITE, Role.GATE, ("no benchmark that decides has anything to lose", ReasonCode.MISSING_DATA))
    if odd := [one.name for one in parts if not one.in_points]:
        said = f"{odd[0]} has scores beyond 0 and 1, which have no mean with others; give it the role advisory"
        return _open(SUITE, Role.GATE, (said, ReasonCode.NOT_COMPARABLE))
    before, now = (float(np.mean([side(one).mean() for one in parts])) for side in SHARES)
    apart = [one.metric for one in deciding if isinstance(one, Check)]
    return Compared(
        name=SUITE,
        role=Role.GATE,
        test=suite_test(margin, parts),
        sides=(before, now),
        higher=True,
        in_points=True,
        seeds=(min(one.seeds[0] for one in parts), min(one.seeds[1] for one in parts)),
        notes=(f"not in the mean, with nothing to lose: {listed(apart)}",) if apart else (),
    )


def _answer(line: Compared, level: float, passing: float) -> Check:
    """PASS, BLOCK or what is missing, in the words and by the levels of every other check."""
    test, decides = line.test, line.role in (Role.GATE, Role.GUARD)
    scale, sign, unit = 100.0 if line.in_points else 1.0, -1.0 if line.higher else 1.0, "points" * line.in_points
    low, high = sorted(sign * scale * end for end in test.interval(passing))
    evidence = Evidence(
        unit=unit,
        baseline=scale * line.sides[0],
        candidate=scale * line.sides[1],
        baseline_runs=line.seeds[0],
        candidate_runs=line.seeds[1],
        relative=False,
        change=sign * scale * test.harm,
        change_low=low,
        change_high=high,
        margin=sign * scale * test.margin,
        p_harm=test.p_harm,
        p_noninferior=test.p_noninferior,
        items=line.counts,
    )
    by, most = (change(sign * scale * value, False, unit) for value in (test.harm, test.margin))
    before, now = (quantity(scale * side, "") for side in line.sides)
    said, code = f"{_called(line.name)} {before} → {now} ({by}, limit {most})", None
    if test.p_noninferior <= passing:
        outcome, why = CheckOutcome.PASS, f", within the limit with {p_value(test.p_noninferior)}"
    elif test.p_harm <= (level if decides else passing):
        outcome, code = (CheckOutcome.BLOCK, ReasonCode.REGRESSION) if decides else (CheckOutcome.WARN, None)
        why = f", worse with {p_value(test.p_harm)}"
    else:  # as of every metric, a guard leaves a verdict open only where harm beyond its limit is likely
        silent = not decides or (line.role is Role.GUARD and test.p_harm > passing)
        outcome = CheckOutcome.NOT_JUDGED if silent else CheckOutcome.INCONCLUSIVE
        code, why = _missing(line)
    return Check(
        metric=line.name,
        role=line.role,
        outcome=outcome,
        reason=said + why,
        reason_code=code,
        evidence=evidence,
        notes=line.notes,
    )


def _missing(line: Compared) -> tuple[ReasonCode, str]:
    """What would decide: seeds, items, or neither because the harm is near the limit."""
    counts, seeds = line.counts, line.test.seeds.variance
    if seeds > line.test.cautious:
        few = f"{line.seeds[0]} and {line.seeds[1]}"
        return (
            ReasonCode.TOO_FEW_RUNS,
            f": too few seeds ({few}) to tell the recipe from luck; evaluate 3 and 3 or more",
        )
    if counts and counts.needed > counts.items:
        said = f": too few items ({counts.items:,}) to decide; {counts.needed:,} like them would, if nothing changed"
        return ReasonCode.TOO_FEW_ITEMS, said
    return ReasonCode.NEAR_MARGIN, ": too close to the limit to decide"


def _called(name: str) -> str:
    """How a sentence begins, without changing a name's first letter."""
    return "mean of the suite" if name == SUITE else f"benchmark {name}"


def _open(name: str, role: Role, problem: Problem) -> Check:
    """What cannot be answered leaves the verdict open if the benchmark decides."""
    outcome = CheckOutcome.INCONCLUSIVE if role in (Role.GATE, Role.GUARD) else CheckOutcome.NOT_JUDGED
    reason = problem[0] if name == SUITE else f"{_called(name)}: {problem[0]}"
    return Check(metric=name, role=role, outcome=outcome, reason=reason, reason_code=problem[1])
