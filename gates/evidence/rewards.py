"""Rewards of several functions: whether both sides add them up alike, and each function on its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from canary_mlflow.gates.model.metrics import Metric
from canary_mlflow.gates.model.records import Run, Series
from canary_mlflow.gates.model.rules import LOGGED, MetricRule, Role, Scale, Worse
from canary_mlflow.gates.model.wording import listed

WEIGHTS = "rewards."
"""How the facts begin that say a function's weight, by its name."""
PARTS = {"reward_mean": f"{LOGGED}rewards/", "eval_reward": f"{LOGGED}eval_rewards/"}
"""How the series of each function's own mean begin, for the sums of them that are judged."""
MEAN = "/mean"


def weights(runs: Iterable[Run]) -> dict[str, float]:
    """Function → weight, without those that weigh nothing; {} where the runs do not agree on them, or do not say."""
    found = {tuple(sorted((key, value) for key, value in run.facts.items() if key.startswith(WEIGHTS))) for run in runs}
    if len(found) != 1:
        return {}
    known = {key.removeprefix(WEIGHTS): float(value) for key, value in found.pop()}
    return {name: weight for name, weight in known.items() if weight}


def weighed_alike(
    rule: MetricRule, baseline: Sequence[Run], candidate: Sequence[Run]
) -> tuple[Sequence[Run], Sequence[Run], tuple[str, ...]] | str:
    """Both sides' runs with the rule's rewards added up as the baseline adds them, and a note that says so: with other
    weights the sum is another, whatever was learned. Where the weights are the same, the runs as they are. Or the
    reason why that cannot be: the candidate does not measure what the baseline was rewarded for."""
    begins, before, now = PARTS.get(rule.metric, ""), weights(baseline), weights(candidate)
    if not (begins and before and now) or before == now:
        return baseline, candidate, ()
    series = {f"{begins}{name}{MEAN}": weight for name, weight in before.items()}
    if not all(series.keys() <= run.series.keys() for run in baseline) or not any(map(rule.series, candidate)):
        return baseline, candidate, ()
    changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    named = listed([f"{name} {before.get(name, 0.0):g} → {now.get(name, 0.0):g}" for name in changed])
    if not all(series.keys() <= run.series.keys() for run in candidate):
        return (
            f"{rule.info.label} is another sum than before ({named}), and the candidate does not measure all of what "
            "the baseline adds up: give a function that is no longer trained for the weight 0"
        )
    left, right = ([_added_up(rule.metric, series, run) for run in side] for side in (baseline, candidate))
    return left, right, (f"rewards are added up with the baseline's weights ({named})",)


def parts_of(rules: Iterable[MetricRule], baseline: Sequence[Run], candidate: Sequence[Run]) -> list[MetricRule]:
    """A rule for each function of several whose mean both sides recorded, as advice: a sum may hold what one of them
    lost and another gained."""
    return [
        replace(rule, name=f"{rule.name}: {name}", metric=series, role=Role.ADVISORY, own=_own(rule, series, name))
        for rule in rules
        if rule.metric in PARTS and rule.role is not Role.IGNORE
        for both in [sorted(_recorded(rule.metric, baseline) & _recorded(rule.metric, candidate))]
        if len(both) > 1
        for name in both
        for series in [f"{PARTS[rule.metric]}{name}{MEAN}"]
    ]


def _recorded(metric: str, runs: Iterable[Run]) -> set[str]:
    """The functions whose own mean all these runs recorded."""
    begins = PARTS[metric]
    held = [{key for key in run.series if key.startswith(begins) and key.endswith(MEAN)} for run in runs]
    return {key.removeprefix(begins).removesuffix(MEAN) for key in (set.intersection(*held) if held else ())}


def _own(rule: MetricRule, series: str, name: str) -> Metric:
    return Metric(
        name=series, label=f"{rule.info.label} of {name}", worse=Worse.LOWER, scale=Scale.IDENTITY, reward=True
    )


def _added_up(metric: str, parts: Mapping[str, float], run: Run) -> Run:
    """The run with this sum of its functions' means. A step for which a function gave no number has nothing of it, as
    in TRL's own sum."""
    totals: dict[int, float] = defaultdict(float)
    for name, weight in parts.items():
        for step, value in zip(run.series[name].steps, run.series[name].values, strict=True):
            totals[int(step)] += 0.0 if np.isnan(value) else weight * float(value)
    return replace(run, series={**run.series, metric: Series.from_pairs(metric, totals.items())})
