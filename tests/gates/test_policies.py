"""Policy files: the shipped three, a user's own on top of one, and the message when a file is wrong."""

from __future__ import annotations

import pytest
import yaml

from canary_mlflow.errors import UsageError
from canary_mlflow.gates import Role, policy_to_dict
from canary_mlflow.policies import conf_dir, load_policy, option_names, policy_from, policy_names


def rule(policy, name):
    return next(rule for rule in policy.rules if rule.name == name)


def test_the_policies_of_the_measuring_tiers_rest_on_smoke():
    assert policy_names() == ["facts", "files", "nightly", "perf", "smoke"]
    for name in option_names("tier"):
        body = yaml.safe_load((conf_dir() / "gate" / f"{name}.yaml").read_text())
        assert (name in ("smoke", "facts")) is ("defaults" not in body), "the others say what differs"
        assert load_policy(name).name == name


@pytest.mark.parametrize(
    ("tier", "step_time", "tokens_per_second"),
    [("smoke", 0.15, 0.12), ("perf", 0.08, 0.05), ("nightly", 0.05, 0.03)],
)
def test_margins_of_the_tiers(tier, step_time, tokens_per_second):
    policy = load_policy(tier)
    assert rule(policy, "step_time").margin == step_time
    assert rule(policy, "tokens_per_second").margin == tokens_per_second
    assert rule(policy, "peak_memory").headroom == 0.5


@pytest.mark.parametrize("tier", ["smoke", "perf", "nightly"])
@pytest.mark.parametrize("algo", ["sft", "dpo", "ppo"])
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_each_algorithm_and_backend_has_speed_memory_and_quality_gates(tier, algo, backend):
    of_ppo = ["step_cost", "iteration_time", "iteration_cost", "kl", "eval_reward"]
    recorded = of_ppo if algo == "ppo" else ["step_time", "step_cost", "eval_loss"]
    facts = {"algo": algo, "backend": backend, **dict.fromkeys(recorded, "recorded")}
    gates = {r.name for r in load_policy(tier).resolve(facts).rules if r.role is Role.GATE}
    speed = ("iteration" if algo == "ppo" else "step") + ("_cost" if backend == "cpu" else "_time")
    assert {speed, "peak_memory", "eval_reward" if algo == "ppo" else "eval_loss"} <= gates
    times = {"step_time", "step_cpu_time", "step_cost", "iteration_time", "iteration_cpu_time", "iteration_cost"}
    assert gates & times == {speed}


@pytest.mark.parametrize("algo", ["sft", "dpo", "ppo"])
def test_the_policy_of_files_judges_what_was_learned_and_no_clock(algo):
    recorded = {name: "recorded" for name in ("step_time", "step_cost", "iteration_time", "iteration_cost")}
    facts = {"algo": algo, "backend": "cpu", "paradigm": "reinforcement" if algo == "ppo" else "supervised", **recorded}
    rules = (
        load_policy("files")
        .resolve(facts | {"eval_loss": "absent", "eval_reward": "absent", "reward_mean": "new"})
        .rules
    )
    times = {rule.name for rule in rules if "time" in rule.metric or "cost" in rule.metric or "tokens" in rule.metric}
    roles = {rule.name: rule.role for rule in rules}
    said = {"step_time", "tokens_per_second"}  # by an advice alone
    assert {name: roles[name] for name in times} == {
        name: Role.ADVISORY if name in said else Role.IGNORE for name in times
    }
    assert roles["reward_mean" if algo == "ppo" else "loss"] is Role.GATE


def test_a_file_on_a_base_changes_only_what_it_says(tmp_path):
    (tmp_path / "strict.yaml").write_text("base: smoke\nname: strict\nrules:\n  step_time: {margin: 0.02}\n")
    (tmp_path / "stricter.yaml").write_text("base: strict.yaml\nalpha_block: 0.001\n")
    smoke, strict = load_policy("smoke"), load_policy(tmp_path / "stricter.yaml")
    expected = policy_to_dict(smoke)
    expected |= {"name": "stricter", "alpha_block": 0.001}  # without a name of its own: the file's, not the base's
    expected["rules"]["step_time"]["margin"] = 0.02
    assert policy_to_dict(strict) == expected


def test_a_mapping_may_have_a_base_too():
    assert rule(load_policy({"base": "perf", "rules": {"kl": {"role": "gate"}}}), "kl").role is Role.GATE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base: smokey", "policy 'smokey' not found; valid: facts, files, nightly, perf, smoke"),
        ("base: 3", "base: found 3"),
        ("base: me.yaml", "chain of more than"),
        ("base: smoke\nrules:\n  speed: {margin: 1}", "rules.speed: metric missing"),
        ("base: smoke\nrules:\n  eval_los: {margin: 1}", "write 'eval_loss' if that rule is meant"),
        ("base: smoke\nrules:\n  step_time: {metric: speed}", "unknown metric 'speed'; valid: "),
        ("base: smoke\ncolour: red", "me.yaml': policy: unknown key 'colour'"),
        ("rules: {}", "missing; expected all of name, bootstrap"),
        ("- 1", "found list"),
        ("", "found nothing; expected keys such as 'rules'"),
        ("a: [1", "cannot be read as YAML"),
    ],
)
def test_wrong_files_are_refused_in_one_line(tmp_path, text, words):
    path = tmp_path / "me.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_policy(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_unknown_name_lists_the_valid_ones():
    with pytest.raises(UsageError, match="policy 'smok' not found; valid: facts, files, nightly, perf, smoke, or"):
        load_policy("smok")


def test_a_key_that_stands_twice_is_refused(tmp_path):
    """YAML would take the second for the whole rule, and the margin above it would be gone without a word."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: perf\nrules:\n  step_time: {margin: 0.03}\n  step_time: {prior: 0.01}\n")
    with pytest.raises(UsageError, match="found 'step_time' twice in the mapping of line 3; expected each key once"):
        load_policy(mine)


def test_a_base_without_one_of_its_overlays(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: perf\nrules: {loss: {role: ignore}}\noverlays: {no_evaluation: null}\n")
    rules = load_policy(mine).resolve({"eval_loss": "absent"}).rules
    assert next(rule for rule in rules if rule.name == "loss").role is Role.IGNORE


def test_an_overlay_that_a_base_lacks_cannot_be_taken_away(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: perf\noverlays: {no_evaluaton: null}\n")
    with pytest.raises(
        UsageError, match=r"overlays.no_evaluaton: null takes an overlay of the base away; it has cpu, "
    ):
        load_policy(mine)


def test_a_set_policy_with_a_key_of_an_earlier_version_is_to_be_set_again(smoke):
    former = {**policy_to_dict(smoke), "prior_df": 4.0}
    with pytest.raises(UsageError, match=r"policy: unknown key 'prior_df'; .*again with `canary policy set`"):
        policy_from(former)
