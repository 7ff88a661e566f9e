"""Each row of the shipped policy moves by its own fault, and no other row does: one series or fact is struck at a time,
in runs of the perf tier on a GPU that have every series a row looks at. docs/measured/faults.md has the same table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from canary_mlflow.gates import Run, Series, Version, judge
from canary_mlflow.policies import load_policy

DOCS = Path(__file__).resolve().parents[2] / "docs" / "measured" / "faults.md"
STEPS = 520
CONSTANT_TOKENS = 512.0
POSITIVE = ("step_cpu_time", "step_cost", "iteration_time", "iteration_cpu_time", "iteration_cost", "grad_norm", "kl")
LAST = {"eval_accuracy": 0.8, "eval_margin": 1.0, "eval_reward": 3.0}

Change = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Struck:
    """What is done to a run: series by name, fields of the run, the algorithm whose rules judge it, and the series that
    neither side has."""

    series: Mapping[str, Change] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    algo: str = "dpo"
    lacking: tuple[str, ...] = ()


def times(factor: float) -> Change:
    return lambda values: values * factor


def plus(step: float) -> Change:
    return lambda values: values + step


def every_twentieth_triple(values: Any) -> Any:
    values = values.copy()
    values[::20] *= 3
    return values


def every_twentieth_six_times(values: Any) -> Any:
    values = values.copy()
    values[10::20] *= 6
    return values


def slower_and_slower(values: Any) -> Any:
    """By 14 % from the first step to the last, and not slower as a whole: the row of the step itself stays."""
    return values * np.linspace(0.93, 1.07, len(values))


def slow_first_steps(values: Any) -> Any:
    return values * np.where(np.arange(len(values)) < 10, 30.0, 1.0)


def one_nan(values: Any) -> Any:
    values = values.copy()
    values[99] = np.nan
    return values


def diverging(values: Any) -> Any:
    return values * np.where(np.arange(len(values)) < 0.85 * len(values), 1.0, 3.0)


FAULTS: dict[str, tuple[Struck, dict[str, str]]] = {
    "every step 13 % longer": (Struck(series={"step_time": times(1.13)}), {"step_time": "BLOCK"}),
    "every 20th step three times as long": (
        Struck(series={"step_time": every_twentieth_triple}),
        {"step_time_tail": "BLOCK"},
    ),
    "14 % slower from first step to last": (
        Struck(series={"step_time": slower_and_slower}),
        {"step_time_drift": "BLOCK"},
    ),
    "8 % of the tokens are padding": (Struck(series={"tokens": times(0.92)}), {"tokens_per_second": "BLOCK"}),
    "12 % fewer samples a second, no step time recorded": (
        Struck(series={"samples_per_second": times(0.88)}, lacking=("step_time",)),
        {"samples_per_second": "BLOCK"},
    ),
    "30 % more CPU time a step": (Struck(series={"step_cpu_time": times(1.3)}), {"step_cpu_time": "WARN"}),
    "step cost 20 % higher": (Struck(series={"step_cost": times(1.2)}), {"step_cost": "WARN"}),
    "iterations 13 % longer": (
        Struck(series={"iteration_time": times(1.13)}, algo="ppo"),
        {"iteration_time": "BLOCK"},
    ),
    "30 % more CPU time an iteration": (
        Struck(series={"iteration_cpu_time": times(1.3)}, algo="ppo"),
        {"iteration_cpu_time": "WARN"},
    ),
    "iteration cost 20 % higher": (
        Struck(series={"iteration_cost": times(1.2)}, algo="ppo"),
        {"iteration_cost": "WARN"},
    ),
    "memory 30 % higher": (Struck(series={"peak_memory": times(1.3)}), {"peak_memory": "BLOCK"}),
    "the host's memory 30 % higher": (Struck(series={"host_memory": times(1.3)}), {"host_memory": "BLOCK"}),
    "400 MiB leak": (
        Struck(series={"peak_memory": lambda values: values + np.linspace(0, 400, len(values))}),
        {"peak_memory": "BLOCK", "memory_growth": "BLOCK"},
    ),
    "the first steps thirty times as long": (Struck(series={"step_time": slow_first_steps}), {"total_time": "WARN"}),
    "every 20th step six times as long": (
        Struck(series={"step_time": every_twentieth_six_times}),
        {"step_time_tail": "BLOCK", "run_time": "BLOCK"},
    ),
    "twice the CPU time before the first step": (Struck(series={"setup_time": times(2)}), {"setup_time": "WARN"}),
    "twice the CPU time between steps": (Struck(series={"outside_time": times(2)}), {"outside_time": "BLOCK"}),
    "evaluation loss 8 % higher": (Struck(series={"eval_loss": times(1.08)}), {"eval_loss": "BLOCK"}),
    "accuracy lower by 0.12": (Struck(series={"eval_accuracy": plus(-0.12)}), {"eval_accuracy": "BLOCK"}),
    "reward margin lower by 0.2": (Struck(series={"eval_margin": plus(-0.2)}), {"eval_margin": "WARN"}),
    "evaluation reward lower by 1.2": (
        Struck(series={"eval_reward": plus(-1.2)}, algo="ppo"),
        {"eval_reward": "BLOCK"},
    ),
    "training loss 8 % higher": (Struck(series={"loss": times(1.08)}), {"loss": "WARN"}),
    "mean reward lower by 1.2": (Struck(series={"reward_mean": plus(-1.2)}, algo="ppo"), {"reward_mean": "WARN"}),
    "mean score lower by 1.2, no reward recorded": (
        Struck(series={"score_mean": plus(-1.2)}, algo="ppo", lacking=("eval_reward", "reward_mean")),
        {"score_mean": "BLOCK"},
    ),
    "gradients 1.6 times as large": (Struck(series={"grad_norm": times(1.6)}), {"grad_norm": "WARN"}),
    "gradients 1.6 times as small": (Struck(series={"grad_norm": times(1 / 1.6)}), {"grad_norm": "WARN"}),
    "entropy 1.6 times as small": (Struck(series={"entropy": times(1 / 1.6)}, algo="ppo"), {"entropy": "WARN"}),
    "KL 1.6 times as large": (Struck(series={"kl": times(1.6)}, algo="ppo"), {"kl": "BLOCK"}),
    "clip fraction higher by 0.12": (
        Struck(series={"clip_fraction": plus(0.12)}, algo="ppo"),
        {"clip_fraction": "WARN"},
    ),
    "answers twice as long": (
        Struck(series={"response_length": times(2.0)}, algo="ppo"),
        {"response_length": "WARN"},
    ),
    "half of the parameters train": (
        Struck(fields={"facts": {"parameters.trainable": "512"}}),
        {"facts": "BLOCK"},
    ),
    "one NaN": (Struck(series={"loss": one_nan}), {"nonfinite": "BLOCK"}),
    "out of memory": (Struck(fields={"failure": "oom", "completed": False}), {"completed": "BLOCK"}),
    "the loss of the last sixth three times as high": (
        Struck(series={"loss": diverging}),
        {"divergence": "BLOCK", "loss": "WARN"},
    ),
    "parameters that never moved": (
        Struck(fields={"learned": False, "learned_reason": "no parameter moved"}),
        {"learned": "BLOCK"},
    ),
    "a broken invariant": (Struck(fields={"invariants": "broken: reference model moved"}), {"invariants": "BLOCK"}),
    "a warning that stayed critical": (Struck(fields={"critical_held": "loss_spike"}), {"watch": "BLOCK"}),
}


def run(name: str, algo: str, lacking: Sequence[str] = ()) -> Run:
    """A healthy run that has whatever any row looks at, but for `lacking`; its noise follows from its name."""
    rng = np.random.default_rng(list(name.encode()))

    def wobble(sd: float, level: float = 1.0) -> Any:
        return level * np.exp(rng.normal(0, 0.004) + rng.normal(0, sd, STEPS))

    values = {
        "step_time": wobble(0.04, 0.02),
        "tokens": np.full(STEPS, CONSTANT_TOKENS),
        "peak_memory": np.full(STEPS, 900.0) + rng.normal(0, 1),
        "host_memory": np.full(STEPS, 4000.0) + rng.normal(0, 4),
        "loss": np.linspace(0.69, 0.55, STEPS) * wobble(0.01),
        "entropy": wobble(0.05, 2.0),
        "response_length": wobble(0.05, 50.0),
        "reward_mean": 1 + rng.normal(0, 0.1, STEPS),
        "score_mean": 1 + rng.normal(0, 0.1, STEPS),
        "clip_fraction": 0.1 + rng.normal(0, 0.01, STEPS),
        "setup_time": np.array([6 * float(np.exp(rng.normal(0, 0.03)))]),
        "outside_time": np.array([6 * float(np.exp(rng.normal(0, 0.03)))]),
        "eval_loss": np.array([0.58 * float(np.exp(rng.normal(0, 0.005)))]),
        **{name: wobble(0.04) for name in POSITIVE},
        **{name: np.array([level + rng.normal(0, 0.01)]) for name, level in LAST.items()},
        "samples_per_second": wobble(0.04, 50.0),
    }
    iterations = () if algo == "ppo" else ("iteration_time", "iteration_cpu_time", "iteration_cost")
    values = {name: found for name, found in values.items() if name not in (*lacking, *iterations)}
    steps = {name: np.arange(STEPS - len(x) + 1, STEPS + 1) for name, x in values.items()}
    return Run(
        run_id=name,
        seed=None,
        series={name: Series(name=name, steps=steps[name], values=x) for name, x in values.items()},
        completed=True,
        learned=True,
        invariants="held",
        critical_held="",
        last_step=STEPS,
        workload={"algo": algo, "max_steps": str(STEPS)},
        hardware={"backend": "cuda", "device": "H200"},
        configuration={"train.learning_rate": "1e-5"},
        facts={"parameters.trainable": "1024"},
    )


def struck(healthy: Run, how: Struck) -> Run:
    series = dict(healthy.series)
    for name, change in how.series.items():
        series[name] = replace(series[name], values=change(series[name].values))
    return replace(healthy, series=series, **how.fields)


def moved(how: Struck) -> dict[str, str]:
    """The checks that block or warn, five healthy runs against three with the fault."""
    sides = [[run(f"{side}{i}", how.algo, how.lacking) for i in range(count)] for side, count in (("a", 5), ("b", 3))]
    sides[1] = [struck(one, how) for one in sides[1]]
    left, right = (Version(model="canary", version=str(i), runs=tuple(side)) for i, side in enumerate(sides))
    checks = judge(load_policy("perf"), left, right).checks
    return {check.metric: str(check.outcome) for check in checks if check.outcome in ("BLOCK", "WARN")}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_moves_its_row_and_no_other(fault: str) -> None:
    how, expected = FAULTS[fault]
    assert moved(how) == expected


@pytest.mark.parametrize("algo", ["dpo", "ppo"])
def test_healthy_runs_move_no_row(algo: str) -> None:
    assert moved(Struck(algo=algo)) == {}


def test_every_row_and_every_hard_check_has_its_fault() -> None:
    policy = load_policy("perf")
    hard = {name for name, value in vars(policy.hard).items() if value is True}
    on_a_cpu = {"token_cost", "run_cost", "step_cost_growth"}
    rules = {rule.name for rule in policy.rules} - on_a_cpu
    assert rules | hard == set().union(*(expected for _, expected in FAULTS.values()))


def test_the_docs_have_the_same_table() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for fault, (how, expected) in FAULTS.items():
        named = ", ".join(f"`{name}` {word}" for name, word in expected.items())
        assert f"| {how.algo.upper()}: {fault} | {named} |" in text
