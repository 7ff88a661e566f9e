"""The verdict on two versions: three outcomes, and every reason for the third."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from verdicts import check

from canary_mlflow.gates import CheckOutcome, Outcome, ReasonCode, Role, Version, judge
from canary_mlflow.policies import load_policy


def answer(verdict):
    return verdict.outcome, verdict.reason_code


def test_unchanged_code_passes(smoke, make_version):
    verdict = judge(smoke, make_version("a"), make_version("b"))
    assert answer(verdict) == (Outcome.PASS, ReasonCode.PASS)
    gates = [item.metric for item in verdict.checks if item.role is Role.GATE]
    assert gates == ["step_time", "peak_memory", "eval_loss"]
    assert verdict.baseline_runs == ("a0", "a1", "a2")
    assert verdict.candidate_runs == ("b0", "b1", "b2")
    assert verdict.more_runs is None


@pytest.mark.parametrize("metric", ["step_time", "peak_memory", "eval_loss"])
def test_a_regression_blocks_and_says_what(smoke, make_version, metric):
    verdict = judge(smoke, make_version("a"), make_version("b", factor={metric: 1.5}))
    assert answer(verdict) == (Outcome.BLOCK, ReasonCode.REGRESSION)
    assert check(verdict, metric).outcome is CheckOutcome.BLOCK


def test_the_reason_is_a_sentence_with_numbers_and_units(smoke, make_version):
    verdict = judge(smoke, make_version("a"), make_version("b", factor={"step_time": 1.25}))
    reason = check(verdict, "step_time").reason
    assert reason.startswith("step time 20.")
    assert " ms → 2" in reason
    assert "limit +15 %), worse with p" in reason
    assert verdict.reason.startswith("Step time")
    assert verdict.reason.endswith(".")


def test_an_improvement_passes(smoke, make_version):
    faster = make_version("b", factor={"step_time": 0.5, "peak_memory": 0.5, "eval_loss": 0.5})
    assert judge(smoke, make_version("a"), faster).outcome is Outcome.PASS


def test_a_worse_advisory_metric_warns_and_passes(smoke, make_version):
    verdict = judge(smoke, make_version("a"), make_version("b", factor={"grad_norm": 3.0}))
    assert verdict.outcome is Outcome.PASS
    assert check(verdict, "grad_norm").outcome is CheckOutcome.WARN
    halved = judge(smoke, make_version("a"), make_version("b", factor={"grad_norm": 1 / 3}))
    assert check(halved, "grad_norm").outcome is CheckOutcome.WARN


def test_on_a_cpu_clocks_advise_and_cost_decides(smoke, make_version):
    cpu = {"hardware": {"backend": "cpu"}}
    wall = judge(smoke, make_version("a", **cpu), make_version("b", factor={"step_time": 2.0}, **cpu))
    assert wall.outcome is Outcome.PASS
    assert check(wall, "step_time").outcome is CheckOutcome.WARN
    busy = judge(smoke, make_version("a", **cpu), make_version("b", factor={"step_cost": 2.0}, **cpu))
    assert busy.outcome is Outcome.BLOCK


def test_ppo_is_judged_by_iterations_and_reward(smoke, make_run):
    def version(name, iteration=0.06, reward=4.0):
        rng = np.random.default_rng(len(name))
        own = {
            "iteration_time": iteration * np.exp(rng.normal(0, 0.02, 50)),
            "eval_reward": [reward],
            "eval_loss": None,
        }
        own |= {"kl": np.full(50, 6.0), "reward_mean": np.linspace(1, 4, 50)}
        runs = (make_run(f"{name}{i}", workload={"algo": "ppo"}, series_=own) for i in range(3))
        return Version(model="canary", version=name, runs=tuple(runs))

    assert judge(smoke, version("a"), version("bb")).outcome is Outcome.PASS
    assert (
        "iteration_time" in judge(smoke, version("a"), version("bb", iteration=0.09)).reason.replace(" ", "_").lower()
    )
    worse = judge(smoke, version("a"), version("bb", reward=1.0))
    assert answer(worse) == (Outcome.BLOCK, ReasonCode.REGRESSION)
    assert check(worse, "eval_reward").evidence.change == pytest.approx(-3.0)
    assert check(worse, "eval_reward").evidence.margin == pytest.approx(-0.75), "a quarter of 1 → 4"


# --- why neither


def test_without_a_baseline(smoke, make_version):
    assert answer(judge(smoke, None, make_version("b"))) == (Outcome.INCONCLUSIVE, ReasonCode.NO_BASELINE)


def test_one_run_a_side_never_blocks_by_statistics(smoke, make_version):
    verdict = judge(smoke, make_version("a"), make_version("b", count=1, factor={"step_time": 3.0}))
    assert answer(verdict) == (Outcome.INCONCLUSIVE, ReasonCode.TOO_FEW_RUNS)
    assert verdict.more_runs is not None
    assert verdict.more_runs >= 2
    single = judge(smoke, make_version("a", count=1), make_version("b", factor={"step_time": 3.0}))
    assert single.outcome is Outcome.INCONCLUSIVE


def test_one_run_against_one_passes_on_the_prior_and_says_so(smoke, make_version):
    verdict = judge(smoke, make_version("a", count=1), make_version("b", count=1))
    assert "evidence: prior-based" in check(verdict, "step_time").notes[0]
    assert [note for note in verdict.notes if "prior-based" in note and "step_time" in note]


def noisy(make_run, name, sd, count=3):
    levels = np.exp(sd * np.array([-1.0, 0.0, 1.0, -0.5, 0.5, 0.2])[:count])
    runs = [make_run(f"{name}{i}", factor={"step_time": level}) for i, level in enumerate(levels)]
    return Version(model="canary", version=name, runs=tuple(runs))


def test_too_noisy_when_no_number_of_runs_would_decide(smoke, make_run):
    verdict = judge(smoke, noisy(make_run, "a", 0.5), noisy(make_run, "b", 0.5))
    assert answer(verdict) == (Outcome.INCONCLUSIVE, ReasonCode.TOO_NOISY)
    assert verdict.more_runs is None


def test_too_few_runs_when_more_would_decide(smoke, make_run):
    verdict = judge(smoke, noisy(make_run, "a", 0.12), noisy(make_run, "b", 0.12))
    assert answer(verdict) == (Outcome.INCONCLUSIVE, ReasonCode.TOO_FEW_RUNS)
    needed = check(verdict, "step_time").more_runs
    assert 3 < needed <= verdict.more_runs <= 20
    assert f"{needed} runs per side would" in verdict.reason


def test_near_the_margin(smoke, make_version):
    verdict = judge(smoke, make_version("a"), make_version("b", factor={"step_time": 1.14}))
    assert answer(verdict) == (Outcome.INCONCLUSIVE, ReasonCode.NEAR_MARGIN)


@pytest.mark.parametrize("kind", ["workload", "hardware"])
def test_other_work_or_hardware_is_not_comparable_and_names_the_keys(smoke, make_version, kind):
    facts = {
        "workload": {"algo": "dpo", "max_steps": "100"},
        "hardware": {"backend": "cuda", "device": "H200"},
    }[kind]
    changed = {**facts, list(facts)[1]: "other", "extra": "x"}
    verdict = judge(smoke, make_version("a"), make_version("b", **{kind: changed}))
    assert answer(verdict) == (Outcome.INCONCLUSIVE, ReasonCode.NOT_COMPARABLE)
    assert f"{list(facts)[1]}: {list(facts.values())[1]} → other" in verdict.reason
    assert "extra: absent → x" in verdict.reason
    assert not [item for item in verdict.checks if item.role is Role.GATE]


def test_runs_of_one_side_must_agree_too(smoke, make_run, make_version):
    mixed = (make_run("b0"), make_run("b1", hardware={"backend": "cuda", "device": "A100"}))
    verdict = judge(smoke, make_version("a"), Version(model="canary", version="b", runs=mixed))
    assert verdict.reason_code is ReasonCode.NOT_COMPARABLE
    assert "A100 | H200" in verdict.reason


@pytest.mark.parametrize(
    ("known", "counted"),
    [("300 rows, 5b457a3c", "300 rows"), ("a: 9 rows, 5b45; b: 8 rows, 1f", "a: 9 rows, 5b45; b: 8 rows")],
)
def test_rows_that_an_older_baseline_only_counted_may_be_the_same(smoke, make_version, known, counted):
    work = {"algo": "sft", "train_data": known}
    verdict = judge(smoke, make_version("a", workload=work | {"train_data": counted}), make_version("b", workload=work))
    assert verdict.outcome is Outcome.PASS
    assert verdict.differences == ()
    assert any("train_data: the baseline says how many rows, not which" in note for note in verdict.notes)
    silent = judge(smoke, make_version("a", workload=work), make_version("b", workload=work | {"train_data": counted}))
    assert silent.reason_code is ReasonCode.NOT_COMPARABLE, "a candidate that says less than the baseline may hide it"
    for other in (known.replace("5b45", "0000"), counted.replace("rows", "0 rows"), "9 rows, 5b45"):
        verdict = judge(
            smoke, make_version("a", workload=work | {"train_data": other}), make_version("b", workload=work)
        )
        assert verdict.reason_code is ReasonCode.NOT_COMPARABLE


def test_a_hard_failure_blocks_even_when_not_comparable(smoke, make_version):
    verdict = judge(smoke, make_version("a"), make_version("b", nan_steps=1, hardware={"backend": "cpu"}))
    assert answer(verdict) == (Outcome.BLOCK, ReasonCode.HARD_GATE)


GIT = {"git_dirty": "false"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("a z", "b a z", "bbbbbbb (1 commit on)"),
        ("b a z", "z", "zzzzzzz (2 commits back)"),
        ("b z", "c d z", "ccccccc (2 commits on, 1 commit back)"),
        ("b", "c", "ccccccc"),
    ],
)
def test_commits_between_are_counted_where_their_history_tells(smoke, make_version, old, new, said):
    left, right = (GIT | {"git_commit": log[0] * 40, "git_log": log} for log in (old, new))
    verdict = judge(smoke, make_version("a", environment=left), make_version("b", environment=right))
    assert [(one.key, one.candidate) for one in verdict.differences] == [("commit", said)]


def test_changes_that_were_not_committed_differ_by_their_digest(smoke, make_version):
    commit = {"git_commit": "a" * 40}
    dirty = [commit | {"git_dirty": "true", "git_diff": digest * 16} for digest in "12"]
    sides = [
        make_version("a", environment=commit | GIT),
        *(make_version(name, environment=one) for name, one in zip("bc", dirty, strict=True)),
    ]
    found = judge(smoke, sides[0], sides[1]).differences
    assert [(one.key, one.baseline, one.candidate) for one in found] == [
        ("uncommitted changes", "none", "some (1111111)")
    ]
    assert [one.candidate for one in judge(smoke, sides[1], sides[2]).differences] == ["some (2222222)"]
    same = make_version("d", environment=dirty[0])
    assert judge(smoke, sides[1], same).differences == ()


def test_the_configuration_differs_by_what_trains_alone(smoke, make_version):
    """Neither seeds nor places, nor what only says where a canary is recorded; a setting of one side alone comes last.
    A script's own `model_name` trains."""
    old = {"learning_rate": "0.002", "seed": "1", "output_dir": "a", "tracking.uri": "x", "callbacks": "<C at 0x7f01>"}
    new = {"learning_rate": "0.02", "seed": "2", "output_dir": "b", "tracking.uri": "y", "callbacks": "<C at 0x7f02>"}
    own = [make_version(name, configuration={"model_name": name}) for name in "ab"]
    assert [one.key for one in judge(smoke, *own).differences] == ["model_name"]
    old, new = ({"tier.name": "smoke", "model_name": side["tracking.uri"], **side} for side in (old, new))
    verdict = judge(smoke, make_version("a", configuration=old), make_version("b", configuration=new | {"beta": "1"}))
    assert [(one.key, one.baseline, one.candidate) for one in verdict.differences] == [
        ("learning_rate", "0.002", "0.02"),
        ("beta", "absent", "1"),
    ]
    assert verdict.compared == ("configuration", "hardware", "workload")
    one_sided = judge(smoke, make_version("a"), make_version("b", configuration=new))
    assert (one_sided.differences, one_sided.compared) == ((), ("hardware", "workload"))


def test_clear_harm_is_said_by_its_interval_with_what_is_missing(smoke, make_run, make_version):
    """Three runs that differ by much among themselves, all of them far beyond the limit: clear harm is not unclear."""
    losses = [1.1, 2.4, 3.2]
    wild = tuple(make_run(f"b{n}", series_={"eval_loss": [loss]}) for n, loss in enumerate(losses))
    found = check(judge(smoke, make_version("a"), Version(model="m", version="b", runs=wild)), "eval_loss")
    assert (found.outcome, found.reason_code) == (CheckOutcome.BLOCK, ReasonCode.REGRESSION)
    few = tuple(make_run(f"c{n}", series_={"eval_loss": [loss]}) for n, loss in enumerate(losses[:1]))
    found = check(judge(smoke, make_version("a"), Version(model="m", version="c", runs=few)), "eval_loss")
    assert (found.outcome, found.reason_code) == (CheckOutcome.INCONCLUSIVE, ReasonCode.TOO_FEW_RUNS)
    assert "harm beyond the limit over its whole range [+" in found.reason


def test_environment_differences_are_listed_and_not_judged(smoke, make_version):
    old, new = {"torch": "2.12", "python": "3.11"}, {"torch": "2.13", "python": "3.11"}
    verdict = judge(smoke, make_version("a", environment=old), make_version("b", environment=new))
    assert verdict.outcome is Outcome.PASS
    assert [(d.key, d.baseline, d.candidate) for d in verdict.differences] == [("torch", "2.12", "2.13")]


def test_a_metric_that_means_something_else_in_a_later_version_of_the_callback_is_named_and_not_compared(
    smoke, make_version
):
    later = {"environment": {"canary_mlflow.peak_memory": "counts an evaluation after the training"}}
    more = {"factor": {"peak_memory": 1.6}}
    upgraded = judge(smoke, make_version("a"), make_version("b", **later, **more))
    assert upgraded.outcome is Outcome.PASS, "no code changed but that which measures"
    memory = check(upgraded, "peak_memory")
    assert memory.outcome is CheckOutcome.NOT_JUDGED
    assert "counts an evaluation after the training in some of these runs and not in others" in memory.reason
    assert judge(smoke, make_version("a", **later), make_version("b", **later, **more)).outcome is Outcome.BLOCK
    untold = judge(smoke, make_version("a", **later), make_version("b", **more))
    assert untold.outcome is Outcome.INCONCLUSIVE, "a candidate does not hide its memory by not saying what it counts"
    slower = {"factor": {"step_time": 1.6}}
    assert judge(smoke, make_version("a"), make_version("b", **later, **slower)).outcome is Outcome.BLOCK
    for metric, baseline in (("peak_memory", later), ("eval_loss", {})):
        claimed = {"environment": {f"canary_mlflow.{metric}": "counts otherwise"}, "factor": {metric: 1.6}}
        verdict = judge(smoke, make_version("a", **baseline), make_version("b", **claimed))
        assert verdict.outcome is Outcome.INCONCLUSIVE, "nor by saying that it counts something else"


@pytest.mark.parametrize("side", ["baseline", "candidate", "both"])
def test_a_metric_that_must_be_there_and_is_not(smoke, make_version, side):
    without = {"series_": {"step_time": None}}
    verdict = judge(
        smoke,
        make_version("a", **(without if side != "candidate" else {})),
        make_version("b", **(without if side != "baseline" else {})),
    )
    assert answer(verdict) == (Outcome.INCONCLUSIVE, ReasonCode.MISSING_DATA)
    assert "step time was not recorded" in verdict.reason.lower()


def test_a_gate_metric_that_vanished_from_the_candidate_does_not_pass(smoke, make_version):
    verdict = judge(smoke, make_version("a"), make_version("b", series_={"peak_memory": None}))
    assert answer(verdict) == (Outcome.INCONCLUSIVE, ReasonCode.MISSING_DATA)
    newly_recorded = judge(smoke, make_version("a", series_={"peak_memory": None}), make_version("b"))
    assert newly_recorded.outcome is Outcome.PASS


def test_a_guard_that_vanished_from_the_candidate_does_not_pass(smoke, make_version):
    """An evaluation loss halved by scaling, and the accuracy that would tell is no longer recorded."""
    accuracy = {"series_": {"eval_accuracy": np.array([0.8])}}
    verdict = judge(smoke, make_version("a", **accuracy), make_version("b", factor={"eval_loss": 0.6}))
    assert answer(verdict) == (Outcome.INCONCLUSIVE, ReasonCode.MISSING_DATA)
    assert "evaluation accuracy was not recorded" in verdict.reason.lower()
    assert judge(smoke, make_version("a"), make_version("b", **accuracy)).outcome is Outcome.PASS


def test_fewer_tokens_in_the_same_time_block(smoke, make_version):
    verdict = judge(smoke, make_version("a"), make_version("b", factor={"tokens": 0.7}))
    assert answer(verdict) == (Outcome.BLOCK, ReasonCode.REGRESSION)
    assert check(verdict, "tokens_per_second").evidence.change == pytest.approx(-0.3, abs=0.03)
    assert check(verdict, "tokens_per_second").evidence.margin == pytest.approx(-0.12)


@pytest.mark.parametrize(
    ("capacity", "more", "margin", "outcome"),
    [
        ("", 1.01, 0.2, "PASS"),  # nobody knows what the device can hold
        ("81920", 1.01, 0.2, "PASS"),
        ("43000", 1.01, 0.0249, "PASS"),  # half of the 2040 MiB that are left
        ("43000", 1.045, 0.0249, "BLOCK"),
        ("81920", 1.3, 0.2, "BLOCK"),
    ],
)
@pytest.mark.parametrize("tier", ["smoke", "perf", "nightly"])
def test_the_memory_limit_follows_what_the_device_has_left(tier, make_run, capacity, more, margin, outcome):
    """0.5 % between runs is what an allocator makes of 40 GiB."""
    environment = {"gpu_memory": capacity} if capacity else {}

    def side(name, count, size):
        rng = np.random.default_rng(list(name.encode()))
        peaks = 40_960 * size * np.exp(0.001 * rng.standard_normal(count))
        runs = [
            make_run(f"{name}{i}", series_={"peak_memory": [peak]}, environment=environment)
            for i, peak in enumerate(peaks)
        ]
        return Version(model="m", version=name, runs=tuple(runs))

    found = check(judge(load_policy(tier), side("a", 5, 1.0), side("b", 3, more)), "peak_memory")
    assert found.evidence.margin == pytest.approx(margin, abs=0.002)
    assert found.outcome == outcome


# --- pairs


def test_the_same_seeds_pair_up_and_bit_equal_series_need_no_test(smoke, make_run, make_version):
    baseline = make_version("a", seeds=[1, 2, 3])
    twins = tuple(
        make_run(
            f"b{run.seed}",
            run.seed,
            series_={k: s.values for k, s in run.series.items() if k in ("loss", "eval_loss")},
        )
        for run in baseline.runs
    )
    verdict = judge(smoke, baseline, Version(model="canary", version="b", runs=twins))
    assert verdict.outcome is Outcome.PASS
    assert check(verdict, "eval_loss").evidence.identical
    assert "bit-identical in all 3 seeds" in check(verdict, "loss").reason
    assert not check(verdict, "step_time").evidence.identical


def test_bit_equal_times_are_no_proof(smoke, make_run):
    runs = [[make_run(f"{side}{i}", i, series_={"step_time": np.full(100, 0.02)}) for i in range(3)] for side in "ab"]
    versions = [Version(model="canary", version=str(i), runs=tuple(side)) for i, side in enumerate(runs)]
    assert not check(judge(smoke, *versions), "step_time").evidence.identical


def test_pairing_finds_what_the_spread_between_seeds_hides(smoke, make_run):
    def version(name, worse, seeds):
        spread = {1: 0.4, 2: 0.58, 3: 0.9, 4: 1.3}
        runs = (make_run(f"{name}{s}", s, series_={"eval_loss": [spread[s] * worse]}) for s in seeds)
        return Version(model="canary", version=name, runs=tuple(runs))

    paired = judge(smoke, version("a", 1.0, [1, 2, 3, 4]), version("b", 1.2, [1, 2, 3, 4]))
    assert paired.outcome is Outcome.BLOCK
    unpaired = judge(smoke, version("a", 1.0, [1, 2, 3]), version("b", 1.2, [2, 3, 4]))
    assert unpaired.outcome is Outcome.INCONCLUSIVE


# --- awkward data


def test_what_the_runs_say_of_their_data_is_said_once(smoke, make_version):
    said = [
        replace(side, runs=tuple(replace(run, note="8 of 16 held-out rows are training rows too") for run in side.runs))
        for side in (make_version("a"), make_version("b"))
    ]
    assert judge(smoke, *said).notes.count("8 of 16 held-out rows are training rows too") == 1


def test_the_same_run_given_twice_counts_once(smoke, make_version):
    baseline, candidate = make_version("a"), make_version("b", factor={"step_time": 1.2})
    doubled = Version(model="canary", version="b", runs=candidate.runs * 2)
    verdict = judge(smoke, baseline, doubled)
    assert replace(verdict, notes=()) == judge(smoke, baseline, candidate)
    assert "left out of the candidate: run b0: it was given 2 times, it counts once" in verdict.notes


def test_a_version_against_its_own_runs_is_no_comparison(smoke, make_version):
    version = make_version("a")
    verdict = judge(smoke, version, version)
    assert answer(verdict) == (Outcome.INCONCLUSIVE, ReasonCode.MISSING_DATA)
    assert "also a run of the candidate" in verdict.reason


def test_a_baseline_run_that_learned_nothing_or_crashed_is_no_standard(smoke, make_run, make_version):
    bad = (make_run("a8", learned=False), make_run("a9", completed=False, failure="instability"))
    baseline = Version(model="canary", version="a", runs=make_version("a").runs + bad)
    assert judge(smoke, baseline, make_version("b")).baseline_runs == ("a0", "a1", "a2")


def test_crashed_candidates_leave_the_others_measured(smoke, make_run, make_version):
    crashed = make_run("b9", completed=False, failure="oom", factor={"step_time": 99.0})
    candidate = Version(model="canary", version="b", runs=(*make_version("b").runs, crashed))
    verdict = judge(smoke, make_version("a"), candidate)
    assert verdict.reason_code is ReasonCode.HARD_GATE
    assert check(verdict, "step_time").outcome is CheckOutcome.PASS


def test_margin_zero_passes_only_what_is_better(smoke_with, make_version):
    strict = smoke_with(rules={"step_time": {"margin": 0.0}})
    same = judge(strict, make_version("a"), make_version("b"))
    assert check(same, "step_time").outcome is CheckOutcome.INCONCLUSIVE
    better = judge(strict, make_version("a"), make_version("b", factor={"step_time": 0.7}))
    assert check(better, "step_time").outcome is CheckOutcome.PASS


def test_nothing_to_judge_is_no_pass(smoke_with, make_version):
    policy = smoke_with(
        rules={n: {"role": "advisory"} for n in ("step_time", "tokens_per_second", "peak_memory", "eval_loss")}
    )
    verdict = judge(policy, make_version("a"), make_version("b"))
    assert answer(verdict) == (Outcome.INCONCLUSIVE, ReasonCode.MISSING_DATA)


@pytest.mark.parametrize(("steps", "role"), [(200, "advisory"), (400, "gate")])
def test_tails_and_drifts_of_short_runs_are_advice(make_version, steps, role):
    verdict = judge(load_policy("perf"), make_version("a", steps=steps), make_version("b", steps=steps))
    roles = {check.metric: check.role for check in verdict.checks}
    assert roles["step_time_tail"] == roles["step_time_drift"] == role
    assert roles["step_time"] == "gate"


def test_two_open_metrics_together_take_more_runs_than_either(perf, make_version):
    """Each with 4 chances of 5 would leave one of them open in a third of all cases."""
    both, unlearned = {"factor": {"step_time": 1.06, "eval_loss": 1.04}}, {"series_": {"loss": None}}
    verdict = judge(perf, make_version("a", 2, **unlearned), make_version("b", 2, **both, **unlearned))
    open_ones = [item for item in verdict.checks if item.outcome is CheckOutcome.INCONCLUSIVE]
    assert {item.metric for item in open_ones} >= {"step_time", "eval_loss"}
    assert verdict.more_runs > max(item.more_runs for item in open_ones)
    alone = judge(perf, make_version("a", 2), make_version("b", 2, factor={"step_time": 1.06}))
    assert alone.more_runs == check(alone, "step_time").more_runs


def test_where_a_step_has_more_tokens_the_cost_of_a_token_decides(smoke, make_version):
    """Sequence packing: 40 % more tokens in steps that take 25 % longer; and padding, which costs as much for less."""

    def packed(name, tokens, cost, backend):
        changed = {"step_time": cost, "step_cpu_time": cost, "step_cost": cost, "tokens": tokens}
        return make_version(name, factor=changed, hardware={"backend": backend, "device": "one"})

    for backend, decides in (("cuda", "tokens_per_second"), ("cpu", "token_cost")):
        better = judge(smoke, packed("a", 1.0, 1.0, backend), packed("b", 1.4, 1.25, backend))
        assert (better.outcome, check(better, decides).role) == (Outcome.PASS, Role.GATE)
        worse = judge(smoke, packed("a", 1.0, 1.0, backend), packed("b", 0.7, 1.0, backend))
        assert (worse.outcome, check(worse, decides).outcome) == (Outcome.BLOCK, CheckOutcome.BLOCK)


def test_what_is_not_a_number_is_named_before_the_end_that_it_brought(smoke, make_run, make_version):
    """And what was learned before what it costs, whatever the order of a policy's rules."""
    loss = np.where(np.arange(100) < 60, 0.6, np.nan)
    lost = make_run("b0", completed=False, failure="instability", learned=False, series_={"loss": loss})
    verdict = judge(smoke, make_version("a"), Version(model="canary", version="b", runs=(lost,)))
    assert verdict.reason == (
        "Nonfinite: 1 of 1 runs: non-finite steps, first at step 61 (loss); also not completed, not learned."
    )
    dear = judge(smoke, make_version("a"), make_version("b", factor={"step_time": 2.0, "eval_loss": 2.0}))
    assert dear.reason.startswith("Evaluation loss ")
    assert dear.reason.endswith("; also step_time, run_time.")
    assert [one.metric for one in dear.checks[:3]] == ["eval_loss", "step_time", "run_time"]


LN2 = float(np.log(2))
FROM = {"loss": np.linspace(LN2, 0.5, 100)}


@pytest.mark.parametrize(
    ("algo", "before", "now", "margin"),
    [
        ("dpo", {"eval_loss": [0.54], **FROM}, {"eval_loss": [0.60], **FROM}, 0.25 * (LN2 - 0.54) / 0.54),
        ("dpo", {"eval_loss": [0.54], "loss": None}, {"eval_loss": [0.57], "loss": None}, 0.1),
        (
            "sft",
            {"eval_loss": np.linspace(5.0, 4.5, 100), "loss": None},
            {"eval_loss": np.linspace(5.0, 4.8, 100), "loss": None},
            0.25 * 0.5 / 4.5,
        ),
        (
            "sft",
            {"eval_loss": np.linspace(9.0, 2.0, 100), "loss": None},
            {"eval_loss": np.linspace(9.0, 2.02, 100), "loss": None},
            0.1,
        ),
        ("sft", {"eval_loss": [2.0], "loss": [1.9] * 100}, {"eval_loss": [2.02], "loss": [1.9] * 100}, 0.1),
        ("ppo", {"eval_reward": [3.0], "score_mean": [1.0] * 100}, {"eval_reward": [2.0]}, -0.5),
    ],
)
def test_a_limit_is_at_most_a_quarter_of_what_training_gained(smoke, make_version, algo, before, now, margin):
    """From the first evaluation, else from what the training measured before its first update, such as DPO's ln 2."""
    named = (("a", before), ("b", now))
    sides = [make_version(name, series_=values, workload={"algo": algo}) for name, values in named]
    found = check(judge(smoke, *sides), "eval_reward" if algo == "ppo" else "eval_loss")
    assert found.evidence.margin == pytest.approx(margin)
    narrower = abs(margin) != 0.1
    assert (found.outcome, "by what training gained" in found.reason) == ("BLOCK" if narrower else "PASS", narrower)
    assert check(judge(smoke, *sides, anchor=True), found.metric).evidence.margin == pytest.approx(2 * margin)


def test_a_first_evaluation_that_came_after_a_quarter_of_the_training_is_no_start(smoke, make_version):
    """As where evaluations are counted in place of steps."""
    own = {"series_": {"eval_loss": [0.94, 0.93, 0.93, 0.92], "loss": None}, "last_step": 4}
    found = check(judge(smoke, make_version("a", **own), make_version("b", **own)), "eval_loss")
    assert (found.outcome, found.evidence.margin) == ("PASS", pytest.approx(0.1))
