"""The items that both sides answered, side by side; and what rules out a comparison.

What the candidate lacks, or was asked otherwise, can only hurt it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from canary_mlflow.gates.evals.rule import Harms, Scores
from canary_mlflow.gates.model.eval_rules import EvalRule
from canary_mlflow.gates.model.items import Flip, Item, Table
from canary_mlflow.gates.model.verdict import ReasonCode
from canary_mlflow.gates.model.wording import counted, listed

MOST_LOST = 0.05
"""Of the items: with more of them missing, the others tell nothing."""
FEWEST_ANSWERS = 10
"""Generated answers that are all equal: fewer may be so by themselves."""
PROMPTS = "prompts"
Side = Sequence[Table]
Problem = tuple[str, ReasonCode]


@dataclass(frozen=True, kw_only=True, eq=False)
class Paired:
    """Both sides' scores of the same items, a row for each seed. `labels`: the name of each group. `lost`: items that
    the candidate lacks. `left_out`: items without a score of the baseline."""

    keys: tuple[str, ...]
    baseline: Scores
    candidate: Scores
    labels: tuple[str, ...]
    found: Harms
    lost: tuple[str, ...]
    left_out: int


def pair(baseline: Side, candidate: Side) -> Paired | None:
    """The items that every seed of both sides has a score of, in the order of their keys; None if there is none."""
    left, right = _by_key(baseline), _by_key(candidate)
    known, answered = _means(left, len(baseline)), _means(right, len(candidate))
    keys = sorted(known.keys() & answered.keys())
    if not keys:
        return None
    lost = sorted(known.keys() - answered.keys())
    before, now = np.array([known[key] for key in keys]).T, np.array([answered[key] for key in keys]).T
    all_before = np.array([known[key] for key in (*keys, *lost)]).T
    labels, numbers = np.unique([left[key][0].group for key in keys], return_inverse=True)
    harms = before.mean(0) - now.mean(0)
    asked = sum(max(len(item.scores) for item in table.items.values()) for table in candidate)
    short = [1 - sum(len(item.scored) for item in right[key]) / asked for key in keys]
    worst = min(0.0, now.min(), all_before.min()) if baseline[0].higher else max(1.0, now.max(), all_before.max())
    found = Harms(
        harms=harms if baseline[0].higher else -harms,
        groups=numbers,
        short=np.array(short + [1.0] * len(lost)),
        stakes=np.abs(all_before.mean(0) - worst),
        resolution=_resolution(before.mean(0), now.mean(0)),
    )
    out = len(left.keys() | right.keys()) - len(keys) - len(lost)
    return Paired(
        keys=tuple(keys),
        baseline=before,
        candidate=now,
        labels=tuple(labels.tolist()),
        found=found,
        lost=tuple(lost),
        left_out=out,
    )


def _by_key(side: Side) -> Mapping[str, Sequence[Item]]:
    if len(side) == 1:
        return {key: (item,) for key, item in side[0].items.items()}
    found: dict[str, list[Item]] = {}
    for table in side:
        for key, item in table.items.items():
            found.setdefault(key, []).append(item)
    return found


def _means(items: Mapping[str, Sequence[Item]], seeds: int) -> dict[str, list[float]]:
    """The scores of the items that every seed has one of."""
    found = {key: [mean for one in some if (mean := one.mean) is not None] for key, some in items.items()}
    return {key: means for key, means in found.items() if len(means) == seeds}


def _resolution(before: Scores, now: Scores) -> float:
    steps = np.diff(np.unique(np.round(np.concatenate([before, now]), 9)))
    return float(steps.min()) if len(steps) else 1.0


def obstacle(rule: EvalRule, baseline: Side, candidate: Side, paired: Paired | None) -> Problem | None:
    """Why the two are not compared; None if nothing speaks against it."""
    if rule.group and any(table.items and table.grouped != rule.group for table in (*baseline, *candidate)):
        return f"items are not grouped by {rule.group}; add them again with --group", ReasonCode.NOT_COMPARABLE
    if keys := differing(baseline, candidate, rule.may_differ):
        return f"not asked alike: {listed(keys)}; may_differ allows it", ReasonCode.NOT_COMPARABLE
    if paired is None:
        scored = [any(item.scored for table in side for item in table.items.values()) for side in (baseline, candidate)]
        whose = "" if all(scored) else f" of the {'candidate' if scored[0] else 'baseline'}"
        word = "no item is scored on both sides" if all(scored) else f"no item{whose} has a score"
        return word, ReasonCode.MISSING_DATA
    missing, all_of_them = paired.found.missing, len(paired.keys) + len(paired.lost)
    if missing > MOST_LOST * all_of_them:
        named = f" ({listed(paired.lost)})" if paired.lost else ""
        said = f"{missing:.3g} of {counted(all_of_them, 'item')} are without a score of the candidate{named}"
        return f"{said}; at most {100 * MOST_LOST:.0f} % may be", ReasonCode.MISSING_DATA
    return None


def differing(baseline: Side, candidate: Side, allowed: Sequence[str]) -> list[str]:
    """The facts that do not agree on all tables of both sides, with a value of each side."""
    tables = [*baseline, *candidate]
    found = []
    for key in sorted({key for table in tables for key in table.facts} - set(allowed)):
        values = [table.facts.get(key, "(not recorded)") for table in tables]
        if other := next((value for value in values if value != values[0]), None):
            found.append(f"{key} ({values[0][:60]} | {other[:60]})")
    if len({table.higher for table in tables}) > 1:
        found.append("whether higher is better")
    left, right = _by_key(baseline), _by_key(candidate)
    both = left.keys() & right.keys()
    odd = sum(len({one.prompt for one in (*left[key], *right[key])}) > 1 for key in both)
    if odd and PROMPTS not in allowed:
        found.append(f"{PROMPTS} (other ones in {odd} of {counted(len(both), 'item')})")
    return found


def flips(baseline: Side, candidate: Side, most: int) -> tuple[Flip, ...]:
    """The items that the candidate does worse on, the worst first."""
    if (paired := pair(baseline, candidate)) is None:
        return ()
    harms = paired.found.harms
    before, now = paired.baseline.mean(0), paired.candidate.mean(0)
    worst = [at for at in np.argsort(-harms, kind="stable").tolist() if harms[at] > 0][:most]
    found = []
    for at in worst:
        left, right = (side[0].items[paired.keys[at]] for side in (baseline, candidate))
        texts = {"asked": left.asked, "before": left.said, "after": right.said}
        found.append(Flip(item=paired.keys[at], was=float(before[at]), now=float(now[at]), **texts))
    return tuple(found)


def copied(baseline: Side, candidate: Side, paired: Paired) -> bool:
    """Whether every answer that all have generated is the same: two models seldom agree in each."""
    answers = ({table.items[key].answer for table in (*baseline, *candidate)} for key in paired.keys)
    shown = [one for one in answers if "" not in one]
    return len(shown) >= FEWEST_ANSWERS and all(len(one) == 1 for one in shown)
