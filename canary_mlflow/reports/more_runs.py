"""How many runs would decide, and how to make them."""

from __future__ import annotations

import shlex

from canary_mlflow.policies import policy_names
from canary_mlflow.reports.decision import Decision
from gates.model.metrics import METRICS
from gates.model.verdict import CheckOutcome, ReasonCode, Verdict
from gates.stats.planning import MAX_RUNS

NO_MORE = "no more runs can be made"
NO_FRESH = "no fresh baseline, and the policy does not go on without one"
"""How notes begin of a plan that cannot go on: its command is no advice then."""


def more_runs(decision: Decision, needed: int) -> str:
    """How to get `needed` runs per side, by each possible way."""
    verdict = decision.verdict
    if words := champion_is_short(decision, needed):
        goes_on = verdict.look is not None and plan_reaches(verdict, 0) and not decision.own_script
        return f"{words} Its plan may decide sooner: {top_up_command(decision)}" if goes_on else words
    missing = max(0, needed - len(verdict.candidate_runs)) if plan_reaches(verdict, needed) else 0
    each = decision.run_minutes
    time = f", {lasting(missing * each)} for the candidate's {missing} more" if each is not None and missing else ""
    add = f", or add them: {top_up_command(decision)}" if missing and not decision.own_script else ""
    now = f"now {have(verdict)}{time}"
    return f"About {needed} runs per side would decide ({now}): train {seeds(decision, needed)}{add}."


def seeds(decision: Decision, count: int) -> str:
    """`5 seeds (repeats=5)`: what a version that is trained again must be made of."""
    return f"{count} seeds in one session" if decision.own_script else f"{count} seeds (repeats={count})"


def have(verdict: Verdict) -> str:
    """`3 against 5`: runs of the candidate and of the baseline."""
    return f"{len(verdict.candidate_runs)} against {len(verdict.baseline_runs)}"


def champion_is_short(decision: Decision, needed: int) -> str:
    """What to do if the champion has fewer runs than needed; '' if it has enough. Topping up adds runs to the champion
    only if the policy always makes fresh ones."""
    verdict = decision.verdict
    looks = verdict.policy.get("looks", {})
    grows = looks.get("fresh_baseline", "always") == "always" and plan_reaches(verdict, 0) and not decision.own_script
    if len(verdict.baseline_runs) >= needed or grows:
        return ""
    return (
        f"About {needed} runs per side would decide (now {have(verdict)}), and the champion's stay as they are: train "
        f"its code again with {seeds(decision, needed)}, which makes that the champion, then this one."
    )


def top_up_command(decision: Decision) -> str:
    """The command that adds runs; a user's policy must be named again."""
    policy = str(decision.verdict.policy.get("name", ""))
    own = "" if policy in (*policy_names(), "") else f" --policy FILE (that of policy {policy})"
    return f"canary gate {shlex.quote(decision.model)} {decision.version} --top-up{own}"


def no_number(code: ReasonCode) -> str:
    """Why more runs are not advised."""
    if code is ReasonCode.NEAR_MARGIN:
        return f"It is so near the limit that more than {MAX_RUNS} runs per side would be needed"
    return f"No number of runs up to {MAX_RUNS} per side would decide all of it"


def noise(verdict: Verdict, where: str) -> str:
    """Where to look for the noise that keeps metrics open: the machine's, or the seeds', which a quiet machine does not
    reduce."""
    rules = verdict.policy.get("rules", {})
    open_ones = [check.metric for check in verdict.checks if check.outcome is CheckOutcome.INCONCLUSIVE]
    metrics = {name: METRICS.get(rules.get(name, {}).get("metric", name)) for name in open_ones}
    seeds = [name for name, metric in metrics.items() if metric is None or metric.repeatable]
    if not seeds:
        return f"look at the noise on {where}"
    machine = f", and at the noise on {where}" if len(seeds) < len(metrics) else ""
    return f"seeds alone differ that much in {', '.join(seeds)}: look at longer runs or more held-out data{machine}"


def plan_reaches(verdict: Verdict, needed: int) -> bool:
    """Whether topping up would make that many runs of the candidate; with 0, whether it would make any."""
    plan = verdict.policy.get("looks", {}).get("runs", (MAX_RUNS,))
    ended = any(note.startswith((NO_MORE, NO_FRESH)) for note in verdict.notes)
    made = len(plan) if verdict.look is None and (verdict.planned_runs or 0) >= plan[-1] else verdict.look or 0
    return not ended and bool(needed <= plan[-1]) and made < len(plan)


def lasting(minutes: float) -> str:
    """`about 12 min`, `about 3 h`, `under a minute`."""
    if minutes < 1:
        return "under a minute"
    return f"about {minutes:.0f} min" if minutes < 100 else f"about {minutes / 60:.0f} h"
