"""A verdict survives JSON, and nothing in it is NaN or infinite."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from canary_mlflow.gates import judge, verdict_from_dict, verdict_to_dict


@pytest.mark.parametrize(
    "change", [{}, {"factor": {"step_time": 1.5}}, {"nan_steps": 1}, {"workload": {"algo": "sft"}}]
)
def test_round_trip_through_json(smoke, make_version, change):
    baseline = make_version("a", environment={"torch": "2.12"})
    verdict = judge(smoke, baseline, make_version("b", environment={"torch": "2.13"}, **change))
    text = json.dumps(verdict_to_dict(verdict), allow_nan=False)
    assert verdict_from_dict(json.loads(text)) == verdict


def test_numbers_that_are_none_become_null(smoke, make_version):
    verdict = judge(smoke, make_version("a"), make_version("b"))
    check = verdict.checks[-1]
    odd = replace(verdict, checks=(replace(check, evidence=replace(check.evidence, p_harm=float("nan"))),))
    assert verdict_to_dict(odd)["checks"][0]["evidence"]["p_harm"] is None


def test_keys_of_a_newer_version_are_left_out(smoke, make_version):
    plain = verdict_to_dict(judge(smoke, None, make_version("a")))
    assert verdict_from_dict({**plain, "newer": 1}).model == "canary"


def test_the_policy_in_the_verdict_is_the_one_that_was_applied(smoke, make_version):
    cpu = {"hardware": {"backend": "cpu"}}
    verdict = judge(smoke, make_version("a", **cpu), make_version("b", **cpu))
    assert verdict.policy["rules"]["step_time"]["role"] == "advisory"
    assert verdict.policy["overlays"] == {}
