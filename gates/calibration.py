"""What unchanged runs say about a place: the spread of each metric, what a policy can resolve, how often it errs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import chdtri

from gates.comparisons import Values
from gates.design import Design
from gates.judge import judge
from gates.planning import block_chance, limits, pass_chance
from gates.plausibility import implausible
from gates.policy import KnownPriors, MetricRule, Policy, Role, Scale, Worse
from gates.priors import Prior, learn_prior
from gates.readings import read, yardstick
from gates.records import Run, Version
from gates.rule_parser import LEAST_SPREAD
from gates.verdict import Outcome

UPPER = 0.9  # confidence of a spread's upper bound


@dataclass(frozen=True, kw_only=True)
class MetricSpread:
    """One rule: the spread `sd` between unchanged runs on the scale of the margin (log or unit), from `runs` runs in
    `groups` groups, and `upper`, which the true one does not exceed with confidence UPPER: None where all runs are
    equal, which says nothing about that.

    `margin`: the policy's, on the same scale, which is the log one where `relative`. `prior`: what to store, None where
    the runs do not differ at all. `odd`: the run of a group that is too far off the others to be believed.
    """

    rule: MetricRule
    runs: int
    groups: int
    sd: float
    upper: float | None
    margin: float
    relative: bool
    prior: Prior | None
    odd: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Resplits:
    """How the policy judged random halves of unchanged runs: `k` against `m`, `splits` times; shares of outcomes."""

    k: int
    m: int
    splits: int
    block: float
    passed: float


def spreads(policy: Policy, groups: Sequence[Sequence[Run]]) -> list[MetricSpread]:
    """The spread of every metric that the (resolved) policy judges and the groups have."""
    found = [_spread(policy, rule, groups) for rule in policy.rules if rule.role is not Role.IGNORE]
    return [each for each in found if each is not None]


def _spread(policy: Policy, rule: MetricRule, groups: Sequence[Sequence[Run]]) -> MetricSpread | None:
    sets = [readings for readings in (read(policy, rule, group)[0] for group in groups) if len(readings) >= 2]
    if not sets:
        return None
    everyone = [reading for readings in sets for reading in readings]
    stick = yardstick(policy, rule, everyone, everyone)
    if isinstance(stick, str):
        return None
    variances, dfs = [_variance(stick.harms(each)) for each in sets], [len(each) - 1 for each in sets]
    odd = (implausible(policy.implausible_ratio, rule, stick, each, each) for each in sets)
    pooled = sum(variance * df for variance, df in zip(variances, dfs, strict=True)) / sum(dfs)
    return MetricSpread(
        rule=rule,
        runs=len(everyone),
        groups=len(sets),
        sd=math.sqrt(pooled),
        upper=math.sqrt(pooled) * uncertainty(sum(dfs)) or None,
        margin=stick.margin,
        relative=stick.relative,
        prior=learn_prior(variances, dfs) if stick.scale is rule.scale else None,
        odd=tuple(problem for problem in odd if problem),
    )


def _variance(harms: Values) -> float:
    """That of one group, 0 where rounding alone may have made it: the mean of equal numbers is not always theirs."""
    found = float(np.var(harms, ddof=1)) if np.ptp(harms) > 0 else 0.0
    return found if found > LEAST_SPREAD**2 else 0.0


def uncertainty(df: int) -> float:
    """How many times a measured spread the true one may be, with confidence UPPER (chi-square, so for normal runs)."""
    return math.sqrt(df / float(chdtri(df, UPPER)))


def harm_margin(rule: MetricRule) -> float:
    """The rule's margin in harm units."""
    if rule.scale is Scale.IDENTITY:
        return rule.margin
    return -math.log1p(-rule.margin) if rule.worse is Worse.LOWER else math.log1p(rule.margin)


def resolvable(rule: MetricRule, k: int = 5, m: int = 3) -> float:
    """The largest spread between runs at which k against m runs tell half a margin from nothing with 95 %
    confidence; above it the tier is too noisy."""
    return 0.5 * harm_margin(rule) / (1.6448536269514722 * math.sqrt(1 / k + 1 / m))


def known_priors(name: str, when: dict[str, str], found: Sequence[MetricSpread]) -> KnownPriors:
    """What to store, for runs whose facts are `when`."""
    rules: dict[str, tuple[Prior, str, Scale]] = {
        each.rule.name: (each.prior, each.rule.reduction, each.rule.scale) for each in found if each.prior is not None
    }
    return KnownPriors(name=name, when={key: (value,) for key, value in when.items()}, rules=rules)


def resplit(policy: Policy, runs: Sequence[Run], k: int, m: int, splits: int, rng: np.random.Generator) -> Resplits:
    """Judge `splits` random splits of unchanged runs without replacement, hard checks left out: they know no sides.

    The splits share runs, so the shares describe this one set of runs; they are no independent trials.
    """
    hard = replace(policy.hard, completed=False, nonfinite=False, divergence=False, learned=False)
    policy = replace(policy, hard=replace(hard, invariants=False, watch=False))
    outcomes = []
    for _ in range(splits):
        order = rng.permutation(len(runs))
        left, right = (tuple(runs[i] for i in part) for part in (order[:k], order[k : k + m]))
        sides = (Version(model="", version=None, runs=side) for side in (left, right))
        outcomes.append(judge(policy, *sides).outcome)
    return Resplits(
        k=k,
        m=m,
        splits=splits,
        block=outcomes.count(Outcome.BLOCK) / splits,
        passed=outcomes.count(Outcome.PASS) / splits,
    )


@dataclass(frozen=True, kw_only=True)
class Power:
    """The chance that one metric alone ends in BLOCK or PASS when the true harm is `effect` margins."""

    baseline_runs: int
    candidate_runs: int
    effect: float
    block: float
    passed: float


def power(
    policy: Policy,
    margin: float,
    sd: float,
    sizes: Sequence[tuple[int, int]],
    effects: Sequence[float],
    *,
    prior_df: float | None = None,
    role: Role = Role.GATE,
    two_sided: bool = False,
) -> list[Power]:
    """The chances at spread `sd` and `margin` (same scale), known as a prior of `prior_df` degrees of freedom (None: as
    many as the policy's), and BLOCK at the level that Holm leaves the worst of all gate metrics. An ADVISORY metric
    never blocks; one on IGNORE does not pass either."""
    designs = [Design(baseline_runs=k, candidate_runs=m, paired=False, two_sided=two_sided) for k, m in sizes]
    known = replace(policy, prior_df=policy.prior_df if prior_df is None else prior_df)
    return [each for design in designs for each in _powers(known, margin, sd, design, effects, role)]


def _powers(
    policy: Policy, margin: float, sd: float, design: Design, effects: Sequence[float], role: Role
) -> Iterator[Power]:
    family = max(1, sum(rule.role is Role.GATE for rule in policy.rules))
    enough = design.candidate_runs >= policy.min_candidate_runs and design.baseline_runs >= policy.min_baseline_runs
    within = limits(
        design,
        margin=margin,
        sd=sd,
        prior_df=policy.prior_df,
        alpha_pass=policy.alpha_pass,
        alpha_harm=policy.alpha_block / family,
        alpha_order=policy.alpha_block,
    )
    for effect in effects:
        truth = effect * margin
        yield Power(
            baseline_runs=design.baseline_runs,
            candidate_runs=design.candidate_runs,
            effect=effect,
            block=block_chance(within, truth) if enough and role is Role.GATE else 0.0,
            passed=pass_chance(within, truth) if role is not Role.IGNORE else 0.0,
        )
