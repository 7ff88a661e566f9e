"""Rows of short steps wait for the next ones: what the watch says, and the step at which it stops a run, stay."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
from watch_runs import FAILURES, Rows, fail, policy, rl, sft

from canary_mlflow.gates.watch import Watch, WatchPolicy

Stop = tuple[int | None, list[dict[str, object]]]


def frozen(seed: int) -> Rows:
    return [row | {"loss": 2.0} for row in sft(seed, 80)]


def from_row(made: Callable[[int], Rows], at: int, rows: int = 3, **values: float) -> Callable[[int], Rows]:
    def changed(seed: int) -> Rows:
        return [row | (values if at <= step < at + rows else {}) for step, row in enumerate(made(seed))]

    return changed


@cache
def histories() -> dict[str, Callable[[int], Rows]]:
    found: dict[str, Callable[[int], Rows]] = {
        name: lambda seed, one=one: fail(one[0](seed), one[1], one[2], **one[3])  # type: ignore[misc]
        for name, one in FAILURES.items()
    }
    for at in (0, 1, 25, 61, 62, 63):
        found |= {
            f"a loss that is not a number in row {at}": from_row(sft, at, loss=math.nan),
            f"an infinite KL in row {at}": from_row(rl, at, kl=math.inf),
            f"no loss from row {at}": from_row(sft, at, 20, loss=0.0),
            f"no rate from row {at}": from_row(sft, at, 60, learning_rate=0.0),
            f"a value loss that comes late, in row {at}": from_row(rl, at, value_loss=math.nan),
        }
    return found | {"a loss that never moves": frozen}


def stop_of(rows: Rows, rules: WatchPolicy, *, waits: bool) -> tuple[Stop, int]:
    """The row at which a stop is asked for, the warnings until then, and how many rows waited."""
    watch, waiting, waited = Watch(rules, max_steps=len(rows)), [], 0
    for step, row in enumerate(rows, 1):
        waiting.append((step, row))
        if waits and watch.can_wait(len(waiting), row):
            waited += 1
            continue
        for one in waiting:
            watch.observe(*one)
        waiting = []
        if watch.stop_requested:
            return (step, [one.to_dict() for one in watch.warnings]), waited
    for one in waiting:
        watch.observe(*one)
    watch.finish(True)
    return (None, [one.to_dict() for one in watch.warnings]), waited


@pytest.mark.parametrize(("hold", "least"), [(2, 2), (3, 3), (10, 3), (10, 4), (4, 4)])
@pytest.mark.parametrize("name", histories())
def test_a_row_that_waits_changes_no_warning_and_delays_no_stop(name: str, hold: int, least: int) -> None:
    rules = policy(on_critical="stop", rows__hold=hold, rows__hold_least=least)
    for seed in range(3):
        rows = histories()[name](seed)
        assert stop_of(rows, rules, waits=True)[0] == stop_of(rows, rules, waits=False)[0]


def test_most_rows_of_a_healthy_run_wait() -> None:
    for made in (sft, rl):
        (at, warnings), waited = stop_of(made(0), policy(on_critical="stop"), waits=True)
        assert (at, warnings) == (None, [])
        assert waited > 0.5 * len(made(0))
