"""Whether to add runs to a comparison that decided nothing: a plan of looks, stopped as early as can be."""

from __future__ import annotations

from dataclasses import dataclass

from gates.policy import Policy
from gates.verdict import CheckOutcome, Outcome, ReasonCode, Verdict
from gates.wording import runs

_MORE_RUNS_HELP = (ReasonCode.TOO_FEW_RUNS, ReasonCode.NEAR_MARGIN, ReasonCode.TOO_NOISY)


@dataclass(frozen=True, kw_only=True)
class TopUp:
    """What to do after a look.

    `look`: the next one, after `candidate_runs` runs in all; None to stop, for `reason`.
    """

    look: int | None
    candidate_runs: int
    reason: str


def first_look(policy: Policy) -> TopUp:
    """The plan's beginning."""
    wanted = policy.looks.runs[0]
    return TopUp(look=1, candidate_runs=wanted, reason=f"the plan begins with {runs(wanted, 'candidate')}")


def next_look(policy: Policy, verdict: Verdict) -> TopUp:
    """What should follow `verdict`, which was a look of this policy's plan.

    Stops at the first PASS or BLOCK, at the end of the plan, where more runs are no answer (other work, missing data),
    and where no number of runs that the plan affords would decide.
    """
    assert verdict.look is not None, "the verdict was no look of a plan"
    have, most = len(verdict.candidate_runs), policy.looks.runs[-1]
    if verdict.outcome is not Outcome.INCONCLUSIVE:
        return TopUp(look=None, candidate_runs=have, reason=f"decided: {verdict.outcome}")
    if verdict.look == len(policy.looks.runs):
        return TopUp(look=None, candidate_runs=have, reason=f"the plan ends with {runs(most, 'candidate')}")
    if verdict.reason_code not in _MORE_RUNS_HELP:
        return TopUp(look=None, candidate_runs=have, reason=f"more runs are no answer to {verdict.reason_code}")
    if hopeless := _hopeless(verdict, most):
        return TopUp(look=None, candidate_runs=have, reason=hopeless)
    wanted = policy.looks.runs[verdict.look]
    return TopUp(look=verdict.look + 1, candidate_runs=wanted, reason=f"undecided after {runs(have, 'candidate')}")


def _hopeless(verdict: Verdict, most: int) -> str:
    """The first open check that no affordable number of runs decides: neither as the estimate stands, which one run
    can mislead, nor if nothing had changed."""
    for check in verdict.checks:
        if check.outcome is CheckOutcome.INCONCLUSIVE:
            ways = [needed for needed in (check.more_runs, check.runs_if_unchanged) if needed is not None]
            if not ways:
                return f"{check.metric}: no number of runs would decide"
            if min(ways) > most:
                return f"{check.metric}: {runs(min(ways))} per side would decide, the plan has {most}"
    return ""
