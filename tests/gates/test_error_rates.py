"""How often the whole gate errs, by simulation with fixed seeds: false BLOCKs, power, and false PASSes."""

from __future__ import annotations

import numpy as np
import pytest

from canary_mlflow.gates import Outcome, Run, Series, Version, judge

STEPS = np.arange(1, 101)
REPEATS = 120
AUTOREGRESSION = np.tril(0.5 ** np.abs(np.subtract.outer(np.arange(100.0), np.arange(100.0))))


def simulated(rng, name, spread, slow=0.0):
    """One run of 100 steps: run effect `spread`, autocorrelated wobble, spikes; the other metrics too."""
    wobble = AUTOREGRESSION @ rng.normal(0, 0.08 * np.sqrt(1 - 0.5**2), 100)
    spikes = np.where(rng.random(100) < 0.015, np.log(2), 0.0)
    step_time = 0.02 * np.exp(slow + rng.normal(0, spread) + wobble + spikes)
    values = {
        "step_time": step_time,
        "tokens": rng.integers(400, 600, 100),
        "peak_memory": np.full(100, 900 * np.exp(rng.normal(0, 0.003))),
        "eval_loss": np.array([0.58 * np.exp(rng.normal(0, 0.015))]),
        "loss": np.linspace(0.7, 0.55, 100) * np.exp(rng.normal(0, 0.02, 100)),
        "grad_norm": np.exp(rng.normal(0, 0.05) + rng.normal(0, 0.1, 100)),
    }
    held = {k: Series(name=k, steps=STEPS[-len(v) :], values=v.astype(float)) for k, v in values.items()}
    facts = {"workload": {"algo": "dpo"}, "hardware": {"backend": "cuda"}}
    return Run(run_id=name, seed=None, series=held, learned=True, last_step=100, **facts)


def outcomes(policy, seed, k, m, spread, slow=0.0, repeats=REPEATS):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(repeats):
        sides = [
            Version(
                model="m",
                version=side,
                runs=tuple(simulated(rng, f"{side}{i}", spread, harm) for i in range(n)),
            )
            for side, n, harm in (("a", k, 0.0), ("b", m, slow))
        ]
        found.append(judge(policy, *sides).outcome)
    return {outcome: found.count(outcome) / repeats for outcome in Outcome}


@pytest.mark.parametrize(("k", "m"), [(3, 3), pytest.param(5, 3, marks=pytest.mark.full)])
def test_unchanged_code_is_hardly_ever_blocked(smoke, k, m):
    rates = outcomes(smoke, seed=11, k=k, m=m, spread=0.03)
    assert rates[Outcome.BLOCK] <= 0.01
    assert rates[Outcome.PASS] >= 0.90


@pytest.mark.full
def test_even_four_times_noisier_than_its_prior(smoke):
    assert outcomes(smoke, seed=12, k=3, m=3, spread=0.08)[Outcome.BLOCK] <= 0.01


@pytest.mark.parametrize(("k", "m", "power"), [(3, 3, 0.9), pytest.param(5, 3, 0.95, marks=pytest.mark.full)])
def test_a_slowdown_of_one_and_a_half_margins_is_blocked(smoke, k, m, power):
    rates = outcomes(smoke, seed=13, k=k, m=m, spread=0.03, slow=np.log(1.225))
    assert rates[Outcome.BLOCK] >= power
    assert rates[Outcome.PASS] <= 0.01


@pytest.mark.full
def test_a_slowdown_at_the_margin_passes_at_most_one_time_in_twenty(smoke):
    rates = outcomes(smoke, seed=14, k=3, m=3, spread=0.02, slow=np.log(1.15), repeats=1000)
    assert rates[Outcome.PASS] <= 0.05  # 7 of 120 would be luck
