"""policy + baseline + candidate -> verdict. Pure: the same values give the same verdict, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gates.fact_check import alone, fact_checks, what_differs
from gates.facts import FACTS
from gates.hard_gates import hard_checks
from gates.metric_checks import metric_checks
from gates.notes import notes, of_checks, unsaid
from gates.pairs import Pairs, pair
from gates.policy import Policy
from gates.policy_writer import policy_to_dict
from gates.records import Version
from gates.root_causes import root_causes
from gates.rules import Role
from gates.sides import (
    Side,
    baseline_side,
    broken_off,
    candidate_side,
    facts,
    mismatches,
    planned,
)
from gates.verdict import Check, CheckOutcome, Difference, Outcome, ReasonCode, Verdict
from gates.wording import listed, runs, sentence_case
from gates.work import work_note

# Which open question to name first: the one whose answer is needed before the next makes sense.
_PRECEDENCE = (
    ReasonCode.BROKEN_OFF,
    ReasonCode.FAILS_ALIKE,
    ReasonCode.NO_BASELINE,
    ReasonCode.NOT_COMPARABLE,
    ReasonCode.FACTS_DIFFER,
    ReasonCode.INVALID_ENVIRONMENT,
    ReasonCode.SUSPECT_DATA,
    ReasonCode.MISSING_DATA,
    ReasonCode.TOO_FEW_RUNS,
    ReasonCode.TOO_NOISY,
    ReasonCode.NEAR_MARGIN,
)


def judge(
    policy: Policy,
    baseline: Version | None,
    candidate: Version,
    *,
    look: int | None = None,
    share: float | None = None,
    accepted: Sequence[Difference] = (),
) -> Verdict:
    """Judge the candidate's runs, against the baseline's where there is one (None: hard checks only).

    Exact facts first, then the hard checks that need no baseline; both block alone. Then comparability: other work or
    other hardware is never a PASS. Then one test per metric; docs/gate-made.md has the mathematics. `look`: which
    look of the policy's plan this is, counted from 1, spending only `share` of the error levels (None: the look's own);
    without a look all of them are spent at once. `accepted`: differing facts that somebody answers for.
    """
    right = candidate_side(candidate)
    left = baseline_side(baseline, right)
    said = facts(left, right)
    slips, plan = tuple(unsaid(policy, said)), policy.resolve(said)
    policy = plan if look is None else plan.spending(plan.looks.shares[look - 1] if share is None else share)
    pairs = pair(policy, baseline, right)
    obstacles = _validity(baseline, left, right, pairs)
    alike = not any(one.reason_code is ReasonCode.NOT_COMPARABLE for one in obstacles)
    changed, compared = what_differs(left.evidence, pairs.made, right.evidence, judged=alike and policy.hard.facts)
    checks = [*fact_checks(policy, changed, compared, accepted), *hard_checks(policy, right, baseline)]
    more_runs = None
    if obstacles:
        checks += obstacles
    else:
        metrics = metric_checks(policy, left, right, plan, pairs)
        checks, more_runs = [*checks, *metrics.checks], metrics.more_runs
    outcome, code, reason = _decide(policy, checks)
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
        baseline_runs=tuple(run.run_id for run in (*left.evidence, *pairs.beside)),
        candidate_runs=tuple(run.run_id for run in right.evidence),
        more_runs=more_runs if outcome is Outcome.INCONCLUSIVE else None,
        look=look,
        planned_runs=planned(right.evidence),
        compared=compared,
        causes=tuple(root_causes(left.evidence, right.runs)) if alike and outcome is not Outcome.PASS else (),
        notes=(*slips, *notes(policy, left, right, pairs), *of_checks(checks), *_work(left, right, outcome)),
    )


def _work(left: Side, right: Side, outcome: Outcome) -> tuple[str, ...]:
    sides = ([run.facts for run in side.evidence] for side in (left, right))
    said = work_note(*sides, explained=outcome is Outcome.PASS)
    return (said,) if said else ()


def _validity(baseline: Version | None, left: Side, right: Side, pairs: Pairs) -> list[Check]:
    """Checks that make a comparison impossible, worst first; empty when nothing stands in its way."""
    if not right.evidence:
        code = ReasonCode.BROKEN_OFF if broken_off(right) else ReasonCode.MISSING_DATA
        return [_impossible("runs", _no_evidence("candidate", right), code)]
    if baseline is None:
        return [_impossible("baseline", "there is no baseline to compare with", ReasonCode.NO_BASELINE)]
    if not left.evidence:
        return [_impossible("baseline", _no_evidence("baseline", left), ReasonCode.MISSING_DATA)]
    found = []
    fresh = replace(left, evidence=(*left.evidence, *pairs.made))
    for what in ("workload", "hardware"):
        if keys := mismatches(fresh, right, what):
            changed = [f"{item.key}: {item.baseline} -> {item.candidate}" for item in keys]
            reason = f"the {what} is not the same ({listed(changed, most=len(changed))})"
            found.append(_impossible(what, reason, ReasonCode.NOT_COMPARABLE))
    if not found and not right.finished:
        found.append(_impossible("runs", "no candidate run finished", ReasonCode.MISSING_DATA))
    return found


def _no_evidence(name: str, side: Side) -> str:
    if not side.runs:
        return f"the {name} has no runs"
    return f"none of the {name}'s {runs(len(side.runs))} is evidence ({listed(side.left_out)})"


def _impossible(what: str, reason: str, code: ReasonCode) -> Check:
    return Check(metric=what, role=Role.HARD, outcome=CheckOutcome.INCONCLUSIVE, reason=reason, reason_code=code)


def _decide(policy: Policy, checks: Sequence[Check]) -> tuple[Outcome, ReasonCode, str]:
    """BLOCK if anything blocks; PASS if everything that decides passed and something was judged; else
    neither."""
    deciding = [check for check in checks if check.role in (Role.HARD, Role.GATE, Role.GUARD)]
    blocking = [check for check in deciding if check.outcome is CheckOutcome.BLOCK]
    if blocking:
        return Outcome.BLOCK, _code(blocking[0]), _sentence(blocking)
    missing = [check for check in checks if check.outcome is CheckOutcome.INCONCLUSIVE]
    if missing:
        missing.sort(key=lambda check: _PRECEDENCE.index(_code(check)))
        return Outcome.INCONCLUSIVE, _code(missing[0]), _sentence(missing)
    passed = [check for check in deciding if check.role is Role.GATE and check.outcome is CheckOutcome.PASS]
    if alone(policy) and any(check.metric == FACTS for check in deciding):
        return Outcome.PASS, ReasonCode.PASS, "Every exact fact is equal, or differs by rounding alone."
    if not passed:
        return Outcome.INCONCLUSIVE, ReasonCode.MISSING_DATA, "No gate metric could be judged."
    within = [check.metric for check in passed if not check.evidence or check.evidence.within]
    besides = [check.metric for check in passed if check.metric not in within]
    judged = "No worse than the baseline" + (
        f", within every limit: {listed(within, most=len(within))}." if within else "."
    )
    if besides:
        judged += f" No harm, because nothing takes longer for it: {listed(besides)}."
    if warned := [check.metric for check in checks if check.outcome is CheckOutcome.WARN]:
        judged += f" Beyond a limit that only warns: {listed(warned, most=len(warned))}."
    return Outcome.PASS, ReasonCode.PASS, judged


def _code(check: Check) -> ReasonCode:
    assert check.reason_code, f"{check.metric}: a deciding check without a reason code"
    return check.reason_code


def _sentence(checks: Sequence[Check]) -> str:
    first = checks[0]
    named = f"{first.metric}: " if first.reason_code in (ReasonCode.HARD_GATE, ReasonCode.FAILS_ALIKE) else ""
    also = f"; also {listed([check.metric for check in checks[1:]])}" if len(checks) > 1 else ""
    return sentence_case(f"{named}{first.reason}{also}.")
