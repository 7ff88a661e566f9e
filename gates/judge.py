"""policy + baseline + candidate -> verdict. Pure: the same values give the same verdict, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from canary_mlflow.gates.evals.checks import eval_checks
from canary_mlflow.gates.evidence.clocks import pair
from canary_mlflow.gates.facts.check import CONFIGURATION, HARDWARE, fact_check, facts_only, unrecorded, what_differs
from canary_mlflow.gates.facts.exact import FACTS
from canary_mlflow.gates.facts.work import work_note
from canary_mlflow.gates.hard.hard_gates import hard_checks
from canary_mlflow.gates.metric_checks import metric_checks
from canary_mlflow.gates.model.items import Evaluated
from canary_mlflow.gates.model.policy import Policy, policy_to_dict
from canary_mlflow.gates.model.records import Version
from canary_mlflow.gates.model.rules import Role
from canary_mlflow.gates.model.sides import baseline_side, candidate_side, conditions, obstacles, planned
from canary_mlflow.gates.model.verdict import Check, CheckOutcome, Difference, Outcome, ReasonCode, Verdict
from canary_mlflow.gates.model.wording import change, listed, sentence_case
from canary_mlflow.gates.notes import notes, of_checks, unsaid
from canary_mlflow.gates.root_causes import COSTS, harmed, root_causes

BLOCK, INCONCLUSIVE = CheckOutcome.BLOCK, CheckOutcome.INCONCLUSIVE


def judge(
    policy: Policy,
    baseline: Version | None,
    candidate: Version,
    *,
    look: int | None = None,
    share: float | None = None,
    accepted: Sequence[Difference] = (),
    anchor: bool = False,
    missing: int = 0,
) -> Verdict:
    """Judge the candidate's runs against the baseline's; without a baseline, by the hard checks only.

    Exact facts come first, then the hard checks that need no baseline; either can block on its own. Then comparability:
    different work or hardware never gives a PASS. Then one test per metric; docs/measured/judge.md has the mathematics.
    `look`: the number of this look in the policy's plan, counted from 1; None spends the full error levels at once, but
    for what early looks have of them.
    `share`: the share of the error levels that the look may spend; None takes the plan's. `accepted`: differing facts
    that somebody answers for. `anchor`: the baseline is the anchor. `missing`: runs still to come, which hard checks
    count as good ones, and before which metrics spend their share of an early look.
    """
    right = candidate_side(candidate.runs)
    left = baseline_side(baseline.runs if baseline else (), right)
    known = conditions(left, right)
    typos, plan = tuple(unsaid(policy, known)), policy.resolve(known)
    plan = plan.anchored() if anchor else plan
    if look is None:
        policy = plan = replace(plan, alpha_block=plan.alpha_block * plan.early_share(planned(right.evidence), missing))
    else:
        policy = plan.spending(plan.looks.shares[look - 1] if share is None else share)
    pairs = pair(policy, baseline, left, right)
    in_the_way = obstacles(baseline, left, right, pairs.fresh)
    alike = not any(one.reason_code is ReasonCode.NOT_COMPARABLE for one in in_the_way)
    changed, compared = what_differs(left.evidence, pairs.fresh, right.evidence, judged=alike and policy.hard.facts)
    lacking = "" if in_the_way else unrecorded(left.finished, right.finished, changed)
    of_facts = fact_check(policy, changed, compared, accepted, lacking)
    checks = [*filter(None, [of_facts]), *hard_checks(policy, right, baseline, missing)]
    same = CONFIGURATION in compared and not any(one.group not in (FACTS, HARDWARE) for one in changed)
    metrics, more_runs = (
        (in_the_way, None)
        if in_the_way
        else metric_checks(policy.of_metrics(), left, right, plan.of_metrics(), pairs, same)
    )
    benchmarks = benchmark_checks(policy, baseline.evals, candidate.evals) if baseline else ()
    checks = by_urgency(policy, [*checks, *metrics, *benchmarks])
    outcome, code, reason = decide(policy, checks)
    units = harmed(policy, checks, outcome, right.runs)
    causes = root_causes(left.evidence, right.runs, units) if alike and outcome is not Outcome.PASS else ()
    work = work_note(left.evidence, right.evidence, explained=units.isdisjoint(COSTS))
    return Verdict(
        model=candidate.model,
        candidate_version=candidate.version,
        baseline_version=baseline.version if baseline else None,
        outcome=outcome,
        reason=reason,
        reason_code=code,
        checks=tuple(checks),
        differences=changed,
        policy=policy_to_dict(policy),
        baseline_runs=tuple(run.run_id for run in (*left.evidence, *pairs.used)),
        candidate_runs=tuple(run.run_id for run in right.evidence),
        more_runs=more_runs if outcome is Outcome.INCONCLUSIVE else None,
        look=look,
        planned_runs=planned(right.evidence),
        compared=compared,
        causes=tuple(causes),
        notes=(*typos, *notes(left, right, pairs), *of_checks(checks), *filter(None, [work])),
    )


def judge_evals(policy: Policy, baseline: Evaluated, candidate: Evaluated) -> Verdict:
    """Judge two sides by their benchmarks alone, with all of the level of BLOCK."""
    checks = benchmark_checks(replace(policy, rules=()), baseline, candidate)
    outcome, code, reason = decide(policy, checks)
    return Verdict(
        model="",
        candidate_version=None,
        baseline_version=None,
        outcome=outcome,
        reason=reason,
        reason_code=code,
        checks=checks,
        differences=(),
        policy=policy_to_dict(policy),
        baseline_runs=(),
        candidate_runs=(),
        more_runs=None,
        notes=of_checks(checks),
    )


def benchmark_checks(policy: Policy, baseline: Evaluated, candidate: Evaluated) -> tuple[Check, ...]:
    """One check per benchmark that the policy names, each with its share of the level of BLOCK."""
    if policy.evals is None:
        return ()
    level = (policy.alpha_block - policy.of_metrics().alpha_block) / max(1, policy.evals.deciding)
    return eval_checks(policy.evals, baseline, candidate, level, policy.alpha_pass)


def decide(policy: Policy, checks: Sequence[Check]) -> tuple[Outcome, ReasonCode, str]:
    """BLOCK if anything blocks; PASS if everything that decides passed and something was judged; else INCONCLUSIVE."""
    deciding = [check for check in checks if check.role in (Role.HARD, Role.GATE, Role.GUARD)]
    blocking = [check for check in deciding if check.outcome is CheckOutcome.BLOCK]
    if blocking:
        return Outcome.BLOCK, _code(blocking[0]), _sentence(blocking)
    missing = [check for check in checks if check.outcome is CheckOutcome.INCONCLUSIVE]
    if missing:
        missing.sort(key=lambda check: list(ReasonCode).index(_code(check)))
        return Outcome.INCONCLUSIVE, _code(missing[0]), _sentence(missing)
    passed = [check.metric for check in deciding if check.role is Role.GATE and check.outcome is CheckOutcome.PASS]
    if facts_only(policy) and any(check.metric == FACTS for check in deciding):
        return Outcome.PASS, ReasonCode.PASS, "Every exact fact is equal, or differs by rounding alone."
    if not passed:
        return Outcome.INCONCLUSIVE, ReasonCode.MISSING_DATA, "No gate metric could be judged."
    judged = f"No worse than the baseline, within every limit: {', '.join(passed)}."
    if warned := [_by_how_much(check) for check in checks if check.outcome is CheckOutcome.WARN]:
        judged += f" Beyond a limit that only warns: {', '.join(warned)}."
    return Outcome.PASS, ReasonCode.PASS, judged


def by_urgency(policy: Policy, checks: Sequence[Check]) -> list[Check]:
    """The checks with those that block, or leave the verdict open, first: facts, what broke, what was learned, and last
    what it costs."""
    costs, asking = {rule.name for rule in policy.rules if rule.info.group == "perf"}, (BLOCK, INCONCLUSIVE)
    return sorted(checks, key=lambda one: one.metric in costs if one.outcome in asking else 2)


def _by_how_much(check: Check) -> str:
    found = check.evidence
    if found is None or found.change is None:
        return check.metric
    return f"{check.metric} ({change(found.change, found.relative, found.unit)})"


def _code(check: Check) -> ReasonCode:
    assert check.reason_code, f"{check.metric}: a deciding check without a reason code"
    return check.reason_code


def _sentence(checks: Sequence[Check]) -> str:
    first = checks[0]
    named = f"{first.named}: " if first.reason_code in (ReasonCode.HARD_GATE, ReasonCode.FAILS_ALIKE) else ""
    also = f"; also {listed([check.named for check in checks[1:]])}" if len(checks) > 1 else ""
    return sentence_case(f"{named}{first.reason}{also}.")
