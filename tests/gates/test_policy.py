"""Policies: refused by name when wrong, equal after a round trip, and no key that changes nothing."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from canary_mlflow.gates import CheckOutcome, PolicyError, Role, Series, judge, parse_policy, policy_to_dict
from canary_mlflow.gates.model.metrics import METRICS
from canary_mlflow.gates.model.records import SUMMARIES


@pytest.fixture
def plain(smoke):
    return deepcopy(policy_to_dict(smoke))


def put(plain, path, value):
    *parents, last = path.split(".")
    for key in parents:
        plain = plain[key]
    plain[last] = value


def test_round_trip(smoke, plain):
    assert parse_policy(plain) == smoke
    resolved = smoke.resolve({"backend": "cpu", "algo": "ppo"})
    assert parse_policy(policy_to_dict(resolved)) == resolved


BAD = [
    ("colour", 1, "unknown key 'colour'; valid: alpha_block"),
    ("rules.step_time.colour", 1, "rules.step_time: unknown key 'colour'"),
    ("rules.step_time.metric", "steptime", "unknown metric 'steptime'; valid: advantage_mean"),
    ("rules.step_time.metric", ["step_time"], "rules.step_time.metric: unknown metric '['step_time']'"),
    (
        "rules.step_time.role",
        "boss",
        "rules.step_time.role: found 'boss'; valid: gate, guard, advisory, ignore",
    ),
    ("rules.step_time.role", "hard", "hard checks stand under 'hard:'; valid: gate, guard, advisory, ignore"),
    ("rules.step_time.role", False, "rules.step_time.role: found False; valid: gate"),
    ("rules.step_time.role", [], "found []; valid: gate"),
    (
        "overlays.cpu.when.step_cost",
        "record",
        "overlays.cpu.when.step_cost: found 'record'; valid: recorded, early, new",
    ),
    ("overlays.cpu.when.step_tiem", "recorded", "overlays.cpu.when: unknown metric 'step_tiem'"),
    ("rules.step_time.scale", "linear", "valid: log, identity"),
    ("rules.step_time.worse", "up", "valid: higher, lower, both"),
    ("rules.step_time.worse", "lower", "step_time is worse when higher"),
    ("rules.step_time.reduction", "average", "unknown reduction 'average'; valid: drift"),
    ("rules.step_time.reduction", "rate", "it is for tokens_per_second only"),
    ("rules.step_time_tail.scale", "log", "is a logarithm already"),
    ("rules.eval_reward.scale", "log", "can be zero or negative"),
    ("rules.step_time.margin", -0.1, "rules.step_time.margin: found -0.1; expected a number of at least 0"),
    ("rules.step_time.margin", "15 %", "found '15 %'"),
    ("rules.step_time.margin", 5, "found 5, which is 500 %; expected a fraction, at most 2; write 0.05 for 5 %"),
    ("rules.step_time.prior", 3, "rules.step_time.prior: found 3, which is 300 %"),
    ("rules.step_time.margin", "1e-3", "write 1.0e-3, not 1e-3"),
    ("rules.step_time.margin", float("nan"), "found nan"),
    ("rules.step_time.margin", True, "found True"),
    ("rules.tokens_per_second.margin", 1.0, "a fall of 100 % or more cannot be a limit"),
    ("rules.step_time.prior", 0, "expected a number of at least 1e-12"),
    ("rules.step_time.prior", 1e-170, "rules.step_time.prior: found 1e-170; expected a number of at least 1e-12"),
    ("rules.step_time.must_have", "yes", "expected true or false"),
    ("rules.step_time.headroom", 0.5, "it is for memory"),
    ("rules.step_time.gain", 0.5, "it is for what is learned"),
    ("rules.step_time", None, "rules.step_time: found None; expected a mapping"),
    ("rules", ["step_time"], "rules: found ['step_time']; expected a mapping"),
    ("hard.nonfinite", 0, "hard.nonfinite: found 0; expected true or false"),
    ("hard.loss_ratio", 2.0, "hard: unknown key 'loss_ratio'; valid: completed"),
    ("hard.watch", "yes", "expected true or false"),
    ("looks.runs", [3, 1], "rising runs"),
    ("looks.runs", [1], "as many shares as looks"),
    ("looks.shares", [0.5, 0.6], "adding up to 1"),
    ("looks.shares", [], "looks.shares: found []; expected a list"),
    ("anchor_margins", 0.5, "at least 1"),
    ("override.operators", 3, "expected a whole number of at least 1, at most 2"),
    ("priors", {"here": {"when": {}, "rules": {"step_time": {"sd": 0.1}}}}, "df, kind, reduction, scale missing"),
    (
        "priors",
        {"here": {"when": {}, "rules": {"step_time": {"sd": 1e-200}}}},
        "priors.here.rules.step_time.sd: found 1e-200; expected a number of at least 1e-12",
    ),
    ("priors", {"here": {"when": {"backend": 1}, "rules": {}}}, "priors.here.when.backend: found 1"),
    ("validity.sentinel_rise", 0, "above 0"),
    ("refuse_code", "yes", "expected true or false"),
    ("bootstrap", "maybe", "valid: auto, manual"),
    ("alpha_block", 0, "alpha_block: found 0"),
    ("alpha_pass", 0.9, "at most 0.5"),
    ("min_steps", 2.5, "expected a whole number"),
    ("warmup_steps", -1, "at least 0"),
    ("name", "", "expected a name"),
    ("overlays.cpu.when", {}, "at least one fact"),
    ("overlays.cpu.when", {"backend": 3}, "expected a word"),
    ("overlays.cpu.rules", {"speed": {"role": "gate"}}, "unknown rule 'speed'; valid: clip_fraction"),
    ("overlays.cpu.rules.step_time", {"margin": -1}, "overlays.cpu.rules.step_time.margin: found -1"),
    ("overlays.cpu.rules.step_time", {"worse": "lower"}, "overlays.cpu.rules.step_time.worse"),
]


@pytest.mark.parametrize(("path", "value", "words"), BAD, ids=[f"{path}={value}" for path, value, _ in BAD])
def test_wrong_values_are_refused_in_one_line(plain, path, value, words):
    put(plain, path, value)
    with pytest.raises(PolicyError) as caught:
        parse_policy(plain)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_overlay_of_the_base_can_be_taken_away(plain):
    """Without it a rule of one's own says what the base's overlay would say otherwise."""
    facts = {"eval_loss": "absent"}
    put(plain, "rules.loss.role", "ignore")
    by_base = {rule.name: rule.role for rule in parse_policy(plain).resolve(facts).rules}
    put(plain, "overlays.no_evaluation", None)
    by_own = {rule.name: rule.role for rule in parse_policy(plain).resolve(facts).rules}
    assert (by_base["loss"], by_own["loss"]) == (Role.GATE, Role.IGNORE)


def every_key(plain, prefix=""):
    for key, value in plain.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict) and key not in ("overlays", "rules", "when"):
            yield from every_key(value, f"{prefix}{key}.")


def test_every_missing_key_is_named(plain):
    own = ("rules.kl_start.metric", "rules.kl_start.margin", "rules.kl_start.prior")
    plain["rules"]["kl_start"] = {"metric": "kl", "margin": 0.3, "prior": 0.05}
    for path in [*set(every_key(plain)) - {"priors", "refuse_code", "fail_fast"}, "rules.step_time.margin", *own]:
        body = deepcopy(plain)
        *parents, last = path.split(".")
        holder = body
        for key in parents:
            holder = holder[key]
        del holder[last]
        with pytest.raises(PolicyError, match=f"{last} missing"):
            parse_policy(body)


def test_a_shipped_rule_states_its_margin_and_has_the_rest_from_the_table(plain, smoke):
    plain["rules"] = {
        rule.name: {"margin": rule.margin, "role": rule.role.value, "gain": rule.gain} for rule in smoke.rules
    }
    assert parse_policy(plain) == smoke
    plain["rules"]["step_time"]["prior"] = 0.05
    assert parse_policy(plain).rules[0].prior == 0.05


def test_a_rule_of_a_known_name_for_another_metric_has_nothing_from_the_table(plain):
    plain["rules"]["run_time"] = {"metric": "step_cpu_time", "margin": 0.3}
    with pytest.raises(PolicyError, match=r"rules\.run_time: prior missing"):
        parse_policy(plain)


def test_a_policy_that_is_no_mapping():
    with pytest.raises(PolicyError, match="expected a mapping"):
        parse_policy(["rules"])  # type: ignore[arg-type]


def test_overlays_apply_in_order_to_the_facts_that_match(smoke):
    cpu = {"backend": "cpu", "step_cost": "recorded"}
    iteration = {"algo": "ppo", "iteration_time": "recorded", "iteration_cost": "recorded"}

    def role(name, **facts):
        return next(rule.role for rule in smoke.resolve(facts).rules if rule.name == name)

    assert role("step_time", backend="cuda", algo="dpo") is Role.GATE
    assert role("step_time", **cpu, algo="dpo") is Role.ADVISORY
    assert role("step_time", backend="cpu", algo="dpo") is Role.GATE, "nothing better was recorded"
    assert role("loss", eval_loss="recorded") is Role.ADVISORY
    assert role("loss", **dict.fromkeys(("eval_loss", "kl", "reward_mean", "score_mean"), "absent")) is Role.GATE
    assert role("step_cost", **cpu, algo="dpo") is Role.GATE
    assert role("step_cost", **cpu, **iteration) is Role.ADVISORY
    assert role("iteration_time", backend="cuda", **iteration) is Role.GATE
    assert role("iteration_cost", **cpu, **iteration) is Role.GATE
    assert role("eval_loss", algo="ppo") is Role.IGNORE
    assert role("step_time") is Role.GATE


def test_a_fact_may_have_several_values(plain):
    plain["overlays"]["cpu"]["when"] = {"backend": ["cpu", "mps"]}
    roles = {rule.name: rule.role for rule in parse_policy(plain).resolve({"backend": "mps"}).rules}
    assert roles["step_cost"] is Role.GATE


def test_metric_table_is_consistent():
    for name, info in METRICS.items():
        assert info.worse in ("higher", "lower", "both"), name
        assert info.scale in ("log", "identity"), name
        assert not (info.may_be_signed and info.scale == "identity"), name
    assert all(callable(summary) for summary in SUMMARIES.values())


# One rule alone, and two sides on which the changed key tips the answer.
def outcome(policy, baseline, candidate):
    verdict = judge(policy, baseline, candidate)
    checks = {check.metric: (check.outcome, check.reason) for check in verdict.checks}
    return verdict.outcome, verdict.reason_code, checks


def varied(**values):
    """One value per run of a side, as a constant series."""
    return {"each": {name: [np.full(100, value) for value in some] for name, some in values.items()}}


def with_each(version, each):
    runs = list(version.runs)
    for name, some in each.items():
        for i, values in enumerate(some):
            held = Series(name=name, steps=np.arange(1, 101), values=values)
            runs[i] = replace(runs[i], series={**runs[i].series, name: held})
    return replace(version, runs=tuple(runs))


STEP = "rules.step_time."
KEYS = [
    ("alpha_block", 1e-15, {"factor": {"step_time": 1.4}}),
    ("alpha_pass", 1e-9, {}),
    ("min_baseline_runs", 4, {"factor": {"step_time": 1.4}}),
    ("warmup_steps", 50, {"series_": {"step_time": np.r_[np.full(50, 0.02), np.full(50, 0.04)]}}),
    ("min_steps", 91, {}),
    ("validity.sentinel_rise", None, {**varied(sentinel_time=[1.0, 1.0, 1.2]), "both": True}),
    ("hard.completed", False, {"completed": False, "failure": "oom"}),
    ("hard.nonfinite", False, {"nan_steps": 1}),
    ("hard.divergence", False, {"series_": {"loss": np.linspace(1, 5, 100)}}),
    ("hard.learned", False, {"learned": False}),
    ("hard.invariants", False, {"invariants": "broken: the reference model changed"}),
    ("hard.watch", False, {"critical_held": "CRITICAL kl from step 40 to 60"}),
    (STEP + "metric", "step_cpu_time", {"factor": {"step_time": 1.4}}),
    (STEP + "role", "advisory", {"factor": {"step_time": 1.4}}),
    (STEP + "role", "ignore", {"factor": {"step_time": 1.4}}),
    (STEP + "reduction", "max", {"series_": {"step_time": np.r_[0.2, np.full(99, 0.02)]}}),
    (STEP + "scale", "identity", {"factor": {"step_time": 1.4}}),
    (STEP + "worse", "both", {"factor": {"step_time": 0.6}}),
    (STEP + "margin", 0.5, {"factor": {"step_time": 1.4}}),
    (STEP + "prior", 0.5, {"factor": {"step_time": 1.4}}),
    (STEP + "must_have", False, {"series_": {"step_time": None}, "both": True}),
    ("rules.peak_memory.headroom", 0.01, {"factor": {"peak_memory": 1.1}, "environment": {"gpu_memory": "2000"}}),
    ("rules.eval_loss.gain", None, {"factor": {"eval_loss": 1.085}}),
    (STEP + "weight", 1e-9, {"factor": {"step_time": 1.4}}),
    ("overlays.cpu.when", {"backend": "cuda"}, {"factor": {"step_time": 1.4}}),
    ("overlays.reinforcement.rules.loss.role", "gate", {"workload": {"algo": "ppo"}, "both": True}),
]


@pytest.mark.parametrize(("path", "value", "change"), KEYS, ids=[f"{path}={value}" for path, value, _ in KEYS])
def test_every_key_changes_an_outcome(plain, make_version, path, value, change):
    change = dict(change)
    both = change.pop("both", False)
    each = change.pop("each", {})
    baseline, candidate = make_version("a", **(change if both else {})), make_version("b", **change)
    candidate = with_each(candidate, each)
    baseline = with_each(baseline, each) if both else baseline
    before = outcome(parse_policy(plain), baseline, candidate)
    put(plain, path, value)
    assert outcome(parse_policy(plain), baseline, candidate) != before


def test_no_key_is_forgotten_above(plain):
    tested = {path for path, _, _ in KEYS}
    told_apart_elsewhere = {
        "name",
        "bootstrap",
        "hard",
        "hard.facts",  # test_facts.py
        "validity",
        "rules",
        "priors",
        "looks",
        "looks.runs",
        "looks.shares",
        "looks.fresh_baseline",
        "looks.without_source",
        "top_up",
        "validity.reruns",
        "anchor_margins",
        "override",
        "override.operators",
        "refuse_code",
        "fail_fast",
        "overlays",
    }  # what the judge itself does not read
    assert {f"rules.step_time.{key}" for key in plain["rules"]["step_time"]} - tested == {
        STEP + "headroom",
        STEP + "gain",
    }
    assert set(every_key(plain)) - {path for path in every_key(plain) if path.startswith(("rules.", "overlays."))} <= (
        tested | told_apart_elsewhere
    )


def test_ignored_rules_leave_no_check(smoke_with, make_version):
    policy = smoke_with(rules={"step_time": {"role": "ignore"}})
    verdict = judge(policy, make_version("a"), make_version("b"))
    assert "step_time" not in {check.metric for check in verdict.checks}
    assert all(check.outcome is not CheckOutcome.BLOCK for check in verdict.checks)


def measured(sd, **changes):
    prior = {"sd": sd, "df": 9.0, "kind": "calibrated", "reduction": "iqm", "scale": "log", **changes}
    return {"here": {"when": {"device": "H200"}, "rules": {"step_time": prior}}}


def evidence(plain, make_version, **changes):
    verdict = judge(parse_policy(plain), make_version("a", **changes), make_version("b", **changes))
    return next(check.evidence for check in verdict.checks if check.metric == "step_time")


def test_a_measured_spread_wins_over_the_shipped_one_where_its_facts_hold(plain, make_version):
    assert evidence(plain, make_version).prior == "shipped"
    used: list[float] = []
    for sd in (0.01, 0.1):
        plain["priors"] = measured(sd)
        found = evidence(plain, make_version)
        assert found.prior == "calibrated"
        used.append(found.spread)
    assert used[0] < 0.02 < used[1]
    other = {"hardware": {"backend": "cuda", "device": "A100"}}
    assert evidence(plain, make_version, **other).prior == "shipped"
    plain["priors"] = measured(0.1, reduction="median")
    assert evidence(plain, make_version).prior == "shipped", "measured with another rule"


def test_of_several_measured_spreads_the_one_with_most_facts_counts_and_then_the_last(plain):
    def used(*entries):
        plain["priors"] = {str(i): {**measured(sd)["here"], "when": when} for i, (sd, when) in enumerate(entries)}
        policy = parse_policy(plain).resolve({"backend": "cuda", "device": "H200"})
        return policy.prior_of(next(rule for rule in policy.rules if rule.name == "step_time")).sd

    anywhere, cuda, here = (0.1, {}), (0.05, {"backend": "cuda"}), (0.01, {"backend": "cuda", "device": "H200"})
    assert used(here, cuda, anywhere) == used(anywhere, here, cuda) == 0.01
    assert used(cuda, anywhere) == 0.05
    assert used(anywhere) == 0.1
    assert used(here, (0.03, here[1]), anywhere) == 0.03


def scale(run, i):
    old = run.series["step_time"]
    return Series(name="step_time", steps=old.steps, values=old.values * (1 + i))


def test_the_anchor_has_wider_margins(smoke_with, make_version):
    slow = make_version("b", factor={"step_time": 1.25})
    policy = smoke_with()
    assert judge(policy, make_version("a"), slow).outcome == "BLOCK"
    assert judge(policy, make_version("a"), slow, anchor=True).outcome != "BLOCK"
    assert judge(smoke_with(anchor_margins=1.0), make_version("a"), slow, anchor=True).outcome == "BLOCK"
    once = policy.resolve({})
    assert all(
        b.margin == pytest.approx(min(0.99, 2 * a.margin)) or b.margin == 2 * a.margin
        for a, b in zip(once.rules, once.anchored().rules, strict=True)
    )


@pytest.mark.parametrize(
    ("metric", "before", "after"),
    # limits of half of what 80000 MiB leave, and of a tenth of the loss
    [("peak_memory", 75000.0, 77600.0), ("eval_loss", -1.0, -0.88)],
)
def test_the_anchor_widens_headroom_and_limits_below_zero_too(smoke, make_version, metric, before, after):
    room = {"environment": {"gpu_memory": "80000"}}
    sides = [make_version(name, series_={metric: [x]}, **room) for name, x in (("a", before), ("b", after))]
    assert judge(smoke, *sides).outcome == "BLOCK"
    assert judge(smoke, *sides, anchor=True).outcome == "PASS"


def test_a_fact_that_has_two_values_knows_no_third(plain):
    plain["overlays"]["no_evaluation"]["when"]["paradigm"] = "superwised"
    with pytest.raises(PolicyError, match="found 'superwised'; valid: supervised, reinforcement"):
        parse_policy(plain)


def test_an_overlay_that_looks_at_what_no_run_says_is_named(plain, make_version):
    plain["overlays"]["slip"] = {"when": {"backned": "cuda"}, "rules": {"step_time": {"margin": 0.01}}}
    found = judge(parse_policy(plain), make_version("a"), make_version("b"))
    assert found.notes[0] == "overlay 'slip' looks at 'backned', of which these runs say nothing; 'backend' is a fact"
    del plain["overlays"]["slip"]
    assert not any(
        "looks at" in note for note in judge(parse_policy(plain), make_version("a"), make_version("b")).notes
    )
