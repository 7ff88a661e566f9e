"""Two sides' results compared: by a policy's section `evals`, or by rules for what the baseline has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.evals.drafts import GroupOf
from canary_mlflow.evals.reading import Results
from canary_mlflow.gates import Policy
from canary_mlflow.gates.evals.pairing import flips
from canary_mlflow.gates.judge import judge_evals
from canary_mlflow.gates.model.items import Evaluated, Flip, Table
from canary_mlflow.gates.model.verdict import CheckOutcome, Verdict
from canary_mlflow.gates.model.wording import listed
from canary_mlflow.policies import load_policy
from canary_mlflow.reports.decision import Decision, Question

ALONE, TOGETHER, GUARDED = 0.02, 0.01, 3.0
"""The limits without a policy: of a single benchmark, of the mean of several, and of each in multiples of that."""
FEW, MANY = 5, 50
"""Broken items of one benchmark that are shown, and with --full."""


def compare_results(
    left: Results, right: Results, labels: Sequence[str], policy: Policy | None, margin: float | None, most: int = FEW
) -> Decision:
    """Compare two sides by a policy with a section `evals`; without one, `margin` is the limit. Raises UsageError for
    the same file or run on both sides."""
    refuse_same(left, right, labels[1])
    without = [] if policy else _without_limit(left)
    policy = policy or usual_policy(left, margin)
    verdict = judge_evals(policy, left.tables, right.tables)
    return Decision(
        verdict=replace(verdict, notes=(*verdict.notes, *without, *_notes(policy, left, right))),
        model="",
        question=Question.FILES,
        baseline_label=labels[0],
        candidate_label=labels[1],
        broken=broken_in(verdict, left.tables, right.tables, most),
    )


def policy_with_evals(rules: Any) -> Policy | None:
    """A policy that has the section; None if none is asked for. Raises UsageError."""
    policy = None if rules is None else load_policy(rules)
    if policy is not None and policy.evals is None:
        raise UsageError(f"policy '{policy.name}': no section evals; expected a limit for each benchmark; write one")
    return policy


def groups_of(policy: Policy | None, group: str | None) -> GroupOf:
    """The path of each benchmark's group."""
    rules = policy.evals.rules if policy and policy.evals else {}
    return lambda name: rules[name].group or group if name in rules else group


def refuse_same(left: Results, right: Results, where: str) -> None:
    """Refuse what would compare an evaluation with itself. Raises UsageError."""
    if same := sorted(left.digests.keys() & right.digests.keys()):
        found = f"{right.digests[same[0]]} is the same file as {left.digests[same[0]]}"
    elif runs := sorted(left.runs & right.runs):
        found = f"{where}: run {runs[0]} is on both sides"
    else:
        return
    raise UsageError(f"{found}; expected an evaluation of each side's own weights; name the other one")


def broken_in(verdict: Verdict, left: Evaluated, right: Evaluated, most: int = FEW) -> dict[str, tuple[Flip, ...]]:
    """Benchmark → its worst items, of those that block or leave the verdict open; with more than a few, of all."""
    asking = (CheckOutcome.BLOCK, CheckOutcome.INCONCLUSIVE)
    names = [one.metric for one in verdict.checks if one.outcome in asking or most > FEW]
    both = (name for name in names if name in left and name in right)
    return {name: found for name in both if (found := flips(left[name], right[name], most))}


def usual_policy(left: Results, margin: float | None) -> Policy:
    """What holds without a policy: a single benchmark is a gate; of several the mean is, and each a guard."""
    names = [name for name, tables in left.tables.items() if _shares(tables)]
    limit = margin or (ALONE if len(names) == 1 else TOGETHER)
    several = {"role": "guard", "margin": min(GUARDED * limit, 0.99)}
    rules: dict[str, Any] = {name: {"margin": limit} if len(names) == 1 else several for name in names}
    rules |= {name: {"role": "advisory", "margin": limit} for name in left.tables.keys() - set(names)}
    suite = {"suite": {"margin": limit}} if len(names) > 1 else {}
    return load_policy({"base": "files", "name": "evals", "evals": {**suite, **rules}})


def _shares(tables: Sequence[Table]) -> bool:
    """Whether there are items, and their scores are shares, whose mean with others means something."""
    scores = [score for table in tables for item in table.items.values() for score in item.scored]
    return any(table.items for table in tables) and all(0 <= score <= 1 for score in scores)


def _without_limit(left: Results) -> list[str]:
    beyond = [name for name, tables in left.tables.items() if any(one.items for one in tables) and not _shares(tables)]
    said = "scores beyond 0 and 1 are judged only with a limit of their own, in a --policy"
    return [f"{said}: {listed(sorted(beyond))}"] if beyond else []


def _notes(policy: Policy, left: Results, right: Results) -> Iterator[str]:
    assert policy.evals is not None
    known = left.tables.keys() | right.tables.keys()
    if new := sorted(right.tables.keys() - left.tables.keys()):
        yield f"only the candidate has {listed(new)}"
    if unnamed := sorted(known - policy.evals.rules.keys() - set(new)):
        yield f"no rule of policy {policy.name} names {listed(unnamed)}"
    for name, tables in sorted(left.tables.items()):
        if tables[0].grouped and name in policy.evals.rules:
            yield f"{name}: items are grouped by {tables[0].grouped}"
