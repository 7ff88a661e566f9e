"""Trainings that end by themselves, as early stopping and a target do, compare where all their runs have been."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from verdicts import check

from canary_mlflow.gates import Outcome, Run, Series, Version, judge
from canary_mlflow.gates.model.verdict import ReasonCode

EVERY = 50
BASELINE = (800, 1000, 900, 850, 950)


def falling(steps: np.ndarray) -> np.ndarray:
    return 2.0 - np.asarray(steps) / 1000


def trained(name: str, ends: Sequence[int], loss: Callable[[np.ndarray], np.ndarray] = falling) -> Version:
    """Runs of steps that take 0.1 s, each evaluated every 50 steps until it ends."""
    made = []
    for number, end in enumerate(ends):
        rng = np.random.default_rng([number, *name.encode()])
        steps, evaluated = np.arange(1, end + 1), np.arange(EVERY, end + 1, EVERY)
        values = {
            "step_time": (steps, 0.1 * np.exp(rng.normal(0, 0.01) + rng.normal(0, 0.05, end))),
            "eval_loss": (evaluated, loss(evaluated) * np.exp(rng.normal(0, 0.003))),
        }
        series = {key: Series(name=key, steps=at, values=found) for key, (at, found) in values.items()}
        made.append(Run(run_id=f"{name}{number}", seed=None, series=series, learned=True, last_step=end))
    return Version(model="m", version=name, runs=tuple(made))


def test_unchanged_code_passes_by_what_all_its_runs_reached(perf):
    found = judge(perf, trained("a", BASELINE), trained("b", (900, 1000, 800)))
    assert found.outcome is Outcome.PASS
    assert "up to step 800, which all reached" in " ".join(check(found, "eval_loss").notes)


def test_learning_more_slowly_blocks_although_every_run_ends_as_good_as_before(perf):
    slowly = trained("b", (1000, 1000, 950), lambda steps: np.where(steps < 900, 1.25 * falling(steps), 1.05))
    assert check(judge(perf, trained("a", BASELINE), slowly), "eval_loss").outcome == Outcome.BLOCK


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ((1000,) * 5, (1000, 800, 1000)),  # the baseline's end is fixed, so a shorter run broke off
        (BASELINE, (900, 700, 1000)),  # one ends before all of the baseline's do,
        (BASELINE, (900, 1200, 1000)),  # or trains longer
        ((1000, 450, 900, 800, 950), (900, 500, 1000)),  # what is shared is not most of a training
    ],
)
def test_runs_that_end_otherwise_are_not_compared(perf, before, now):
    found = check(judge(perf, trained("a", before), trained("b", now)), "eval_loss")
    assert (found.outcome, found.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.NOT_COMPARABLE)


@pytest.mark.parametrize("ends", [(900, 1000, 800), (800, 800, 1000)])
def test_what_ends_worse_does_not_pass_by_what_it_shares(perf, ends):
    """Nor by the runs that end early, which know nothing of it."""
    worse = trained("b", ends, lambda steps: np.where(steps > 800, 1.15, 1.0) * falling(steps))
    assert check(judge(perf, trained("a", BASELINE), worse), "eval_loss").outcome == Outcome.INCONCLUSIVE


def test_what_is_no_longer_evaluated_does_not_pass_by_what_it_shares(perf):
    silent = trained("b", (1000, 1000, 900))
    runs = [
        replace(run, series={**run.series, "eval_loss": up_to(run.series["eval_loss"], 800)}) for run in silent.runs
    ]
    found = judge(perf, trained("a", BASELINE), replace(silent, runs=tuple(runs)))
    assert check(found, "eval_loss").outcome == Outcome.INCONCLUSIVE


def up_to(series: Series, last: int) -> Series:
    keep = series.steps <= last
    return Series(name=series.name, steps=series.steps[keep], values=series.values[keep])


def test_what_may_not_rise_is_compared_there_too(perf):
    """A guard that is left undecided would not be in the way of a PASS."""
    runs = {"a": trained("a", BASELINE), "b": trained("b", (900, 1000, 800))}
    sides = []
    for name, high in (("a", 1.0), ("b", 3.0)):
        held = []
        for run in runs[name].runs:
            steps = run.series["step_time"].steps
            rises = Series(name="kl", steps=steps, values=high * 0.001 * steps)
            held.append(replace(run, series={**run.series, "kl": rises}, workload={"algo": "grpo"}))
        sides.append(replace(runs[name], runs=tuple(held)))
    assert check(judge(perf, *sides), "kl").outcome == Outcome.BLOCK
