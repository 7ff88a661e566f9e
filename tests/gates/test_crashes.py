"""Exceptions inside the training: held against the code if they recur and the baseline's code runs through."""

from __future__ import annotations

from dataclasses import replace

import pytest
from verdicts import check

from canary_mlflow.gates import Outcome, ReasonCode, Version, judge
from canary_mlflow.gates.hard.crashes import to_run_beside
from canary_mlflow.gates.model.records import Raised
from canary_mlflow.gates.top_up import in_vain, to_run_again

APPLY = Raised(kind="AttributeError", place="trl/trainer/utils.py:1638 in apply")
SENTENCE = "AttributeError at trl/trainer/utils.py:1638 in apply ended 2 of 2 runs of seed 0"


@pytest.fixture
def sides(make_run):
    """A candidate with a run that broke off (and others, `again`), and its champion (with runs made `beside`)."""

    def broken(name, raised=APPLY, **fields):
        said = {"completed": False, "failure": "error", "failure_reason": f"{raised.kind}: x", "last_step": 0}
        return make_run(name, seed=0, raised=raised, **{**said, **fields})

    def found(*again, beside=(), baseline=True, at_hand=False):
        stored = tuple(make_run(f"b{seed}", seed=seed) for seed in range(3))
        champion = Version(model="m", version="1", runs=stored, fresh=tuple(beside), beside=at_hand)
        candidate = Version(model="m", version=None, runs=(broken("c0"), *again))
        return candidate, champion if baseline else None

    found.broken = broken
    return found


def test_an_exception_that_comes_again_blocks_where_the_baselines_code_goes_through(smoke, sides, make_run):
    candidate, champion = sides(sides.broken("again"), beside=[make_run("f0", seed=0)])
    verdict = judge(smoke, champion, candidate)
    assert (verdict.outcome, verdict.reason_code) == (Outcome.BLOCK, ReasonCode.CRASH)
    said = f"{SENTENCE}; the baseline's run of that seed, made beside on this host, finished"
    assert check(verdict, "completed").reason == said
    assert said in verdict.reason
    assert in_vain(smoke, champion, candidate)


def test_the_baseline_of_two_revisions_stands_beside_by_itself(smoke, sides):
    assert judge(smoke, *reversed(sides(sides.broken("again"), at_hand=True))).reason_code is ReasonCode.CRASH
    assert judge(smoke, *reversed(sides(sides.broken("again")))).reason_code is ReasonCode.BROKEN_OFF


def test_what_speaks_for_neither_side_is_open_and_says_what_is_missing(smoke, sides, make_run):
    other = Raised(kind="AttributeError", place="trl/trainer/utils.py:99 in apply")
    disk = Raised(kind="FileNotFoundError", place="datasets/load.py:9 in load", outside="it is an OSError")
    fine = make_run("f0", seed=0)
    cases = {
        "it was not run again": sides(beside=[fine]),
        "ended 1 of 2 runs of seed 0; it did not come again each time": sides(make_run("again", seed=0), beside=[fine]),
        "utils.py:99 in apply ended 1 of 2": sides(sides.broken("again", other), beside=[fine]),
        f"{SENTENCE}; there is no champion to compare with": sides(sides.broken("again"), baseline=False),
        f"{SENTENCE}; no run of the baseline's code was made beside it": sides(sides.broken("again")),
        "made beside it ": sides(sides.broken("again"), beside=[make_run("f1", seed=1)]),
        "the baseline broke off beside it too (AttributeError: x)": sides(
            sides.broken("again"), beside=[sides.broken("f0")]
        ),
        "had another hardware (backend, device)": sides(
            sides.broken("again"), beside=[make_run("f0", seed=0, hardware={"backend": "cpu", "device": "EPYC"})]
        ),
        "had another workload (max_steps)": sides(
            sides.broken("again"), beside=[make_run("f0", seed=0, workload={"algo": "dpo", "max_steps": "7"})]
        ),
        "had another host (host)": sides(
            sides.broken("again", environment={"host": "one"}), beside=[replace(fine, environment={"host": "two"})]
        ),
    }
    for said, (candidate, champion) in cases.items():
        verdict = judge(smoke, champion, candidate)
        assert (verdict.outcome, verdict.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.BROKEN_OFF), said
        assert said.strip() in check(verdict, "completed").reason
    runs = tuple(sides.broken(name, disk) for name in ("c0", "again"))
    verdict = judge(smoke, sides(beside=[fine])[1], Version(model="m", version=None, runs=runs))
    assert (verdict.outcome, verdict.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.BROKEN_OFF)
    assert "which is no evidence: it is an OSError" in verdict.reason


def test_what_is_made_next(smoke, sides, make_run):
    once, champion = sides()
    assert (list(to_run_again(smoke, champion.runs, once)), to_run_beside(once.runs, champion)) == ([0], {})
    twice, champion = sides(sides.broken("again"))
    assert to_run_again(smoke, champion.runs, twice) == {}, "a third would tell nothing more"
    assert to_run_beside(twice.runs, champion) == {0: APPLY}
    _, beside = sides(beside=[sides.broken("f0")])
    assert to_run_beside(twice.runs, beside) == {}, "it was made, and broke off as well"
