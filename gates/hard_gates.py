"""Checks that need no baseline: every run finished, stayed finite, did not diverge, and learned something."""

from __future__ import annotations

from collections.abc import Sequence

from gates.divergence import divergence
from gates.nonfinite import nonfinite
from gates.policy import Policy
from gates.records import Run
from gates.rules import Role
from gates.sides import CRASHES, Side
from gates.verdict import Check, CheckOutcome, ReasonCode
from gates.wording import listed

_CRASH_WORDS = {
    "instability": "became unstable",
    "oom": "ran out of memory",
    "timeout": "ran out of time",
    "crash": "crashed",
}
_BROKEN = "broken:"
_OPTIONAL = ("invariants", "watch")


def hard_checks(policy: Policy, side: Side) -> tuple[Check, ...]:
    """The hard checks that the policy asks for, over all runs that are evidence."""
    asked = [
        ("completed", policy.hard.completed, _completed),
        ("nonfinite", policy.hard.nonfinite, nonfinite),
        ("divergence", policy.hard.divergence, _divergence),
        ("learned", policy.hard.learned, _learned),
        ("invariants", policy.hard.invariants, _invariants),
        ("watch", policy.hard.watch, _watch),
    ]
    found = [(name, find(policy, side.evidence)) for name, on, find in asked if on]
    # Few runs check invariants or are watched yet: what nobody looked for is not listed.
    return tuple(_check(name, each, len(side.evidence)) for name, each in found if name not in _OPTIONAL or any(each))


def _check(name: str, found: tuple[list[str], str], runs: int) -> Check:
    """`found`: what each failing run did, and the sentence for when there is none (empty: nothing to judge
    by)."""
    problems, fine = found
    if problems:
        reason = f"{len(problems)} of {runs} runs: {listed(list(dict.fromkeys(problems)), 2)}"
        return _hard(name, CheckOutcome.BLOCK, reason, ReasonCode.HARD_GATE)
    if not runs or not fine:
        return _hard(name, CheckOutcome.NOT_JUDGED, "the runs say nothing about it")
    return _hard(name, CheckOutcome.PASS, fine)


def _hard(name: str, outcome: CheckOutcome, reason: str, code: ReasonCode | None = None) -> Check:
    return Check(metric=name, role=Role.HARD, outcome=outcome, reason=reason, reason_code=code)


def _completed(policy: Policy, runs: Sequence[Run]) -> tuple[list[str], str]:
    problems = [
        f"{_CRASH_WORDS[run.failure]} after step {run.last_step}"
        + (f" ({run.failure_reason})" if run.failure_reason else "")
        for run in runs
        if run.failure in CRASHES
    ]
    return problems, f"all {len(runs)} runs finished"


def _learned(policy: Policy, runs: Sequence[Run]) -> tuple[list[str], str]:
    problems = [
        f"learned nothing ({run.learned_reason or 'no reason recorded'})" for run in runs if run.learned is False
    ]
    return problems, "every run learned" if any(run.learned for run in runs) else ""


def _invariants(policy: Policy, runs: Sequence[Run]) -> tuple[list[str], str]:
    problems = [run.invariants.removeprefix(_BROKEN).strip() for run in runs if run.invariants.startswith(_BROKEN)]
    return problems, "every invariant held" if any(run.invariants for run in runs) else ""


def _watch(policy: Policy, runs: Sequence[Run]) -> tuple[list[str], str]:
    problems = [run.critical_held for run in runs if run.critical_held]
    watched = any(run.critical_held is not None for run in runs)
    return problems, "no warning stayed critical" if watched else ""


def _divergence(policy: Policy, runs: Sequence[Run]) -> tuple[list[str], str]:
    found = [divergence(policy.hard, run) for run in runs]
    return [problem for problem in found if problem], "no run diverged" if "" in found else ""
