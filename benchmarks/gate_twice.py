"""How often unchanged code is blocked if runs differ by a multiple of every prior, including tails and drifts.

    python benchmarks/gate_twice.py [--repeats 4000] [--times 2] [--sizes 5+3 3+3 2+2 10+2] [--seed 7]

The runs have almost no noise inside them: all of their spread is between runs, as hosts and seeds cause it, and every
number that decides is normal with `--times` its shipped prior. (gate.py and gate_plans.py simulate steps instead, from
which calmer tails and drifts follow.) A cell: BLOCK of unchanged code in %, with its 95 % interval. The last line is
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math

import numpy as np
from gate_data import series_of
from scipy.stats import beta

from canary_mlflow.gates import Outcome, Policy, Run, Version, judge
from canary_mlflow.policies import load_policy

STEPS = {"smoke": 100, "perf": 500, "nightly": 500}  # enough for tails and drifts to decide in tiers where they do
LEVELS = {"step_time": 0.02, "peak_memory": 900.0, "eval_loss": 0.58}


def made(policy: Policy, times: float, run_id: str, rng: np.random.Generator) -> Run:
    """A run whose numbers are normal around the common ones, with a spread of `times` their priors."""
    spread = {rule.name: times * rule.prior * rng.standard_normal() for rule in policy.rules}
    level = {name: value * math.exp(spread[name]) for name, value in LEVELS.items()}
    count = STEPS[policy.name]
    judged = count - policy.warmup_steps
    steps = np.ones(count)
    # Thirds of a ramp are 2/3 of its length apart; one step in 50 is lengthened by the rise that the mean needs.
    steps[policy.warmup_steps :] = np.exp(1.5 * spread["step_time_drift"] * np.linspace(-0.5, 0.5, judged))
    slow = np.arange(policy.warmup_steps + 7, count, 50)
    steps[slow] += math.expm1(0.03 + spread["step_time_tail"]) * judged / len(slow)
    series = {"step_time": level["step_time"] * steps, **{n: [level[n]] for n in ("peak_memory", "eval_loss")}}
    held = {name: series_of(name, values, count) for name, values in series.items()}
    facts = {"workload": {"algo": "dpo"}, "hardware": {"backend": "cuda"}}
    return Run(run_id=run_id, seed=None, series=held, completed=True, learned=True, last_step=count, **facts)


def blocked(policy: Policy, times: float, size: tuple[int, int], repeats: int, seed: int) -> int:
    """How many of `repeats` unchanged candidates are blocked."""
    rng = np.random.default_rng([seed, *size])
    found = 0
    for _ in range(repeats):
        runs = [tuple(made(policy, times, f"{side}{i}", rng) for i in range(count)) for side, count in enumerate(size)]
        sides = (Version(model="", version=None, runs=side) for side in runs)
        found += judge(policy, *sides).outcome is Outcome.BLOCK
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=4000)
    parser.add_argument("--times", type=float, default=2.0, help="the spread, in priors")
    parser.add_argument("--tiers", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--sizes", nargs="+", default=["5+3", "3+3", "2+2", "10+2"], metavar="K+M")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    print(f"| {arguments.times:g} priors ({arguments.repeats} repeats) | {' | '.join(arguments.sizes)} |")
    print(f"|---|{'---|' * len(arguments.sizes)}")
    result: dict[str, dict[str, float]] = {}
    for tier in arguments.tiers:
        cells, n = [], arguments.repeats
        for size in arguments.sizes:
            k, m = (int(part) for part in size.split("+"))
            x = blocked(load_policy(tier), arguments.times, (k, m), n, arguments.seed)
            low, high = beta.ppf(0.025, x, n - x + 1) if x else 0.0, beta.ppf(0.975, x + 1, n - x)
            cells.append(f"{100 * x / n:.2f} ({100 * low:.2f} to {100 * high:.2f})")
            result.setdefault(tier, {})[size] = x / n
        print(f"| {tier} | {' | '.join(cells)} |", flush=True)
    asked = {"repeats": arguments.repeats, "times": arguments.times, "seed": arguments.seed}
    print(json.dumps({"benchmark": "gate twice", **asked, **result}))


if __name__ == "__main__":
    main()
