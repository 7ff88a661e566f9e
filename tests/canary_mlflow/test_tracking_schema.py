"""Names: what trainers log becomes one vocabulary, and comes back from MLflow as the same."""

from __future__ import annotations

import pytest

from canary_mlflow.gates.model.metrics import METRICS
from canary_mlflow.tracking.describing import schema


@pytest.mark.parametrize(
    ("logged", "name"),
    [
        ("loss", "loss"),
        ("lr", "learning_rate"),
        ("rewards/margins", "reward_margin"),
        ("logps/chosen", "chosen_logp"),
        ("objective/kl", "kl"),
        ("policy/clipfrac_avg", "clip_fraction"),
        ("reward", "reward_mean"),
        ("completions/mean_length", "response_length"),
        ("explained_variance", "explained_variance"),
        ("first_kl_max_abs", "first_kl_max_abs"),
        ("eval_loss", "eval_loss"),
        ("eval_rewards/accuracies", "eval_accuracy"),
        ("eval_rewards/margins", "eval_margin"),
        ("eval_reward", "eval_reward"),
        ("logits/chosen", "trl/logits/chosen"),
        ("objective/entropy", "trl/objective/entropy"),  # summed over tokens: not the entropy of the others
        ("step_time", "trl/step_time"),  # GRPO's own; ours is measured
    ],
)
def test_what_a_trainer_logs_gets_its_canonical_name(logged: str, name: str) -> None:
    assert schema.name_of(logged) == name


def test_every_metric_has_a_key_of_its_own_that_leads_back_to_its_name() -> None:
    names = list(METRICS)
    assert len(set(names)) == len(names)
    assert [schema.name_of_key(schema.mlflow_key(name)) for name in names] == names


def test_no_two_metrics_claim_the_same_trainer_key() -> None:
    aliases = [alias for metric in METRICS.values() for alias in schema.aliases(metric)]
    assert len(set(aliases)) == len(aliases)


def test_keys_that_mlflow_would_refuse_are_made_safe() -> None:
    assert schema.mlflow_key("trl/rewards/<lambda>(x)/mean") == "trl/rewards/_lambda__x_/mean"
    assert len(schema.mlflow_key("trl/" + "x" * 400)) == 250


def test_what_a_run_must_have_is_of_the_schema_and_follows_algorithm_and_arguments() -> None:
    for algo in schema.REQUIRED:
        assert set(schema.required(algo, {"beta": 0.1})) <= METRICS.keys(), algo
    assert "kl" in schema.required("grpo", {"beta": 0.04})
    assert "kl" not in schema.required("grpo", {"beta": 0.0})  # no reference model, no KL
    assert "entropy" not in schema.required("sft", {"use_liger_kernel": True})
    assert schema.required("something new", {}) == schema.required("trainer", {})
    assert schema.required("grpo", {"beta": 0.04}, "0.18.0") == schema.required("trainer", {})
    assert "loss" not in schema.required("ppo", {}, "0.11.4")  # PPOv2Trainer logs a policy's and a value's
    assert schema.required("grpo", {"beta": 0.04}, "1.12.0rc1") == schema.required("grpo", {"beta": 0.04})
