"""Data that is not as it should be: an outcome that docs/gate.md states, never a traceback."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from verdicts import check

from gates import CheckOutcome, ReasonCode, Role, judge, verdict_to_dict

AWKWARD = {
    "no runs": {"count": 0},
    "no series": {
        "series_": dict.fromkeys(
            ["step_time", "step_cpu_time", "step_cost", "tokens", "peak_memory", "loss", "grad_norm", "eval_loss"]
        )
    },
    "empty series": {"series_": {"step_time": []}},
    "all NaN": {"series_": {"step_time": [np.nan] * 100}},
    "largest float": {"series_": {"step_time": [sys.float_info.max] * 100}},
    "zero times": {"series_": {"step_time": np.zeros(100)}},
    "negative times": {"series_": {"step_time": np.full(100, -1.0)}},
    "zero loss": {"series_": {"eval_loss": [0.0], "loss": np.zeros(100)}},
    "negative loss": {"series_": {"eval_loss": [-0.2]}},
    "NaN loss": {"series_": {"eval_loss": [np.nan]}},
    "one step": {"series_": {"step_time": [0.02]}},
    "short run": {"steps": 25},
    "constant": {"series_": {"step_time": np.full(100, 0.02), "eval_loss": [0.58]}},
    "huge": {"factor": {"step_time": 1e290}},
    "tiny": {"factor": {"step_time": 1e-290}},
    "zero memory": {"series_": {"peak_memory": np.zeros(100)}},
    "no seeds and facts": {"workload": {}, "hardware": {}},
}


@pytest.mark.parametrize("name", sorted(AWKWARD))
@pytest.mark.parametrize("sides", ["baseline", "candidate", "both"])
@pytest.mark.filterwarnings("error")
def test_awkward_data_has_an_outcome_and_no_traceback(smoke, make_version, name, sides):
    baseline = make_version("a", **({} if sides == "candidate" else AWKWARD[name]))
    verdict = judge(smoke, baseline, make_version("b", **({} if sides == "baseline" else AWKWARD[name])))
    json.dumps(verdict_to_dict(verdict), allow_nan=False)
    assert verdict.reason


@pytest.mark.parametrize(
    ("data", "metric", "outcome", "words"),
    [
        ("zero times", "step_time", CheckOutcome.INCONCLUSIVE, "step time of 0 ms has no relative change"),
        ("negative loss", "eval_loss", CheckOutcome.PASS, "evaluation loss -0.200 -> -0.200"),
        (
            "short run",
            "step_time",
            CheckOutcome.INCONCLUSIVE,
            "15 values after warm-up, the policy asks for 20",
        ),
        ("all NaN", "step_time", CheckOutcome.INCONCLUSIVE, "step time has no finite value"),
        ("constant", "step_time", CheckOutcome.PASS, "(+0 %, limit +15 %)"),
    ],
)
def test_what_awkward_data_comes_to(smoke, make_version, data, metric, outcome, words):
    verdict = judge(smoke, make_version("a", **AWKWARD[data]), make_version("b", **AWKWARD[data]))
    assert check(verdict, metric).outcome is outcome
    assert words in check(verdict, metric).reason


def all_gates(policy):
    return replace(policy, rules=tuple(replace(rule, role=Role.GATE) for rule in policy.rules))


@pytest.mark.parametrize(
    ("metric", "before", "after", "words"),
    [
        ("eval_loss", 0.58, -0.58, "evaluation loss 0.580 -> -0.580 has changed its sign"),
        ("eval_accuracy", 0.8, 80.0, "is 80.0, others are not above 1: perhaps percent"),
        ("peak_memory", 9e8, 9e8, "is 900000000 MiB: perhaps bytes; expected MiB"),
    ],
)
def test_better_by_a_slip_of_the_pen_is_no_pass(smoke, make_version, metric, before, after, words):
    verdict = judge(
        all_gates(smoke),
        make_version("a", series_={metric: [before]}),
        make_version("b", series_={metric: [after]}),
    )
    assert check(verdict, metric).reason_code is ReasonCode.SUSPECT_DATA
    assert words in check(verdict, metric).reason


@pytest.mark.parametrize(
    ("metric", "before", "after"),
    [("eval_loss", 0.5, -0.05), ("eval_accuracy", 80.0, 81.0), ("eval_accuracy", 0.8, 1.0)],
)
def test_what_is_no_slip_passes(smoke, make_version, metric, before, after):
    """A loss that really goes below zero, percents on both sides, every answer right."""
    verdict = judge(
        all_gates(smoke),
        make_version("a", series_={metric: [before]}),
        make_version("b", series_={metric: [after]}),
    )
    assert check(verdict, metric).outcome is CheckOutcome.PASS


def test_dropped_values_and_unequal_lengths_are_said(smoke, make_version):
    holes = np.where(np.arange(100) % 10 == 9, np.nan, 0.02)
    short = judge(smoke, make_version("a"), make_version("b", series_={"step_time": holes}))
    assert "30 non-finite values left out" in check(short, "step_time").notes
    unequal = judge(smoke, make_version("a"), make_version("b", series_={"step_time": np.full(60, 0.02)}))
    assert "unequal lengths: 100 against 60 values" in check(unequal, "step_time").notes
