"""Runs and versions made up for the judge's tests: DPO-like, 100 steps, on a GPU, unless stated otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from canary_mlflow.gates import Policy, Run, Series, Version, parse_policy, policy_to_dict
from canary_mlflow.gates.model.policy import FreshBaseline
from canary_mlflow.policies import load_policy

STEPS = np.arange(1, 101)


def series(name: str, values: Any, last: int | None = None) -> Series:
    """One value per step from 1 on; `last`: the step that a single one, such as an evaluation, stands at."""
    values = np.asarray(values, dtype=float)
    steps = np.arange(1, len(values) + 1) if last is None or len(values) > 1 else np.full(len(values), last)
    return Series(name=name, steps=steps, values=values)


def build_run(
    run_id: str = "r",
    seed: int | None = None,
    *,
    factor: Mapping[str, float] | None = None,
    steps: int = 100,
    series_: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Run:
    """A run whose wobble follows from its id; `factor` scales metrics, `series_` replaces (None: removes)."""
    rng = np.random.default_rng(list(run_id.encode()))

    def wobble(sd: float) -> Any:
        return np.exp(rng.normal(0, sd, steps))

    plain = {
        "step_time": 0.02 * wobble(0.04),
        "step_cpu_time": 0.02 * wobble(0.04),
        "step_cost": 12.0 * wobble(0.04),
        "tokens": np.round(500 * wobble(0.05)),
        "peak_memory": 900 + np.minimum(np.arange(steps), 20) + rng.normal(0, 1),
        "loss": np.linspace(0.69, 0.55, steps) * wobble(0.01),
        "grad_norm": 1.5 * wobble(0.05),
        "eval_loss": [0.58 * float(np.exp(rng.normal(0, 0.005)))],
    }
    plain |= {name: values for name, values in (series_ or {}).items()}
    held = {
        name: series(name, np.asarray(values, dtype=float) * (factor or {}).get(name, 1.0), steps)
        for name, values in plain.items()
        if values is not None
    }
    defaults: dict[str, Any] = {
        "completed": True,
        "learned": True,
        "last_step": steps,
        "workload": {"algo": "dpo", "max_steps": str(steps)},
        "hardware": {"backend": "cuda", "device": "H200"},
    }
    return Run(run_id=run_id, seed=seed, series=held, **{**defaults, **fields})


def build_version(name: str, count: int = 3, **changes: Any) -> Version:
    """`count` runs named after the version, without seeds unless `seeds` lists them."""
    seeds = changes.pop("seeds", [None] * count)
    runs = tuple(build_run(f"{name}{i}", seeds[i], **changes) for i in range(count))
    return Version(model="canary", version=name, runs=runs)


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Run]:
    return build_run


@pytest.fixture(scope="session")
def make_version() -> Callable[..., Version]:
    return build_version


@pytest.fixture(scope="session")
def make_series() -> Callable[[str, Any], Series]:
    return series


@pytest.fixture(scope="session")
def smoke() -> Policy:
    return load_policy("smoke")


@pytest.fixture(scope="session")
def perf() -> Policy:
    return load_policy("perf")


def deep_merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        merged[key] = deep_merge(merged[key], value) if isinstance(value, dict) and key in merged else value
    return merged


@pytest.fixture(scope="session")
def asks_fresh(smoke: Policy) -> Policy:
    """The smoke policy, but it asks for fresh runs of the champion beside the candidate's."""
    return replace(smoke, looks=replace(smoke.looks, fresh_baseline=FreshBaseline.ALWAYS))


@pytest.fixture(scope="session")
def smoke_with(smoke: Policy) -> Callable[..., Policy]:
    """The smoke policy with nested changes laid over it: smoke_with(rules={'step_time': {'margin': 0.2}})."""
    plain = policy_to_dict(smoke)
    return lambda **changes: parse_policy(deep_merge(plain, changes))
