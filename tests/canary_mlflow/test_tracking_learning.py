"""What a finished run says about itself: did it learn, how did it end, and metrics.json."""

from __future__ import annotations

import json
import math
import re
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from mlflow import MlflowClient

from canary_mlflow.tracking.describing.failures import classify, raised, raised_from, raised_tags
from canary_mlflow.tracking.describing.learning import learned
from canary_mlflow.tracking.ending import loss_diverged, metrics_json, statistics
from canary_mlflow.tracking.signals import Terminated


def rows(name: str, values: object) -> list[dict[str, float]]:
    return [{name: float(value)} for value in np.asarray(values)]


def dpo(seed: int, end: float = 0.55, spread: float = 0.06) -> list[dict[str, float]]:
    """100 noisy DPO losses: ln 2 at first, noisier as the policy leaves the reference."""
    rng = np.random.default_rng(seed)
    way = 1 - np.exp(-np.arange(100) / 30)
    return rows("loss", math.log(2) + (end - math.log(2)) * way + spread * way * rng.normal(size=100))


def test_noisy_dpo_runs_that_learn_are_seen_to_learn() -> None:
    assert all(learned(dpo(seed), "dpo", moved=True)[0] for seed in range(500))


def sft(seed: int, steps: int, end: float = 2.0, spread: float = 0.2) -> list[dict[str, float]]:
    """Noisy losses that fall from 3 to `end`; 3 stays 3."""
    rng = np.random.default_rng(seed)
    return rows("loss", 3 + (end - 3) * (1 - np.exp(-np.arange(steps) * 3 / steps)) + spread * rng.normal(size=steps))


@pytest.mark.parametrize("steps", [20, *(pytest.param(many, marks=pytest.mark.full) for many in (50, 100))])
def test_noise_alone_is_seldom_taken_for_learning(steps: int) -> None:
    flat = [learned(sft(seed, steps, end=3.0), "sft", moved=True)[0] for seed in range(1000)]
    assert sum(flat) <= 80  # a test at 5 % expects 50
    scores = [
        learned(rows("score_mean", np.random.default_rng(seed).normal(-16, 1, steps)), "ppo", moved=True)[0]
        for seed in range(1000)
    ]
    assert sum(scores) <= 80


def test_an_algorithm_of_no_known_name_is_judged_by_what_it_recorded() -> None:
    """TRL has trainers that learn from rewards under names of their own; their loss tells nothing."""
    rng = np.random.default_rng(1)
    rising = [{"loss": rng.normal(0, 0.1), "reward_mean": step / 10 + rng.normal(0, 0.1)} for step in range(40)]
    good, why = learned(rising, "gmpo", moved=True)
    assert good
    assert why.startswith("reward_mean improved")
    silent = [{"loss": row["loss"], "clip_fraction": 0.0} for row in rising]
    assert learned(silent, "gmpo", moved=True)[0] is None
    preferences = [{**row, "loss": 3 - row["reward_mean"] / 2, "reward_margin": 0.1} for row in rising]
    assert learned(preferences, "simpo", moved=True)[1].startswith("loss improved")


def test_what_noise_hides_the_held_out_loss_shows() -> None:
    """Batches of texts of many lengths: CPO's losses of TRL's script, whose held-out loss fell at each evaluation."""
    noisy = sft(1, 60, end=2.85, spread=0.6)
    assert "improved by no more than its noise" in learned(noisy, "cpo", moved=True)[1]
    for fallen, good in ((2.6, True), (2.79, False), (2.9, False), (math.nan, False)):
        for step, value in ((19, 2.8), (39, fallen)):
            noisy[step]["eval_loss"] = value
        found, why = learned(noisy, "cpo", moved=True)
        assert found is good
        assert why.startswith("eval_loss improved from 2.8 to 2.6") is good


def test_what_is_too_little_is_clear_only_where_noise_cannot_hide_more() -> None:
    """The sign of noise decides nothing: a reward model's loss of 0.6476 that ended at 0.6472."""
    noisy = [learned(sft(seed, 60, end=3.0, spread=0.6), "sft", moved=True)[1] for seed in range(200)]
    assert sum("improved by no more than its noise" in why for why in noisy) >= 170
    for end, said in ((2.99, "improved by less than 1%"), (3.2, "did not improve")):
        assert said in learned(sft(1, 60, end=end, spread=0.005), "sft", moved=True)[1]


@pytest.mark.parametrize("steps", [20, *(pytest.param(many, marks=pytest.mark.full) for many in (50, 100))])
def test_learning_is_seen_through_the_noise(steps: int) -> None:
    assert sum(learned(sft(seed, steps), "sft", moved=True)[0] for seed in range(500)) >= 475
    rising = [
        -16 + 10 / (1 + np.exp(-np.arange(steps) * 10 / steps + 5)) + np.random.default_rng(seed).normal(size=steps)
        for seed in range(500)
    ]
    assert all(learned(rows("score_mean", values), "ppo", moved=True)[0] for values in rising)


def test_a_learning_rate_far_too_small_teaches_nothing() -> None:
    """What DPO logs then: ln 2, and a thousandth of what it would learn, with a thousandth of the noise."""
    for seed in range(200):
        usual = np.array([row["loss"] for row in dpo(seed)])
        did, why = learned(rows("loss", math.log(2) + (usual - math.log(2)) / 1000), "dpo", moved=True)
        assert not did
        assert "improved by less than 1%" in why


def test_slow_learning_counts_too() -> None:
    seen = [learned(dpo(seed, end=0.65), "dpo", moved=True)[0] for seed in range(500)]
    assert sum(seen) >= 490


def test_a_run_that_gets_worse_did_not_learn() -> None:
    did, why = learned(dpo(1, end=0.80), "dpo", moved=True)
    assert not did
    assert why.startswith("loss did not improve from 0.7")


def test_parameters_that_stand_still_decide_alone() -> None:
    assert learned(dpo(1), "dpo", moved=False) == (False, "no trainable parameter changed")
    assert "unknown" in learned(dpo(1), "dpo", moved=None)[1]


def test_reinforcement_learning_is_judged_by_its_score_and_not_by_its_loss() -> None:
    rising = [{"loss": 1.0 + step, "score_mean": 0.1 * step} for step in range(50)]
    assert learned(rising, "ppo", moved=True)[0]
    assert not learned(rising[::-1], "ppo", moved=True)[0]
    assert learned(rows("reward_mean", range(20)), "grpo", moved=True)[0]


def test_a_loss_that_ends_as_no_number_learned_nothing() -> None:
    values = np.linspace(1, 0.5, 100)
    values[80] = np.nan
    did, why = learned(rows("loss", values), "sft", moved=True)
    assert not did
    assert "not finite at the end" in why


def test_a_reward_per_batch_of_answers_may_come_too_seldom_to_tell() -> None:
    """TRL's RLOO with 16 steps of 4 on each batch of answers: 4 rewards."""
    seldom = [{"loss": 0.1} | ({"reward_mean": float(step)} if step % 4 == 0 else {}) for step in range(16)]
    assert learned(seldom, "rloo", moved=True) == (None, "only 4 values of reward_mean; expected at least 8")
    assert learned([{"loss": 0.1}] * 16, "rloo", moved=True)[0] is False  # a reward was never seen


def test_too_short_a_run_shows_nothing() -> None:
    assert not learned(rows("loss", [3, 2, 1]), "sft", moved=True)[0]
    assert not learned([], "sft", moved=True)[0]


class InstabilityError(RuntimeError):
    """Named as training's own."""


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


@pytest.mark.parametrize(
    ("error", "nonfinite", "failure"),
    [
        (RuntimeError("bug"), 0, "error"),
        (RuntimeError("bug"), 2, "instability"),
        (InstabilityError("step 3: loss is nan"), 0, "instability"),
        (RuntimeError("probability tensor contains either `inf`, `nan` or element < 0"), 0, "instability"),
        (OutOfMemoryError("CUDA out of memory"), 5, "oom"),
        (MemoryError(), 0, "oom"),
        (TimeoutError("late"), 0, "timeout"),
        (KeyboardInterrupt(), 0, "interrupted"),
        (Terminated(15), 0, "interrupted"),
        (None, 0, "error"),
    ],
)
def test_an_exception_becomes_one_of_the_gates_words(error: BaseException | None, nonfinite: int, failure: str) -> None:
    found, sentence = classify(error, nonfinite)
    assert found == failure
    assert sentence
    assert "\n" not in sentence


def test_what_cuda_tells_developers_is_not_repeated() -> None:
    """As torch 2.11 raised it on an H200 when GRPO sampled from logits that were no numbers."""
    error = RuntimeError(
        "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com/cuda/"
        "cuda-runtime-api/group__CUDART__TYPES.html for more information.\nCUDA kernel errors might be asynchronously "
        "reported at some other API call, so the stacktrace below might be incorrect."
    )
    assert classify(error, 1) == ("instability", "RuntimeError: CUDA error: device-side assert triggered")


def caught(act: Callable[[], object]) -> Exception:
    """What it raises, with its traceback."""
    try:
        act()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("it raised nothing")


def wrapped() -> None:
    try:
        Path("/nowhere/at/all").read_text()
    except OSError as error:
        raise RuntimeError("no data") from error


def waiting() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0.01)
        server.accept()


def test_what_code_raises_is_placed_without_a_path_of_this_machine() -> None:
    error = caught(lambda: click.Choice(None))  # in a package
    found = raised(error)
    assert re.fullmatch(r"TypeError at click/types\.py:\d+ in __init__", str(found))
    assert raised_from(raised_tags(found)) == found
    mine = raised(caught(lambda: json.loads("{")))  # Python's own library is not to blame
    assert mine is not None
    assert re.fullmatch(r"(tests/|canary_mlflow/)*test_tracking_learning\.py:\d+ in <lambda>", mine.place)
    assert mine.outside == ""
    assert (raised(KeyboardInterrupt()), raised(Terminated(15)), raised(None)) == (None, None, None)


BUSY = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 5.00 GiB is "
    "free. Process 12 has {} memory in use. Including non-PyTorch memory, this process has 60.00 GiB memory in use."
)


@pytest.mark.parametrize(
    ("act", "failure", "said"),
    [
        (lambda: Path("/nowhere/at/all").read_text(), "error", "is an OSError"),
        (wrapped, "error", "is an OSError"),
        (waiting, "error", "is an OSError"),
        (lambda: sqlite3.connect(":memory:").execute("select x"), "error", "raised in sqlite3"),
        (lambda: MlflowClient("file-no-such://x").get_run("y"), "error", "raised in mlflow"),
        (lambda: raise_(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")), "error", "killed"),
        (lambda: raise_(OutOfMemoryError(BUSY.format("70.00 GiB"))), "error", "other processes"),
        (lambda: raise_(OutOfMemoryError(BUSY.format("400.00 MiB"))), "oom", ""),
        (lambda: raise_(TimeoutError("late")), "timeout", "is an OSError"),
    ],
)
def test_what_tells_of_the_place_is_not_held_against_the_code(act: Any, failure: str, said: str) -> None:
    error = caught(act)
    found = raised(error)
    assert found is not None
    assert classify(error)[0] == failure
    assert said in found.outside
    assert bool(found.outside) is bool(said)


def raise_(error: Exception) -> None:
    raise error


def test_step_time_statistics_against_values_worked_out_by_hand() -> None:
    found = statistics([0.4, 0.1, 0.2, 0.3])
    assert found == pytest.approx(
        {"count": 4, "mean": 0.25, "median": 0.25, "p50": 0.2, "p95": 0.3, "p99": 0.3, "min": 0.1, "max": 0.4}
        | {"std": math.sqrt(0.05 / 3)}
    )
    assert statistics([])["mean"] is None


@pytest.mark.parametrize(
    ("losses", "diverged"),
    [
        ([1.0] * 30, False),
        ([1.0] * 20 + [1.6] * 10, True),
        ([1.0] * 20 + [1.4] * 10, False),
        ([-3.0] * 20 + [-1.9] * 10, True),
        ([-3.0] * 20 + [-2.1] * 10, False),
        ([1.0, 9.0], False),
        ([1.0, math.nan], True),
    ],
)
def test_divergence_compares_the_ends_whatever_the_sign(losses: list[float], diverged: bool) -> None:
    assert loss_diverged(losses) is diverged


def test_metrics_json_has_the_known_layout_with_true_values() -> None:
    steps = [
        {"step_time": 0.1, "tokens": 50.0, "peak_memory": 700.0 + number, "loss": loss, "grad_norm": 1.0}
        for number, loss in enumerate([9.0, 3.0, math.nan, 1.0])
    ]
    steps[0]["step_time"] = 5.0  # warm-up
    found = metrics_json(
        steps,
        run_id="r",
        timestamp="2026-01-01T00:00:00+00:00",
        status="completed",
        duration_seconds=5.3,
        nan_steps=1,
        inf_steps=0,
        config={"seed": 1, "nested": {"lr": math.inf}},
        env={"python": "3"},
        warmup_steps=1,
    )
    json.dumps(found, allow_nan=False)
    assert found["perf"]["step_time"]["count"] == 3
    assert found["perf"]["step_time"]["max"] == pytest.approx(0.1)
    assert found["perf"]["approx_tokens_per_sec"] == pytest.approx(500)
    assert found["perf"]["max_mem_mb"] == 703.0
    assert found["stability"] == {
        "nan_steps": 1,
        "inf_steps": 0,
        "loss_diverged": True,
        "final_loss": 1.0,
        "loss_values": [9.0, 3.0, None, 1.0],
        "grad_norm_values": [1.0, 1.0, 1.0, 1.0],
    }
    assert found["config"] == {"seed": 1, "nested": {"lr": None}}
