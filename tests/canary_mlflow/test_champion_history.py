"""Steps in the history of champions: found, reported with their size, and not seen where there are none."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from canary_mlflow.registry.judging import champion_history
from canary_mlflow.registry.judging.champion_history import history_notes

with_ruptures = pytest.mark.skipif(find_spec("ruptures") is None, reason="the extra `audit` is not installed")


def ledger(values: Any, **changes: Any) -> list[Any]:
    """Rows of verdicts that each made a champion."""
    fields = {"relative": True, "unit": "kernels", "spread": 0.01, "candidate_runs": 3, **changes}
    return [
        SimpleNamespace(
            moves=1,
            alias="champion",
            version=number,
            facts={
                "verdict": {
                    "checks": [
                        {"metric": "step_cost", "role": "gate", "evidence": {**fields, "candidate": float(value)}},
                        {"metric": "completed", "role": "hard", "evidence": None},
                    ]
                }
            },
        )
        for number, value in enumerate(values, start=2)
    ]


def levels(before: float, since: float, at: int, count: int = 12) -> Any:
    wobble = np.random.default_rng(4).normal(0, 0.006, count)
    return np.where(np.arange(count) < at, before, since) * np.exp(wobble)


@with_ruptures
def test_a_step_that_each_verdict_let_through_is_said_with_version_and_size() -> None:
    (note,) = history_notes(ledger(levels(10.0, 10.8, 6)))
    assert "step_cost changed by +8" in note
    assert "with version 8 " in note


@with_ruptures
def test_equal_champions_have_no_step() -> None:
    assert history_notes(ledger(levels(10.0, 10.0, 6))) == [
        "history of champions: no step in any metric over 12 of them"
    ]


def test_without_the_library_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(champion_history, "find_spec", lambda name: None)
    (note,) = history_notes(ledger(levels(10.0, 10.8, 6)))
    assert "not audited, ruptures is not installed" in note


def test_few_champions_are_no_history() -> None:
    assert history_notes(ledger(levels(10.0, 10.8, 3, 7))) == []


def test_rows_that_moved_nothing_do_not_count() -> None:
    rows = ledger(levels(10.0, 10.8, 6))
    for row in rows[:6]:
        row.moves = 0
    assert history_notes(rows) == []
