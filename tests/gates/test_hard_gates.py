"""Checks that need no baseline: each failure is caught, named with its step, and healthy runs pass."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from verdicts import check

from canary_mlflow.gates import CheckOutcome, Outcome, ReasonCode, Run, Series, Version, judge
from canary_mlflow.gates.hard.hard_gates import divergence
from canary_mlflow.gates.model.records import WITHIN_NOISE
from canary_mlflow.gates.model.wording import quantity

RNG = np.random.default_rng(5)


def wobbly(values, sd=0.05):
    return np.asarray(values) * np.exp(np.random.default_rng(1).normal(0, sd, len(values)))


def verdict_of(policy, *runs):
    return judge(policy, None, Version(model="canary", version="2", runs=runs))


def test_healthy_first_version_has_only_no_baseline_against_it(smoke, make_version):
    verdict = judge(smoke, None, make_version("a"))
    assert (verdict.outcome, verdict.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.NO_BASELINE)
    hard = [check(verdict, name).outcome for name in ("completed", "nonfinite", "divergence", "learned")]
    assert hard == [CheckOutcome.PASS] * 4


@pytest.mark.parametrize("failure", ["instability", "oom", "timeout"])
def test_a_crash_of_its_own_blocks_and_says_where(smoke, make_run, failure):
    crashed = make_run("b", completed=False, failure=failure, failure_reason="loss was NaN", last_step=37)
    verdict = verdict_of(smoke, make_run("a"), crashed)
    assert (verdict.outcome, verdict.reason_code) == (Outcome.BLOCK, ReasonCode.HARD_GATE)
    assert "1 of 2 runs" in verdict.reason
    assert "step 37" in verdict.reason
    assert "loss was NaN" in verdict.reason


def test_a_run_that_was_stopped_from_outside_is_no_evidence(smoke, make_run):
    stopped = make_run("b", completed=False, failure="interrupted")
    assert verdict_of(smoke, make_run("a"), stopped).candidate_runs == ("a",)
    alone = verdict_of(smoke, stopped)
    assert (alone.outcome, alone.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.MISSING_DATA)


@pytest.mark.parametrize("on_both_sides", [False, True])
def test_a_run_that_was_lost_when_it_was_stopped_counts_against_its_version(smoke, make_run, on_both_sides):
    """Who sees a loss go NaN presses Ctrl-C: the seeds that came through do not pass for it."""
    lost = make_run("c2", seed=2, completed=False, failure="interrupted", nan_steps=3)
    baseline = Version(model="m", version="1", runs=tuple(make_run(f"b{seed}", seed=seed) for seed in range(3)))
    if on_both_sides:
        baseline = replace(baseline, runs=(*baseline.runs, replace(lost, run_id="b9", series=make_run("x").series)))
    runs = (make_run("c0", seed=0), make_run("c1", seed=1))
    assert judge(smoke, baseline, Version(model="m", version="2", runs=runs)).outcome is Outcome.PASS
    verdict = judge(smoke, baseline, Version(model="m", version="2", runs=(*runs, lost)))
    if on_both_sides:
        assert verdict.outcome is Outcome.INCONCLUSIVE
        assert check(verdict, "nonfinite").reason_code is ReasonCode.FAILS_ALIKE
    else:
        assert (verdict.outcome, verdict.reason_code) == (Outcome.BLOCK, ReasonCode.HARD_GATE)
    assert "1 of 3 runs: 3 NaN steps, before it was interrupted" in check(verdict, "nonfinite").reason
    assert verdict.candidate_runs == ("c0", "c1"), "its other numbers are those of half a run"
    (left_out,) = [note for note in verdict.notes if "left out of the candidate" in note]
    assert "it was interrupted" in left_out


def test_who_stops_the_seeds_that_go_badly_does_not_pass_by_the_others(smoke, make_run):
    """Their rows show nothing that is wrong yet; a run of the same seed that finishes is an answer."""
    stopped = make_run("c2", seed=2, completed=False, failure="interrupted")
    baseline = Version(model="m", version="1", runs=tuple(make_run(f"b{seed}", seed=seed) for seed in range(3)))
    fine = [make_run(f"c{seed}", seed=seed) for seed in (0, 1, 7)]
    verdict = judge(smoke, baseline, Version(model="m", version="2", runs=(*fine, stopped)))
    assert (verdict.outcome, verdict.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.BROKEN_OFF)
    assert "1 of 4 candidate runs was stopped before the end, and no run of seed 2 has finished" in verdict.reason
    cut = {"completed": False, "failure": "interrupted"}
    more = (stopped, make_run("c4", seed=2, **cut), make_run("c5", seed=5, **cut))
    several = judge(smoke, baseline, Version(model="m", version="2", runs=(*fine, *more)))
    assert "3 of 6 candidate runs were stopped before the end, and no run of seeds 2, 5 has finished" in several.reason
    again = (*fine, stopped, make_run("c3", seed=2))
    assert judge(smoke, baseline, Version(model="m", version="2", runs=again)).outcome is Outcome.PASS


def test_a_run_that_an_exception_ended_leaves_the_others_undecided(smoke, make_run):
    """The code or the place: nobody can tell, so the seeds that came through do not pass for it."""
    baseline = Version(model="m", version="1", runs=tuple(make_run(f"b{seed}", seed=seed) for seed in range(3)))
    fine = [make_run(f"c{seed}", seed=seed) for seed in range(2)]
    broken = make_run("c2", seed=2, completed=False, failure="error", failure_reason="RuntimeError: shard 7")

    def found(*runs):
        return judge(smoke, baseline, Version(model="m", version="2", runs=runs))

    assert found(*fine).outcome is Outcome.PASS
    left = found(*fine, broken)
    assert (left.outcome, left.reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.BROKEN_OFF)
    assert "1 of 3 candidate runs failed (RuntimeError: shard 7), by the code or by the machine" in left.reason
    assert left.candidate_runs == ("c0", "c1")
    assert found(*fine, broken, make_run("again", seed=2)).outcome is Outcome.PASS, "made again"
    for silent in ({"completed": False}, {"failure": "sigkill"}):
        assert found(*fine, make_run("c2", seed=2, **silent)).reason_code is ReasonCode.BROKEN_OFF, silent
    usual = [make_run(f"u{number}", seed=0, completed=False, failure="error") for number in range(2)]
    assert found(*fine, *usual).reason_code is ReasonCode.BROKEN_OFF, "two of a seed that finished once"
    worse = found(*fine, broken, make_run("worse", seed=3, nan_steps=2))
    assert worse.outcome is Outcome.BLOCK, "what the others show still counts"
    off = replace(smoke, hard=replace(smoke.hard, completed=False))
    assert judge(off, baseline, Version(model="m", version="2", runs=(*fine, broken))).outcome is Outcome.PASS
    alone = judge(smoke, None, Version(model="m", version="1", runs=(*fine, broken)))
    assert alone.reason_code is ReasonCode.BROKEN_OFF, "no first champion either"


NOTHING = {"learned": False, "learned_reason": "loss 0.693 to 0.692"}
DIVERGED = {"series_": {"loss": [0.69] * 20 + [5.0] * 80}}
ENDED = {"completed": False, "failure": "instability", "failure_reason": "loss is NaN"}


@pytest.mark.parametrize(
    ("name", "fails"),
    [
        ("learned", NOTHING),
        ("divergence", DIVERGED),
        ("nonfinite", {"nan_steps": 2}),
        ("invariants", {"invariants": "broken: DPO's first loss is 1.4"}),
        ("watch", {"critical_held": "loss_jump: critical for 9 rows"}),
        ("completed", ENDED),
    ],
)
@pytest.mark.parametrize(
    ("worse", "failed", "blocks"),
    [((0, 1, 2), (0, 1, 2), False), ((0, 1, 2), (0, 2), False), ((1, 2), (1,), False), ((0, 1, 2), (1,), True),
     ((1,), (), True), ((1,), (0, 1, 2), False)],
)  # fmt: skip
def test_what_the_baseline_fails_as_often_blocks_neither_side(smoke, make_run, name, fails, worse, failed, blocks):
    def side(letter, failing):
        runs = (make_run(f"{letter}{seed}", seed=seed, **(fails if seed in failing else {})) for seed in range(3))
        return Version(model="m", version=letter, runs=tuple(runs))

    verdict = judge(smoke, side("b", failed), side("c", worse))
    found = check(verdict, name)
    assert found.outcome is (CheckOutcome.BLOCK if blocks else CheckOutcome.INCONCLUSIVE), found
    assert verdict.outcome is (Outcome.BLOCK if blocks else Outcome.INCONCLUSIVE)
    if not blocks:
        assert (found.reason_code, verdict.reason_code) == (ReasonCode.FAILS_ALIKE,) * 2
        means = "this canary is too short to say" if name == "learned" else "that tells nothing of the change"
        assert found.reason.endswith(f"; so did {len(failed)} of 3 of the baseline's: {means}")


def test_the_candidates_own_runs_are_no_excuse_for_it(smoke, make_run):
    runs = tuple(make_run(f"c{seed}", seed=seed, **NOTHING) for seed in range(3))
    version = Version(model="m", version="1", runs=runs)
    assert judge(smoke, version, version).outcome is Outcome.BLOCK


def test_a_run_that_is_still_running_is_no_evidence(smoke, make_run):
    alone = verdict_of(smoke, make_run("a", completed=False))
    assert (alone.reason_code, alone.candidate_runs) == (ReasonCode.BROKEN_OFF, ())
    assert "1 of 1 candidate run failed (no end was recorded)" in alone.reason


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"nan_steps": 2}, "2 NaN steps"),
        ({"nan_steps": 1, "inf_steps": 4}, "1 NaN and 4 Inf steps"),
        ({"nan_steps": 1, "series_": {"nonfinite": [0] * 11 + [2] + [0] * 88}}, "first at step 12"),
        (
            {
                "nan_steps": 1,
                "series_": {"nonfinite": [0] * 9 + [1] + [0] * 90, "grad_norm": [1.0] * 9 + [np.nan] + [1.0] * 90},
            },
            "first at step 10 (grad_norm)",
        ),
        ({"series_": {"loss": [0.5] * 30 + [np.nan] * 70}}, "non-finite steps, first at step 31 (loss)"),
        ({"series_": {"grad_norm": [1.0] * 4 + [sys.float_info.max] + [1.0] * 95}}, "step 5 (grad_norm)"),
    ],
)
def test_one_non_finite_step_blocks(smoke, make_run, fields, words):
    verdict = verdict_of(smoke, make_run("a"), make_run("b", **fields))
    assert verdict.outcome is Outcome.BLOCK
    assert words in check(verdict, "nonfinite").reason


def test_the_first_overflows_of_fp16_find_its_loss_scale(smoke, make_run):
    def verdict(norms, **fields):
        series = {"grad_norm": norms, **fields.pop("series", {})}
        return check(verdict_of(smoke, make_run("a"), make_run("b", series_=series, **fields)), "nonfinite")

    first = [np.inf] * 2 + [1.0] * 98
    assert verdict(first).outcome == Outcome.PASS
    assert "by which fp16 finds its loss scale" in verdict(first).reason
    counted = {"nonfinite": [1] * 2 + [0] * 98}
    assert verdict(first, series=counted, inf_steps=2, workload={"precision": "fp16"}).outcome == Outcome.PASS
    assert verdict(first, series=counted, inf_steps=3).outcome == Outcome.BLOCK
    assert verdict(first, workload={"precision": "bf16"}).outcome == Outcome.BLOCK
    assert verdict(first, series={"loss": [np.nan] + [0.5] * 99}).outcome == Outcome.BLOCK
    assert verdict([np.inf] * 4 + [1.0] * 96).outcome == Outcome.BLOCK
    assert verdict([np.nan] * 100).outcome == Outcome.BLOCK


def test_what_every_run_did_alike_is_said_once(smoke, make_run):
    alike = [make_run(name, nan_steps=2) for name in "abc"]
    assert check(verdict_of(smoke, *alike), "nonfinite").reason == "3 of 3 runs: 2 NaN steps"
    mixed = verdict_of(smoke, *alike, make_run("d", nan_steps=7))
    assert check(mixed, "nonfinite").reason == "4 of 4 runs: 2 NaN steps, 7 NaN steps"


def test_zero_has_no_sign():
    assert (quantity(-0.0, ""), quantity(-0.0, "s"), quantity(-0.5, "")) == ("0", "0 ms", "-0.500")


def test_a_metric_that_may_be_undefined_does_not_block(smoke, make_run):
    run = make_run("a", series_={"explained_variance": [np.nan] * 100})
    assert check(verdict_of(smoke, run), "nonfinite").outcome is CheckOutcome.PASS


def test_learning_nothing_blocks_and_not_knowing_does_not(smoke, make_run):
    blocked = verdict_of(smoke, make_run("a", learned=False, learned_reason="no parameter moved"))
    assert blocked.outcome is Outcome.BLOCK
    assert "no parameter moved" in blocked.reason
    assert check(verdict_of(smoke, make_run("a", learned=None)), "learned").outcome is CheckOutcome.NOT_JUDGED
    halved = make_run("a", learned=False, learned_reason=f"loss {WITHIN_NOISE} from 4.1 to 2.05")
    said = check(verdict_of(smoke, halved), "learned").reason
    assert "no learning beyond its noise (loss improved by no more than its noise from 4.1 to 2.05)" in said
    assert "nothing" not in said


def test_learning_that_noise_hides_blocks_only_where_the_baseline_shows_it_clearly(smoke, make_run):
    """An unchanged script whose loss barely falls shows it in one session and not in the next."""

    def run(name, good):
        return make_run(name, learned=good, learned_reason="" if good else f"loss {WITHIN_NOISE} from 4.1 to 3.9")

    def verdict(theirs, ours):
        before, now = (
            Version(model="m", version=side, runs=tuple(run(f"{side}{at}", good) for at, good in enumerate(goods)))
            for side, goods in (("1", theirs), ("2", ours))
        )
        return check(judge(smoke, before if theirs else None, now), "learned")

    assert verdict([], [True, False, False]).outcome is CheckOutcome.INCONCLUSIVE
    assert verdict([], [True, False, False]).reason.endswith(": this canary is too short to say")
    assert verdict([True] * 3, [True, False, False]).outcome is CheckOutcome.INCONCLUSIVE
    assert verdict([True] * 3, [False] * 3).outcome is CheckOutcome.BLOCK


HEALTHY = {
    "falling": np.linspace(6, 2, 100),
    "flat": np.full(100, 0.69),
    "near zero": np.geomspace(3, 1e-4, 100),
    "one spike": np.where(np.arange(100) == 60, 30.0, 2.0),
    "zero": np.zeros(100),
    "signed, one spike at its end": np.r_[np.linspace(0.1, -0.2, 99), 5.0],
}
DIVERGED = {
    "end above beginning": np.linspace(2, 4, 100),
    "blow-up that half recovers": np.r_[np.linspace(3, 0.4, 50), np.linspace(8, 1.9, 50)],
    "in its last steps": np.r_[np.linspace(3, 0.4, 95), np.full(5, 2.5)],
}


@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_healthy_losses_do_not_diverge(smoke, make_run, name):
    run = make_run("a", series_={"loss": wobbly(HEALTHY[name])})
    assert check(verdict_of(smoke, run), "divergence").outcome is CheckOutcome.PASS


@pytest.mark.parametrize("name", sorted(DIVERGED))
def test_diverging_losses_block(smoke, make_run, name):
    loss = wobbly(DIVERGED[name])
    verdict = verdict_of(smoke, make_run("a", series_={"loss": loss, "eval_loss": loss[-1:]}))
    assert verdict.outcome is Outcome.BLOCK
    assert "loss" in check(verdict, "divergence").reason


@pytest.mark.parametrize(
    ("step", "held_out", "diverged"),
    [(100, 0.9, True), (100, 0.56, False), (100, math.nan, True), (50, 0.56, True), (100, 0.1, True)],  # another scale
)
def test_hard_batches_at_the_end_are_no_divergence(step, held_out, diverged):
    """Hundredths of the loss of an unchanged run of the embedded DPO canary, whose held-out loss was 0.56 as ever."""
    loss = np.array(
        [69, 69, 69, 69, 67, 67, 70, 72, 65, 66, 67, 65, 67, 54, 46, 63, 57, 52, 63, 85, 62, 38, 59, 76, 56, 42, 44,
         52, 58, 42, 52, 64, 47, 39, 21, 93, 56, 36, 59, 26, 67, 57, 40, 65, 75, 52, 51, 88, 39, 43, 27, 69, 100, 106,
         46, 39, 30, 35, 34, 31, 28, 77, 36, 92, 49, 48, 77, 15, 71, 49, 31, 34, 43, 19, 114, 35, 34, 52, 49, 38, 26,
         27, 37, 67, 28, 44, 28, 19, 15, 37, 140, 44, 33, 93, 81, 73, 102, 84, 164, 115]
    ) / 100  # fmt: skip
    evaluated = Series.from_pairs("eval_loss", [(step, held_out)])
    assert (
        bool(divergence(replace(loss_run(loss), series=loss_run(loss).series | {"eval_loss": evaluated}))) is diverged
    )


def test_too_short_a_series_is_not_judged(smoke, make_run):
    for values in (3, 19):
        verdict = verdict_of(smoke, make_run("a", series_={"loss": np.geomspace(1, 9, values)}))
        assert "divergence" not in {item.metric for item in verdict.checks}
    verdict = verdict_of(smoke, make_run("a", series_={"loss": np.geomspace(1, 9, 20)}))
    assert check(verdict, "divergence").outcome is CheckOutcome.BLOCK


def test_a_kl_makes_no_reinforcement_learning_of_kto(make_run):
    rising = {"loss": np.linspace(0.6, 6.0, 100), "kl": np.full(100, 0.1)}
    assert divergence(make_run("a", series_=rising, workload={"algo": "kto"}))
    assert divergence(make_run("a", series_=rising, workload={"algo": "grpo"})) is None, "its loss rises in healthy RL"


def loss_run(loss):
    return Run(run_id="r", seed=None, series={"loss": Series.from_pairs("loss", enumerate(loss))})


@pytest.mark.parametrize("steps", [40, 100])
def test_the_noise_of_small_batches_is_no_blow_up(steps):
    """Losses like those of the embedded DPO canary: falling from ln 2, halved or doubled from step to step."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        trend = np.linspace(0.69, 0.42, steps)
        loss = trend * np.exp(rng.normal(0, 0.45, steps) - 0.1)
        assert divergence(loss_run(loss)) == ""
        # One that goes from there to three times its start, and stays, is one.
        loss[steps // 2 :] = 2.1 * np.exp(rng.normal(0, 0.3, steps - steps // 2))
        assert divergence(loss_run(loss))


@pytest.mark.parametrize(("steps", "tripled"), [(40, 0.2), (100, 0.3), (300, 0.45)])
def test_a_loss_that_wobbles_by_half_does_not_count_as_diverged(steps, tripled):
    """Of 400 runs whose loss wobbles by 60 % from step to step: unchanged ones, and ones that end at three times their
    start."""
    rng = np.random.default_rng(5)

    def share(factor: float) -> float:
        rise = np.where(np.arange(steps) < steps // 2, 1.0, factor)
        losses = np.linspace(0.69, 0.6, steps) * rise * np.exp(rng.normal(0, 0.6, (400, steps)))
        return float(np.mean([bool(divergence(loss_run(loss))) for loss in losses]))

    assert share(1.0) == 0
    assert share(3.0) >= tripled


def test_what_is_known_of_some_runs_is_said_of_these_alone(smoke, make_run):
    told = make_run("a", learned=True, invariants="ok", critical_held="")
    silent = [make_run(name, learned=None, invariants="", critical_held=None) for name in "bc"]
    verdict = verdict_of(smoke, told, *silent)
    for name in ("learned", "invariants", "watch"):
        assert check(verdict, name).reason.endswith("in 1 of 3 runs; the others do not tell")
    assert check(verdict_of(smoke, told), "learned").reason == "learned in all 1 runs"


@pytest.mark.parametrize("name", ["learned", "invariants", "watch"])
def test_what_all_of_the_baselines_runs_tell_the_candidates_do_not_leave_out(smoke, make_run, name):
    """A broken invariant may be the only sign of a wrong reference model; a run that checks none does not pass."""
    told = {"learned": True, "invariants": "ok", "critical_held": ""}
    silent = (
        told | {"learned": {"learned": None}, "invariants": {"invariants": ""}, "watch": {"critical_held": None}}[name]
    )

    def side(version, *kinds):
        runs = tuple(make_run(f"{version}{at}", seed=at, **fields) for at, fields in enumerate(kinds))
        return Version(model="m", version=version, runs=runs)

    before = side("a", told, told, told)
    for now in (side("b", silent, silent, silent), side("b", told, told, silent)):
        verdict = judge(smoke, before, now)
        assert (verdict.outcome, check(verdict, name).reason_code) == (Outcome.INCONCLUSIVE, ReasonCode.MISSING_DATA)
    assert verdict.reason == f"1 of 3 runs do not tell ({name}), all of the baseline's do."
    assert judge(smoke, side("a", told, told, silent), now).outcome is Outcome.PASS


def test_an_end_that_nobody_knows_is_no_evidence(smoke, make_run):
    verdict = verdict_of(smoke, make_run("a"), make_run("b", failure="sigkill"))
    assert verdict.candidate_runs == ("a",)
    assert "left out of the candidate: run b: it ended in a way that is not known here (sigkill)" in verdict.notes
