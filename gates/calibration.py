"""What unchanged runs tell about a place: each metric's spread, and what a tier can resolve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from canary_mlflow.gates.evidence.comparability import implausible, incomparable
from canary_mlflow.gates.evidence.readings import Reading, harm_scale, read
from canary_mlflow.gates.model.policy import KnownPrior, KnownPriors, Policy
from canary_mlflow.gates.model.records import Run, Values
from canary_mlflow.gates.model.rules import LEAST_SPREAD, MetricRule, Prior, Role, learn_prior

UPPER = 0.9  # confidence of a spread's upper bound


@dataclass(frozen=True, kw_only=True)
class MetricSpread:
    """The spread `sd` of one rule's metric between unchanged runs, on the scale of the margin: log if `relative`, else
    the metric's unit. It comes from `runs` runs in `groups` groups.

    `upper`: the bound that the true spread does not exceed with confidence UPPER; None if all runs are equal, which
    tells nothing about it. `shipped` and `margin`: the policy's spread and margin, on the same scale. `prior`: what to
    store; None if the runs do not differ at all. `odd`: the run of a group that is too far from the others to be
    believed.
    """

    rule: MetricRule
    runs: int
    groups: int
    sd: float
    upper: float | None
    shipped: float
    margin: float
    relative: bool
    prior: Prior | None
    odd: tuple[str, ...]


def spreads(policy: Policy, groups: Sequence[Sequence[Run]]) -> list[MetricSpread]:
    """The spread of every metric that the (resolved) policy judges and the groups have."""
    found = [_spread(policy, rule, groups) for rule in policy.rules if rule.role is not Role.IGNORE]
    return [each for each in found if each is not None]


def _spread(policy: Policy, rule: MetricRule, groups: Sequence[Sequence[Run]]) -> MetricSpread | None:
    read_sets = _each_seed_once(rule, [read(policy, rule, group)[0] for group in groups])
    sets = [readings for readings in read_sets if len(readings) >= 2]
    if not sets:
        return None
    everyone = [reading for readings in sets for reading in readings]
    scale = harm_scale(policy, rule, everyone, everyone)
    if isinstance(scale, str):
        return None
    variances, dfs = [_variance(scale.harms(each)) for each in sets], [len(each) - 1 for each in sets]
    odd = [implausible(rule, scale, each, each) for each in sets]
    odd += [incomparable(rule, scale, each, each) for each in sets]
    shipped = harm_scale(replace(policy, priors=()), rule, everyone, everyone)
    assert not isinstance(shipped, str)
    pooled = sum(variance * df for variance, df in zip(variances, dfs, strict=True)) / sum(dfs)
    return MetricSpread(
        rule=rule,
        runs=len(everyone),
        groups=len(sets),
        sd=math.sqrt(pooled),
        upper=math.sqrt(pooled) * uncertainty(sum(dfs)) or None,
        shipped=shipped.prior.sd,
        margin=scale.margin,
        relative=scale.relative,
        prior=learn_prior(variances, dfs) if scale.scale is rule.scale else None,
        odd=tuple(problem for problem in odd if problem),
    )


def _each_seed_once(rule: MetricRule, sets: Sequence[Sequence[Reading]]) -> list[list[Reading]]:
    """If a metric follows from its seed, sessions of the same seeds repeat each other: bit-equal series count once."""
    if not rule.info.repeatable:
        return [list(readings) for readings in sets]

    def repeats(one: Reading, other: Reading) -> bool:
        return one.run.seed is not None and one.run.seed == other.run.seed and one.series.same_values(other.series)

    seen: list[Reading] = []
    found = []
    for readings in sets:
        found.append([one for one in readings if not any(repeats(one, other) for other in seen)])
        seen += found[-1]
    return found


def _variance(harms: Values) -> float:
    """The variance of one group; 0 if it may be rounding alone: the mean of equal numbers can differ from them."""
    found = float(np.var(harms, ddof=1)) if np.ptp(harms) > 0 else 0.0
    return found if found > LEAST_SPREAD**2 else 0.0


def uncertainty(df: int) -> float:
    """By what factor the true spread may exceed the measured one, with confidence UPPER (chi-square: normal runs)."""
    return math.sqrt(df / float(scipy.special.chdtri(df, UPPER)))


def resolvable(margin: float, k: int = 5, m: int = 3) -> float:
    """The largest spread between runs, on the scale of the margin, at which k runs against m can tell half a margin
    from zero with 95 % confidence; above it the tier is too noisy."""
    return 0.5 * margin / (float(scipy.special.ndtri(0.95)) * math.sqrt(1 / k + 1 / m))


def known_priors(name: str, when: dict[str, str], found: Sequence[MetricSpread]) -> KnownPriors:
    """What to store, for runs whose facts are `when`."""
    rules = {each.rule.name: KnownPrior.of(each.rule, each.prior) for each in found if each.prior is not None}
    return KnownPriors(name=name, when={key: (value,) for key, value in when.items()}, rules=rules)


NAME = "history"
LEAST_RUNS = 10
"""In a row; fewer single runs are no history."""
HISTORY_DF = 8.0
"""What a history of single runs may be worth: its noise is not today's for sure."""
KEPT = 0.9
"""Of the differences of neighbours, the smallest: the others may be changes."""
_TRIMMED = 1.25  # for normal differences: root mean square of all / that of the smallest nine tenths


def with_history(policy: Policy, history: Sequence[Run], facts: Mapping[str, str]) -> Policy:
    """The policy with the spreads that earlier runs, in order of time, show for these facts."""
    asked = [rule for rule in policy.resolve(facts).rules if rule.role is not Role.IGNORE]
    rules = {rule.name: KnownPrior.of(rule, prior) for rule in asked if (prior := _prior(policy, rule, history))}
    known = KnownPriors(name=NAME, when={}, rules=rules)
    return replace(policy, priors=(*(each for each in policy.priors if each.name != NAME), known)) if rules else policy


def _prior(policy: Policy, rule: MetricRule, history: Sequence[Run]) -> Prior | None:
    readings, _ = read(policy, rule, history)
    scale = harm_scale(replace(policy, priors=()), rule, readings, readings) if readings else ""
    if isinstance(scale, str) or scale.scale is not rule.scale:
        return None
    return of_neighbours(scale.harms(readings))


def of_neighbours(values: Values) -> Prior | None:
    """The spread of single runs in order of time, shape (n,): from the differences of neighbours, without the largest
    tenth."""
    if len(values) < LEAST_RUNS:
        return None
    squares = np.sort(np.diff(values) ** 2)[: math.ceil(KEPT * (len(values) - 1))]
    sd = _TRIMMED * math.sqrt(float(np.mean(squares)) / 2)
    return Prior(sd=max(sd, LEAST_SPREAD), df=min(HISTORY_DF, (len(values) - 1) * 2 / 3), kind="learnt")
