"""Two sides' results compared: by a policy's section `evals`, or by rules for what the baseline has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.evals.drafts import GroupOf
from canary_mlflow.evals.reading import Results, read_results
from canary_mlflow.gates import Policy
from canary_mlflow.gates.evals.pairing import pair
from canary_mlflow.gates.judge import judge_evals
from canary_mlflow.gates.model.items import Table
from canary_mlflow.gates.model.wording import listed
from canary_mlflow.policies import load_policy
from canary_mlflow.reports.decision import Decision, Question

ALONE, TOGETHER, GUARDED = 0.02, 0.01, 3.0
"""The limits without a policy: of a single benchmark, of the mean of several, and of each in multiples of that."""


@dataclass(frozen=True, kw_only=True)
class Flip:
    """An item that the candidate does worse on. `was`, `now`: the scores; `before`, `after`: the answers."""

    item: str
    was: float
    now: float
    asked: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class EvalComparison:
    """The decision, and for each benchmark the items that broke, the worst first."""

    decision: Decision
    flips: Mapping[str, tuple[Flip, ...]]


def compare_results(
    baseline: Path, candidate: Path, rules: Any = None, *, margin: float | None = None, group: str | None = None
) -> EvalComparison:
    """Compare two files or folders. `rules`: a policy with a section `evals`; without one, `margin` is the limit.
    Raises UsageError, one line, for what cannot be read, and for the same file or run on both sides."""
    policy = None if rules is None else load_policy(rules)
    if policy is not None and policy.evals is None:
        raise UsageError(f"policy '{policy.name}': no section evals; expected a limit for each benchmark; write one")
    groups = groups_of(policy, group)
    left, right = read_results(baseline, groups), read_results(candidate, groups)
    refuse_same(left, right, str(candidate))
    policy = policy or usual_policy(left, margin)
    verdict = judge_evals(policy, left.tables, right.tables)
    notes = (*verdict.notes, *_notes(policy, left, right))
    decision = Decision(
        verdict=replace(verdict, notes=notes),
        model="",
        question=Question.FILES,
        baseline_label=str(baseline),
        candidate_label=str(candidate),
    )
    both = sorted(left.tables.keys() & right.tables.keys())
    return EvalComparison(
        decision=decision, flips={name: flips(left.tables[name], right.tables[name]) for name in both}
    )


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


def flips(left: Sequence[Table], right: Sequence[Table]) -> tuple[Flip, ...]:
    """The items that the candidate does worse on, the worst first."""
    paired = pair(left, right)
    if paired is None:
        return ()
    found = []
    for key, harm, was, now in zip(
        paired.keys, paired.found.harms, paired.baseline.mean(0), paired.candidate.mean(0), strict=True
    ):
        if harm > 0:
            before, after = left[0].items[key], right[0].items[key]
            texts = {"asked": before.asked, "before": before.said, "after": after.said}
            found.append((-float(harm), Flip(item=key, was=float(was), now=float(now), **texts)))
    return tuple(one for _, one in sorted(found, key=lambda one: (one[0], one[1].item)))
