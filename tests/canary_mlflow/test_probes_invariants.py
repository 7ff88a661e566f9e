"""Invariants of the first steps: seen when they break, silent on every healthy start."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from probe_setting import setting
from tiny_ppo import tiny_trainer
from tiny_trainers import build
from transformers import AutoModelForCausalLM, TrainerCallback

from canary_mlflow import CanaryCallback
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.probes.invariants.definitions import Definitions, entropy, log_probability

LORA = LoraConfig(r=2, target_modules=["query_key_value"], task_type="CAUSAL_LM")


def start(shared: Any, kind: str, tiny: str, place: Path, *others: Any, fresh: bool | None = None, **own: Any) -> Any:
    """Train for two steps; (tag canary.invariants, names of those checked)."""
    canary = CanaryCallback(tracking_uri=shared.uri, experiment="recorded", starts_fresh=fresh, system_metrics=False)
    if kind == "ppo":
        tiny_trainer(place, callbacks=[*others, canary], iterations=1, **own).train()
    else:
        build(kind, tiny, place, [*others, canary], max_steps=2, **own).train()
    tags = expanded(shared.client.get_run(canary.run_id).data.tags)
    return tags["canary.invariants"], tags["canary.invariants_checked"]


HEALTHY: dict[str, dict[str, Any]] = {
    "accumulated": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2},
    "bf16": {"bf16": True},
    "smoothed": {"loss_type": ["robust"], "label_smoothing": 0.2},
    "ipo": {"loss_type": ["ipo"], "beta": 0.3},
    "two losses": {"loss_type": ["sigmoid", "hinge"], "loss_weights": [0.5, 2.0]},
    "high beta": {"beta": 5.0},
    "lora": {"peft_config": LORA},
    "loss that depends on the data": {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]},
}


DAILY = ("accumulated", "bf16", "two losses", "lora")


@pytest.mark.parametrize(
    "case", [case if case in DAILY else pytest.param(case, marks=pytest.mark.full) for case in HEALTHY]
)
def test_a_healthy_dpo_start_raises_no_alarm(case: str, shared: Any, tiny: str, place: Path) -> None:
    verdict, checked = start(shared, "dpo", tiny, place, **HEALTHY[case])
    assert verdict == "ok"
    assert "reference start" in checked
    assert ("fresh adapter" in checked) == (case == "lora")


def shifted(tiny: str) -> Any:
    """The start model, a little off."""
    model = AutoModelForCausalLM.from_pretrained(tiny)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)))
    return model


def test_a_reference_that_is_not_the_start_model_breaks_it_where_it_must_be(
    shared: Any, tiny: str, place: Path
) -> None:
    verdict, _ = start(shared, "dpo", tiny, place, fresh=True, ref_model=shifted(tiny))
    assert verdict.startswith("broken: KL from the reference is ")
    # Whoever gives a reference of their own may mean it.
    verdict, checked = start(shared, "dpo", tiny, place, ref_model=shifted(tiny))
    assert verdict == "ok"
    assert "reference start" not in checked


class WriteIntoAdapter(TrainerCallback):
    """Leaves one new adapter with an output, as a wrong initialisation would."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        _, weight = next(item for item in model.named_parameters() if "lora_B" in item[0])
        torch.nn.init.constant_(weight, 0.5)


def test_a_new_adapter_that_changes_the_output_breaks_it(shared: Any, tiny: str, place: Path) -> None:
    verdict, _ = start(shared, "sft", tiny, place, WriteIntoAdapter(), peft_config=LORA)
    assert verdict.startswith("broken: 1 of 2 new LoRA adapters change the output, the first at ")


def test_dropout_makes_two_passes_differ_and_nothing_is_claimed(shared: Any, tiny: str, place: Path) -> None:
    _, checked = start(shared, "dpo", tiny, place, disable_dropout=False, peft_config=LORA_WITH_DROPOUT)
    assert "reference start" not in checked


LORA_WITH_DROPOUT = LoraConfig(r=2, target_modules=["query_key_value"], task_type="CAUSAL_LM", lora_dropout=0.2)


@pytest.mark.parametrize("options", [{}, {"peft_config": LORA}, {"bf16": True}], ids=["full", "lora", "bf16"])
def test_a_healthy_ppo_start_raises_no_alarm(options: dict[str, Any], shared: Any, tiny: str, place: Path) -> None:
    verdict, checked = start(shared, "ppo", tiny, place, **options)
    assert verdict == "ok"
    assert {"reference start", "first epoch", "rollout gradient"} <= set(checked.split(", "))


def test_a_rollout_that_another_policy_made_breaks_ppos_first_epoch(
    shared: Any, tiny: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from canary_mlflow.training.ppo import trainer

    score = trainer.score_answers

    def stale(*given: Any, **named: Any) -> Any:
        from dataclasses import replace

        scored = score(*given, **named)
        return replace(scored, old_logps=scored.old_logps + 0.07)  # what a rollout one step old was measured to give

    monkeypatch.setattr(trainer, "score_answers", stale)
    verdict, _ = start(shared, "ppo", tiny, place)
    assert "PPO's first update at step 1 has a log ratio of 0.07" in verdict or "log ratio of 0.07" in verdict


class PackForInference(TrainerCallback):
    """Halves one weight at its first pass in eval mode, as a library that converts weights for speed changes it."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        layer = model.policy.gpt_neox.layers[0].mlp.dense_h_to_4h

        def pack(module: Any, given: Any) -> None:
            if not module.training and not hasattr(module, "packed"):
                module.packed = True
                module.weight.data.mul_(0.5)

        layer.register_forward_pre_hook(pack)


def test_a_rollout_that_converts_weights_breaks_the_gradient_of_a_fixed_batch(
    shared: Any, tiny: str, place: Path
) -> None:
    verdict, _ = start(shared, "ppo", tiny, place, PackForInference(), fresh=False)
    assert "broken: the first rollout changed the gradient of a fixed batch by " in verdict


def in_bits(logits: torch.Tensor) -> torch.Tensor:
    return entropy(logits) / 0.6931


def without_normalisation(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize(
    ("name", "function", "said"),
    [
        ("entropy_from_logits", in_bits, "(entropy) gives"),
        ("selective_log_softmax", without_normalisation, "(log-probability) gives"),
    ],
)
def test_a_library_that_redefines_a_metric_is_named(name: str, function: Any, said: str) -> None:
    import sys

    home = types.ModuleType("a_library")
    setattr(home, name, function)
    sys.modules["a_library"] = home
    try:
        trainer = type("T", (), {"__module__": "a_library"})()
        definitions = Definitions()
        definitions.start(setting(trainer=trainer))
    finally:
        del sys.modules["a_library"]
    assert definitions.checked
    assert name in definitions.broken
    assert said in definitions.broken


def test_the_definitions_are_torchs_own() -> None:
    logits, tokens = torch.randn(5, 11, generator=torch.Generator().manual_seed(0)), torch.arange(5)
    found = torch.distributions.Categorical(logits=logits.double())
    assert torch.allclose(entropy(logits), found.entropy())
    assert torch.allclose(log_probability(logits, tokens), found.log_prob(tokens))
