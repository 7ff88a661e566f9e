"""Whether to add runs to a comparison that decided nothing: a plan of looks, stopped as early as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from canary_mlflow.gates.evidence.clocks import contended, judged_in_pairs
from canary_mlflow.gates.hard.crashes import crashes
from canary_mlflow.gates.hard.hard_gates import hard_checks
from canary_mlflow.gates.judge import judge
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Run, Version
from canary_mlflow.gates.model.rules import Role
from canary_mlflow.gates.model.sides import Side, baseline_side, candidate_side, conditions, mismatches, planned
from canary_mlflow.gates.model.verdict import CheckOutcome, Difference, Outcome, ReasonCode, Verdict
from canary_mlflow.gates.model.wording import counted

GIVEN_UP = 2.0
"""A plan is given up when a check needs more than this many times the runs that the plan has."""
_MORE_RUNS_HELP = (ReasonCode.BROKEN_OFF, ReasonCode.TOO_FEW_RUNS, ReasonCode.NEAR_MARGIN, ReasonCode.TOO_NOISY)


@dataclass(frozen=True, kw_only=True)
class TopUp:
    """What to do after a look.

    `look`: the next look, due when the candidate has `candidate_runs` runs in all; None to stop, for `reason`.
    """

    look: int | None
    candidate_runs: int
    reason: str


def champion_runs(policy: Policy, baseline: Version | None, candidate: Version) -> int:
    """How many runs a candidate needs to replace the baseline: enough to be a baseline itself, and no fewer than the
    baseline has."""
    there = baseline_side(baseline.runs if baseline else (), candidate_side(candidate.runs)).finished
    return max(policy.min_baseline_runs, planned(there))


def next_look(
    policy: Policy, verdict: Verdict, *, fresh: bool = False, again: bool = True, owing: int | None = None
) -> TopUp:
    """What should follow `verdict`, which came from a look of this policy's plan.

    `fresh`: the next runs come with fresh runs of the baseline, so a machine that has changed since does not matter.
    `again`: runs that broke off can still be repeated. `owing`: how many runs a version must have before it can be
    promoted; None if it has enough.

    Stops at the first PASS or BLOCK, at the end of the plan, when more runs would not help (different work, missing
    data), and when no number of runs that the plan affords would decide. A version that owes runs goes on to the look
    that has them, so that whatever is promoted was judged by all of its runs.
    """
    assert verdict.look is not None, "the verdict was no look of a plan"
    have = verdict.planned_runs or 0
    if owing is not None:
        numbered = enumerate(policy.looks.runs, 1)
        later = next(((look, count) for look, count in numbered if look > verdict.look and count >= owing), None)
        if later is not None:
            reason = f"nothing found in {counted(have, 'candidate run')}, a champion needs {owing}"
            return TopUp(look=later[0], candidate_runs=later[1], reason=reason)
    if stop := _why_stop(policy, verdict, have, fresh=fresh, again=again):
        return TopUp(look=None, candidate_runs=have, reason=stop)
    wanted = policy.looks.runs[verdict.look]
    return TopUp(
        look=verdict.look + 1, candidate_runs=wanted, reason=f"undecided after {counted(have, 'candidate run')}"
    )


def _why_stop(policy: Policy, verdict: Verdict, have: int, *, fresh: bool, again: bool) -> str:
    """Why no look should follow; '' if one should."""
    most = policy.looks.runs[-1]
    if verdict.outcome is not Outcome.INCONCLUSIVE:
        return f"decided: {verdict.outcome}"
    if verdict.look == len(policy.looks.runs):
        return f"the plan ends with {counted(most, 'candidate run')}" if have >= most else "it was the last of the plan"
    if verdict.reason_code is ReasonCode.BROKEN_OFF and not again:
        return "what broke off is not made again, or not any more"
    answered = (ReasonCode.INVALID_ENVIRONMENT,) if fresh else ()
    if verdict.reason_code not in (*_MORE_RUNS_HELP, *answered):
        return f"more runs are no answer to {verdict.reason_code}"
    return _hopeless(policy, verdict, most, fresh)


def to_run_again(
    policy: Policy, reference: Sequence[Run], candidate: Version, beside: Sequence[Run] | None = None
) -> dict[int, str]:
    """The seeds whose candidate runs should be repeated, and why: they broke off, or a deciding metric needs a clock
    and theirs does not count beside the `reference` runs (or today's, `beside`). Seeds already repeated `reruns` times
    are left out. Empty if more runs would be in vain."""
    baseline = Version(model="", version=None, runs=tuple(reference), fresh=tuple(beside or ()))
    if in_vain(policy, baseline, candidate):
        return {}
    policy, left, right = _sides(policy, reference, candidate)
    clocks = left.finished if beside is None else _sides(policy, beside, candidate)[1].finished
    wanted = _without_clock(policy, clocks, right) | (_broken_off(right) if policy.hard.completed else {})
    tried = Counter(run.seed for run in right.runs if run.failure != "interrupted")  # stopped, it was no try
    return {seed: why for seed, why in sorted(wanted.items()) if tried[seed] <= policy.validity.reruns}


def stays_open(side: Version) -> bool:
    """Whether the runs that broke off leave a side undecided, however many of its other runs finish."""
    found = candidate_side(side.runs)
    return bool(found.broken_off or found.stopped or crashes(side.runs, None))


def in_vain(policy: Policy, baseline: Version, candidate: Version) -> bool:
    """Whether more runs would change nothing: a hard check blocks, or work or hardware differ between the sides."""
    policy, left, right = _sides(policy, baseline.runs, candidate)
    blocked = any(check.outcome is CheckOutcome.BLOCK for check in hard_checks(policy, right, baseline))
    both = left.evidence and right.evidence
    return blocked or bool(both and any(mismatches(left, right, what) for what in ("workload", "hardware")))


def certain(
    policy: Policy,
    baseline: Version | None,
    candidate: Version,
    missing: int,
    accepted: Sequence[Difference] = (),
    *,
    by_plan: bool = False,
) -> str:
    """The check that blocks although runs are `missing`: a hard one or the facts, which would whatever they showed, or
    a metric, with its share of the level of BLOCK, unless looks come `by_plan`, which have it all. '' for none, and if
    the policy does not end a session for it. `accepted`: as for `judge`."""
    if not policy.fail_fast or not candidate.runs:
        return ""
    policy = replace(policy, rules=(), overlays=()) if by_plan else policy
    checks = judge(policy, baseline, candidate, accepted=accepted, missing=missing).checks
    return next((one.named for one in checks if one.outcome is CheckOutcome.BLOCK), "")


def _sides(policy: Policy, reference: Sequence[Run], candidate: Version) -> tuple[Policy, Side, Side]:
    right = candidate_side(candidate.runs)
    left = baseline_side(reference, right)
    return policy.resolve(conditions(left, right)), left, right


def _broken_off(side: Side) -> dict[int, str]:
    """The seeds whose runs broke off and without which nothing passes; not those of an exception that recurred."""
    known = {crash.seed for crash in crashes(side.runs, None) if crash.recurred}
    return {
        run.seed: f"broke off ({run.failure_reason or 'no end was recorded'})"
        for run in (*side.broken_off, *side.stopped)
        if run.seed is not None and run.seed not in known
    }


def _without_clock(policy: Policy, clocks: Sequence[Run], right: Side) -> dict[int, str]:
    if not any(rule.role is Role.GATE and rule.info.wall_clock for rule in policy.rules):
        return {}
    invalid = contended(policy, clocks, right.finished)
    timed: dict[int, list[str]] = {}
    for run in right.finished:
        if run.seed is not None:
            timed.setdefault(run.seed, []).append(run.run_id)
    return {seed: invalid[ids[-1]] for seed, ids in timed.items() if all(run_id in invalid for run_id in ids)}


def next_seeds(count: int, baseline: Collection[int], candidate: Collection[int]) -> list[int]:
    """Seeds for `count` more candidate runs: first those that only the baseline has, so that runs pair up; then the
    lowest that neither side has."""
    pairs = sorted(set(baseline) - set(candidate))
    start = min(candidate, default=0)
    used = {*baseline, *candidate}
    new = [seed for seed in range(start, start + count + len(used)) if seed not in used]
    return [*pairs, *new][:count]


def _hopeless(policy: Policy, verdict: Verdict, most: int, fresh: bool) -> str:
    """Why the first hopeless open check cannot be decided: the plan affords too few runs for it, both by the current
    estimate, which one run can mislead, and if nothing had changed.

    The numbers of runs are those that decide 4 times out of 5. Half as many still decide every other time, so only a
    plan that has fewer than half is given up. Fresh baseline runs measure anew what depends on the machine.
    """
    in_pairs = {rule.name for rule in policy.rules if judged_in_pairs(rule)} if fresh else set()
    for check in verdict.checks:
        apart = check.metric in in_pairs and not (check.evidence and check.evidence.paired)
        again = check.reason_code is ReasonCode.BROKEN_OFF  # its seed is made again first
        told_anew = again or (fresh and (apart or check.reason_code is ReasonCode.INVALID_ENVIRONMENT))
        if check.outcome is CheckOutcome.INCONCLUSIVE and not told_anew:
            ways = [needed for needed in (check.more_runs, check.runs_if_unchanged) if needed is not None]
            if not ways:
                return f"{check.metric}: no number of runs would decide"
            if min(ways) > GIVEN_UP * most:
                return f"{check.metric}: {counted(min(ways), 'run')} per side would decide, the plan has {most}"
    return ""
