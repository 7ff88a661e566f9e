"""The judges that benchmarks/gate.py compares, behind one interface: from two lists of runs and a tier to one word.

The others are written from their public descriptions, for the step time alone unless noted; a judge with only two
answers is counted as it answers. `pooled` judges see the steps of all runs as one sample, as they are used when there
are several runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from canary_mlflow.gates import Policy, Run, Verdict, Version, judge
from canary_mlflow.gates.calibration import known_priors, spreads
from canary_mlflow.policies import load_policy

Judge = Callable[[Sequence[Run], Sequence[Run], str], str]
Values = NDArray[np.float64]

STEP_LIMIT = {"smoke": 0.15, "perf": 0.08, "nightly": 0.05}
TOKENS_LIMIT = {"smoke": 0.12, "perf": 0.05, "nightly": 0.03}
MOST_POINTS = 400  # evenly spaced points per side for Kayenta's interval, which needs all pairs


@cache
def policy_for(tier: str) -> Policy:
    """The shipped policy, without what was calibrated on this machine."""
    return replace(load_policy(tier), priors=())


def steps(run: Run, tier: str) -> Values:
    """Step times after the tier's warm-up."""
    values = run.series["step_time"].values
    return values[min(policy_for(tier).warmup_steps, len(values) // 3) :]


def pooled(runs: Sequence[Run], tier: str) -> Values:
    return np.concatenate([steps(run, tier) for run in runs])


def percent_one_run(baseline: Sequence[Run], candidate: Sequence[Run], tier: str) -> str:
    """rlhf-canary: one run against one, limits on the mean step time and on the tokens per second made from it."""
    return _percent(float(np.mean(steps(baseline[0], tier))), float(np.mean(steps(candidate[0], tier))), tier)


def percent_averaged(baseline: Sequence[Run], candidate: Sequence[Run], tier: str) -> str:
    """The same limit on the step time, on the mean of all runs that our gate gets."""
    before, after = (float(np.mean([np.mean(steps(run, tier)) for run in side])) for side in (baseline, candidate))
    return "BLOCK" if after / before > 1 + STEP_LIMIT[tier] else "PASS"


def welch(baseline: Sequence[Run], candidate: Sequence[Run], tier: str) -> str:
    """Welch's t test over steps, one-sided 5 %."""
    found = stats.ttest_ind(pooled(candidate, tier), pooled(baseline, tier), equal_var=False, alternative="greater")
    return "BLOCK" if found.pvalue < 0.05 else "PASS"


def mann_whitney(baseline: Sequence[Run], candidate: Sequence[Run], tier: str) -> str:
    """Mann-Whitney over steps, one-sided 5 %."""
    found = stats.mannwhitneyu(pooled(candidate, tier), pooled(baseline, tier), alternative="greater")
    return "BLOCK" if found.pvalue < 0.05 else "PASS"


def kayenta(baseline: Sequence[Run], candidate: Sequence[Run], tier: str) -> str:
    """NetflixACAJudge as shipped: the 98 % interval of the shift lies above a quarter of its estimate."""
    return "BLOCK" if _kayenta_high(baseline, candidate, tier) else "PASS"


def kayenta_tuned(baseline: Sequence[Run], candidate: Sequence[Run], tier: str) -> str:
    """NetflixACAJudge with the tier's limit as allowedIncrease of the ratio of means."""
    before, after = float(np.mean(pooled(baseline, tier))), float(np.mean(pooled(candidate, tier)))
    allowed = after / before >= 1 + STEP_LIMIT[tier]
    return "BLOCK" if allowed and _kayenta_high(baseline, candidate, tier) else "PASS"


def non_inferiority(baseline: Sequence[Run], candidate: Sequence[Run], tier: str) -> str:
    """Classical pooled t test of the runs' log means: BLOCK if shown beyond the margin, PASS if within, 5 % each."""
    left, right = (np.log([np.mean(steps(run, tier)) for run in side]) for side in (baseline, candidate))
    if len(left) + len(right) < 4:
        return "INCONCLUSIVE"
    margin = np.log1p(STEP_LIMIT[tier])
    if stats.ttest_ind(right - margin, left, alternative="greater").pvalue < 0.05:
        return "BLOCK"
    return "PASS" if stats.ttest_ind(right - margin, left, alternative="less").pvalue < 0.05 else "INCONCLUSIVE"


def ours(baseline: Sequence[Run], candidate: Sequence[Run], tier: str) -> str:
    """The whole gate with the shipped policy."""
    return str(verdict(baseline, candidate, policy_for(tier)).outcome)


def calibrated(sessions: Sequence[Sequence[Run]], tier: str) -> Judge:
    """The whole gate as it is after `canary calibrate` with these sessions of unchanged runs."""
    shipped = policy_for(tier)
    policy = replace(shipped, priors=(known_priors("measured", {}, spreads(shipped, sessions)),))
    return lambda baseline, candidate, _: str(verdict(baseline, candidate, policy).outcome)


def verdict(baseline: Sequence[Run], candidate: Sequence[Run], policy: Policy) -> Verdict:
    """Our gate's full verdict."""
    sides = (Version(model="", version=None, runs=tuple(side)) for side in (baseline, candidate))
    shortest = min(len(run.series["step_time"].values) for run in (*baseline, *candidate))
    if shortest < policy.warmup_steps + policy.min_steps:  # logs of blocks of steps: all blocks count
        warmup = min(policy.warmup_steps, shortest // 3)
        policy = replace(policy, warmup_steps=warmup, min_steps=min(3, shortest - warmup))
    return judge(policy, *sides)


def _percent(before: float, after: float, tier: str) -> str:
    slower = after / before - 1
    fewer_tokens = 1 - before / after
    return "BLOCK" if slower > STEP_LIMIT[tier] or fewer_tokens > TOKENS_LIMIT[tier] else "PASS"


def _kayenta_high(baseline: Sequence[Run], candidate: Sequence[Run], tier: str) -> bool:
    left, right = (_thinned(pooled(side, tier)) for side in (baseline, candidate))
    shifts = np.subtract.outer(right, left).ravel()
    estimate = float(np.median(shifts))
    n, m = len(left), len(right)
    spread = np.sqrt(n * m * (n + m + 1) / 12)
    low = max(0, int(n * m / 2 - stats.norm.ppf(0.99) * spread))  # the rank of the interval's lower end
    return bool(np.partition(shifts, low)[low] > 0.25 * abs(estimate))


def _thinned(values: Values) -> Values:
    return values[np.linspace(0, len(values) - 1, min(MOST_POINTS, len(values))).astype(int)]


JUDGES: dict[str, Judge] = {
    "percent limits, 1 against 1": percent_one_run,
    "percent limit, averaged": percent_averaged,
    "Welch over steps": welch,
    "Mann-Whitney over steps": mann_whitney,
    "Kayenta, default": kayenta,
    "Kayenta, tuned": kayenta_tuned,
    "classical non-inferiority": non_inferiority,
    "ours": ours,
}
CALIBRATED = "ours, calibrated"
"""On the simulated grid besides: after three sessions of five unchanged runs each, drawn anew every time."""
