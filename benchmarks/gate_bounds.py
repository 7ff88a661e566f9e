"""Upper bounds, in closed form, on any judge that keeps this gate's error rates: compare the gate's power with these.

    python benchmarks/gate_bounds.py [--runs 4000] [--seed 37]
    python benchmarks/gate_bounds.py --sessions [FILE]

The simulated runs of benchmarks/gate.py say how much each metric that decides differs between runs. From that follows,
for five runs against three, the chance of BLOCK at 1.5 margins of the step time: of a percent limit on averaged runs;
of the best test at 1 % that knows the spread (Neyman and Pearson: no test of that level has more power); of any test
that holds 1 % at each spread up to twice the prior (no such test beats the best one against the least favourable of
these spreads, even if it knows the harm that it looks for); and of the best that has to learn the spread from these
runs (the t test: most powerful among unbiased tests that hold 1 % at any spread). The first figure spends all of the
1 % on the step time, the second divides it by the number of metrics that decide. Then the chance that unchanged code
passes at the end of its tier's plan, by tests that know every spread / have to learn each from these runs, and spend
all of the 5 % there: at the spread of its cell, and with every metric twice as noisy as its shipped prior. The last
line is JSON.

`--sessions`: the same chance for the quality of the campaign's unchanged sessions with fresh seeds (or those of another
packed FILE), at the spread that all of them have inside, by the number of runs on each side.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gate import K, M  # noqa: E402  # the path is set above
from gate_data import NOISE, STEPS, simulated  # noqa: E402
from gate_freeze import unchanged_sessions  # noqa: E402
from gate_judges import policy_for  # noqa: E402

from canary_mlflow.gates.calibration import spreads  # noqa: E402
from canary_mlflow.gates.evidence.clocks import judged_in_pairs  # noqa: E402
from canary_mlflow.gates.model.paradigm import Paradigm, named_paradigm  # noqa: E402
from canary_mlflow.gates.model.policy import FreshBaseline, Policy  # noqa: E402
from canary_mlflow.gates.model.records import SUMMARIES  # noqa: E402
from canary_mlflow.gates.model.rules import MetricRule, Role  # noqa: E402

CAMPAIGN = ROOT / "benchmarks" / "data" / "campaign.jsonl.gz"
DRAWS = 400_000
HARM = 1.5  # margins

Metrics = dict[str, tuple[MetricRule, float, float]]


def deciding(policy: Policy, tier: str, noise: str, runs: int, seed: int) -> Metrics:
    """For each metric that decides: its rule, the spread between simulated runs, and the margin (same scale)."""
    rng = np.random.default_rng([seed, list(STEPS).index(tier), list(NOISE).index(noise)])
    policy = policy.resolve({"backend": "cuda", "algo": "dpo", "eval_loss": "recorded"})
    found = spreads(policy, [[simulated(rng, f"a{i}", tier, noise) for i in range(runs)]])
    enough = STEPS[tier] - policy.warmup_steps
    return {
        each.rule.name: (each.rule, each.sd, each.margin)
        for each in found
        if each.rule.role is Role.GATE and enough >= SUMMARIES[each.rule.reduction].decides_from
    }


def block_chances(
    sd: float, margin: float, alphas: tuple[float, float], most: float, rng: np.random.Generator
) -> dict[str, Any]:
    """Chances of BLOCK at 1.5 margins: beyond the margin, and significant if the judge requires that. `most`: the
    largest spread at which a test must hold its level."""
    se, df = sd * math.sqrt(1 / K + 1 / M), K + M - 2
    harm = math.log1p(HARM * math.expm1(margin))
    difference = rng.normal(harm, se, DRAWS)
    learnt = se * np.sqrt(rng.chisquare(df, DRAWS) / df)
    beyond = difference > margin
    return {
        "averaged": float(np.mean(beyond)),
        "known": [float(np.mean(beyond & (difference > stats.norm.isf(alpha) * se))) for alpha in alphas],
        "any": [any_test(sd, harm, alpha, most, rng) for alpha in alphas],
        "learnt": [float(np.mean(beyond & (difference > stats.t.isf(alpha, df) * learnt))) for alpha in alphas],
    }


def any_test(sd: float, harm: float, alpha: float, most: float, rng: np.random.Generator) -> float:
    """An upper bound on the power against `harm` at spread `sd` of any test with level `alpha` at each spread up to
    `most`: the power of the likelihood ratio against no harm at the one such spread where it is least."""
    per_run, df = math.sqrt(1 / K + 1 / M), K + M - 2
    normal, squares = rng.standard_normal(DRAWS), rng.chisquare(df, DRAWS)

    def power(null: float) -> float:
        def ratio(difference: Any, residual: Any) -> Any:
            here = ((difference - harm) / per_run) ** 2 + residual
            there = (difference / per_run) ** 2 + residual
            return there / null**2 - here / sd**2

        limit = np.quantile(ratio(normal * null * per_run, squares * null**2), 1 - alpha)
        return float(np.mean(ratio(harm + normal * sd * per_run, squares * sd**2) > limit))

    return min(power(null) for null in np.linspace(sd, max(sd, most), 12))


def pass_chance(policy: Policy, rule: MetricRule, sd: float, margin: float, knows: bool) -> float:
    """The chance that unchanged code passes one metric at the end of the plan, by a test that knows the spread or has
    to learn it from all of these runs (t)."""
    runs = policy.looks.runs[-1]
    fresh = policy.looks.fresh_baseline is FreshBaseline.ALWAYS
    baseline = runs if judged_in_pairs(rule) or not fresh else K + runs
    shift, df = margin / (sd * math.sqrt(1 / baseline + 1 / runs)), baseline + runs - 2
    if knows:
        return float(stats.norm.cdf(shift - stats.norm.isf(policy.alpha_pass)))
    return float(stats.nct.sf(stats.t.isf(policy.alpha_pass, df), df, shift))


def passes(policy: Policy, metrics: Metrics, spread: dict[str, float]) -> list[float]:
    """Upper bounds on the chance that unchanged code passes all metrics, by tests that know the spreads and that learn
    them: the chance of the hardest metric alone. The product is no bound: a joint test may divide alpha otherwise."""
    return [
        min(pass_chance(policy, rule, spread[name], margin, knows) for name, (rule, _, margin) in metrics.items())
        for knows in (True, False)
    ]


def measured(tier: str, noise: str, runs: int, seed: int) -> dict[str, Any]:
    """Everything about one cell."""
    policy, rng = policy_for(tier), np.random.default_rng(seed)
    metrics = deciding(policy, tier, noise, runs, seed)
    rule, sd, margin = metrics["step_time"]
    alphas = (policy.alpha_block, policy.alpha_block / len(metrics))
    return {
        **block_chances(sd, margin, alphas, 2 * rule.prior, rng),
        "pass": passes(policy, metrics, {name: sd for name, (_, sd, _) in metrics.items()}),
        "pass_at_twice_the_priors": passes(
            policy, metrics, {name: 2 * rule.prior for name, (rule, _, _) in metrics.items()}
        ),
        "spreads": {name: round(sd, 5) for name, (_, sd, _) in metrics.items()},
    }


def of_sessions(packed: Path) -> list[str]:
    """Table rows by algorithm: the spread of its quality, and PASS by tests that know it / learn it (t)."""
    lines = ["| algorithm, metric | SD | 3 + 3 runs | 4 + 4 | 5 + 5 |", "|---|---|---|---|---|"]
    shipped = policy_for("smoke")
    for algo, sessions in unchanged_sessions(packed).items():
        name = "eval_reward" if named_paradigm(algo) is Paradigm.REINFORCEMENT else "eval_loss"
        policy = shipped.resolve({"backend": "cpu", "algo": algo, name: "recorded"})
        found = next(each for each in spreads(policy, sessions) if each.rule.name == name)
        cells = []
        for runs in (3, 4, 5):
            plan = replace(policy, looks=replace(policy.looks, runs=(runs,), shares=(1.0,)))
            chances = (pass_chance(plan, found.rule, found.sd, found.margin, knows) for knows in (True, False))
            cells.append(" / ".join(f"{100 * chance:.1f}" for chance in chances))
        lines.append(f"| {algo}, {name} | {found.sd:.3f} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4000, help="simulated runs that a spread is taken from")
    parser.add_argument("--seed", type=int, default=37)
    parser.add_argument("--sessions", type=Path, nargs="?", const=CAMPAIGN, help="PASS of the campaign's sessions only")
    asked = parser.parse_args()
    if asked.sessions:
        print("\n".join(of_sessions(asked.sessions)))
        return
    print("| tier, noise | averaged | spread known | any test | spread learnt | PASS | PASS, twice the priors |")
    print("|---|---|---|---|---|---|---|")
    found = {}
    for tier in STEPS:
        for noise in NOISE:
            cell = found[f"{tier} {noise}"] = measured(tier, noise, asked.runs, asked.seed)
            tests = (" / ".join(f"{100 * share:.1f}" for share in cell[what]) for what in ("known", "any", "learnt"))
            passes = (
                " / ".join(f"{100 * share:.1f}" for share in cell[what])
                for what in ("pass", "pass_at_twice_the_priors")
            )
            print(f"| {tier}, {noise} | {100 * cell['averaged']:.1f} | {' | '.join((*tests, *passes))} |", flush=True)
    print(json.dumps({"benchmark": "gate bounds", "runs": asked.runs, "seed": asked.seed, **found}))


if __name__ == "__main__":
    main()
