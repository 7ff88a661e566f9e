"""PPOTrainer as a whole: the self-test, reproducibility, accumulation, resuming, clipping, and every knob."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from tiny_ppo import (
    EOS,
    PROMPTS,
    even_share,
    iterations_of,
    same_weights,
    steps_of,
    tiny_model,
    tiny_tokenizer,
    tiny_trainer,
    weights_of,
)
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, TrainerCallback

from canary_mlflow.training.errors import InstabilityError, SetupError
from canary_mlflow.training.ppo.actor_critic import load_actor_critic
from canary_mlflow.training.ppo.trainer import PPOTrainer, RolloutLoader
from canary_mlflow.training.rewards import Answers

PER_ITERATION = {
    "kl", "kl_coef", "kl_target_error", "entropy", "clip_fraction", "value_clip_fraction", "approx_kl", "policy_loss",
    "value_loss", "explained_variance", "reward_mean", "reward_std", "score_mean", "score_std", "advantage_mean",
    "advantage_std", "response_length", "truncated_share", "ratio", "first_kl_max_abs", "tokens_prompt",
    "tokens_response", "iteration_time", "iteration_cpu_time", "time_generate", "time_reward", "time_score",
    "time_update",
}  # fmt: skip
PER_STEP = {"loss", "grad_norm", "learning_rate"}


def _lora() -> LoraConfig:
    return LoraConfig(task_type="CAUSAL_LM", r=4, lora_dropout=0.1, target_modules="all-linear")


def _with_dropout() -> Any:
    return tiny_model(hidden_dropout=0.1, attention_dropout=0.1)


def _llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    return LlamaForCausalLM(LlamaConfig(vocab_size=280, initializer_range=0.1, attention_dropout=0.1, **sizes))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": _with_dropout},
        {"model": _llama},
        {"peft_config": _lora, "model": _with_dropout},
        {"value_head": "separate", "num_minibatches": 2, "gradient_accumulation_steps": 2},
        {"bf16": True},
        {"temperature": 0.7, "whiten_rewards": True, "missing_eos_penalty": 1.0},
        {"tokenizer": lambda: tiny_tokenizer(pad_token="<eos>")},
    ],
    ids=["plain", "dropout", "llama", "lora", "separate-minibatches-accumulation", "bf16", "shaped", "pad-is-eos"],
)
def test_the_first_update_sees_ratio_one_and_the_first_rollout_kl_zero(options: dict[str, Any], tmp_path: Path) -> None:
    """Old and new log-probabilities of the first update are bit-equal, in every iteration."""
    built = {name: value() if callable(value) else value for name, value in options.items()}
    trainer = tiny_trainer(tmp_path, **built)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        trainer.train()
    finally:
        torch.set_num_threads(threads)
    rows = iterations_of(trainer)
    assert [row["first_kl_max_abs"] for row in rows] == [0.0, 0.0]
    assert rows[0]["kl"] == 0.0
    assert rows[1]["kl"] != 0.0


def test_a_single_update_has_ratio_one_and_approx_kl_zero(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, ppo_epochs=1, iterations=1)
    trainer.train()
    row = iterations_of(trainer)[0]
    assert (row["ratio"], row["approx_kl"], row["clip_fraction"]) == (1.0, 0.0, 0.0)


def test_the_log_has_every_metric_finite_and_under_its_name(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, ppo_epochs=3)
    trainer.train()
    steps, iterations = steps_of(trainer), iterations_of(trainer)
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in iterations] == [3, 6]
    assert all(row.keys() >= PER_STEP for row in steps)
    assert set(iterations[0]) == PER_STEP | PER_ITERATION | {"epoch", "step"}
    assert all(math.isfinite(value) for row in iterations for value in row.values())
    first = iterations[0]
    assert first["kl_target_error"] == first["kl"] - 6.0
    assert first["reward_mean"] == pytest.approx(first["score_mean"])  # KL is 0 here
    phases = sum(first[f"time_{name}"] for name in ("generate", "score", "reward", "update"))
    assert 0 < phases <= first["iteration_time"] * 1.001


def test_metrics_describe_the_rollout(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, iterations=3, ppo_epochs=1, learning_rate=3e-3)
    trainer.train()
    row, rollout = iterations_of(trainer)[-1], trainer.last_rollout
    assert rollout is not None
    kl, scores = rollout.kl.sum(1), rollout.scores
    mask = rollout.policy_mask
    assert row["kl"] == pytest.approx(float(kl.mean()))
    assert row["score_mean"] == pytest.approx(float(scores.mean()))
    assert row["score_std"] == pytest.approx(float(scores.std(correction=0)))
    assert row["reward_mean"] == pytest.approx(float((scores - row["kl_coef"] * kl).mean()), rel=1e-5)
    assert row["advantage_mean"] == pytest.approx(float(rollout.raw_advantages[mask].mean()), rel=1e-5)
    assert row["advantage_std"] == pytest.approx(float(rollout.raw_advantages[mask].std(correction=0)), rel=1e-5)
    assert row["entropy"] == pytest.approx(float(rollout.entropy[mask].mean()), rel=1e-5)
    assert row["tokens_response"] == float(mask.sum())
    assert row["response_length"] == pytest.approx(float(mask.sum()) / len(scores))
    assert row["tokens_prompt"] == float(rollout.attention_mask.sum() - mask.sum())
    returns, values = rollout.returns[rollout.value_mask], rollout.values[rollout.value_mask]
    variance = 1 - (returns - values).var(correction=0) / returns.var(correction=0)
    assert row["explained_variance"] == pytest.approx(float(variance), abs=1e-4)


def test_same_seed_same_bits_and_other_seed_other_run(tmp_path: Path) -> None:
    runs = []
    for seed in (1, 1, 2):
        trainer = tiny_trainer(tmp_path, seed=seed, num_minibatches=2)
        torch.manual_seed(len(runs))  # the global stream must not matter
        trainer.train()
        runs.append(([row["loss"] for row in steps_of(trainer)], weights_of(trainer)))
    assert runs[0][0] == runs[1][0]
    assert same_weights(runs[0][1], runs[1][1])
    assert runs[0][0] != runs[2][0]


def test_a_callback_that_draws_random_numbers_changes_nothing(tmp_path: Path) -> None:
    class Noise(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            torch.rand(7)

    plain, noisy = tiny_trainer(tmp_path), tiny_trainer(tmp_path, callbacks=[Noise()])
    plain.train()
    noisy.train()
    assert same_weights(weights_of(plain), weights_of(noisy))


def test_gradient_accumulation_changes_nothing_but_memory(tmp_path: Path) -> None:
    """Uneven answer lengths, so that a mean of micro-batch means would differ."""

    def run(steps: int) -> PPOTrainer:
        trainer = tiny_trainer(tmp_path, gradient_accumulation_steps=steps, sampler=_uneven)
        trainer.train()
        return trainer

    one, two, four = run(1), run(2), run(4)
    for other in (two, four):
        for a, b in zip(steps_of(one), steps_of(other), strict=True):
            assert b["loss"] == pytest.approx(a["loss"], rel=1e-4, abs=1e-6)
            assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-4)
        for name in ("policy_loss", "value_loss", "approx_kl", "clip_fraction", "ratio", "kl"):
            assert iterations_of(other)[-1][name] == pytest.approx(iterations_of(one)[-1][name], rel=1e-3, abs=1e-5)


def _uneven(policy: Any, prompt_ids: torch.Tensor, mask: Any, spec: Any, generator: Any, step: int) -> torch.Tensor:
    """Answers of 1 to 6 tokens, the same for every model."""
    drawn = torch.randint(2, 280, (len(prompt_ids), 6), generator=generator)
    for row in range(len(prompt_ids)):
        end = row % 6
        drawn[row, end], drawn[row, end + 1 :] = EOS, spec.pad_token_id
    return drawn


def test_the_gradient_norm_is_clipped_and_logged_before_clipping(tmp_path: Path) -> None:
    def moved(limit: float) -> tuple[float, float]:
        trainer = tiny_trainer(
            tmp_path, optim="sgd", learning_rate=1.0, max_grad_norm=limit, iterations=1, ppo_epochs=1
        )
        before = weights_of(trainer)
        trainer.train()
        after = weights_of(trainer)
        distance = sum(float((after[name] - before[name]).square().sum()) for name in before) ** 0.5
        return distance, steps_of(trainer)[0]["grad_norm"]

    free, norm = moved(0.0)
    clipped, same_norm = moved(norm / 100)
    assert same_norm == pytest.approx(norm, rel=1e-5)
    assert free == pytest.approx(norm, rel=1e-3)  # SGD with rate 1 moves by the gradient
    assert clipped == pytest.approx(norm / 100, rel=1e-3)


@pytest.mark.parametrize("peft_config", [None, _lora()], ids=["full", "lora"])
def test_resuming_between_iterations_is_bit_identical(peft_config: Any, tmp_path: Path) -> None:
    def build(folder: str) -> PPOTrainer:
        return tiny_trainer(
            tmp_path / folder,
            iterations=4,
            save_strategy="epoch",
            peft_config=peft_config,
            lr_scheduler_type="linear",
            kl_horizon=8,
        )

    whole = build("whole")
    whole.train()
    resumed = build("resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))  # 2 of 4 iterations
    assert same_weights(weights_of(whole), weights_of(resumed))
    assert resumed.kl_controller.value == whole.kl_controller.value != 0.2
    for name in ("loss", "kl", "kl_coef", "score_mean", "grad_norm"):
        expected = [row[name] for row in iterations_of(whole)]
        assert [row[name] for row in iterations_of(resumed)][-2:] == expected[-2:]


@pytest.mark.parametrize("options", [{}, {"peft_config": _lora()}, {"value_head": "separate"}])
def test_a_saved_model_comes_back_bit_for_bit(options: dict[str, Any], tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path / "run", iterations=1, **options)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    fresh = tiny_trainer(tmp_path / "fresh", **options)
    assert not same_weights(weights_of(trainer), weights_of(fresh))
    load_actor_critic(fresh.model, tmp_path / "saved")
    assert same_weights(weights_of(trainer), weights_of(fresh))
    if not options:
        policy = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
        assert same_weights(policy.state_dict(), trainer.model.policy.state_dict())


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="expected a PPO checkpoint"):
        load_actor_critic(tiny_trainer(tmp_path).model, tmp_path)


def test_evaluation_is_repeatable_and_leaves_training_alone(tmp_path: Path) -> None:
    plain = tiny_trainer(tmp_path)
    plain.train()
    watched = tiny_trainer(tmp_path, eval_strategy="epoch")
    before = watched.evaluate()
    assert watched.evaluate() == before
    watched.train()
    assert same_weights(weights_of(plain), weights_of(watched))
    rewards = [row["eval_reward"] for row in watched.state.log_history if "eval_reward" in row]
    assert rewards[0] == before["eval_reward"]
    assert watched.evaluate()["eval_reward"] == rewards[-1]


def test_lora_trains_the_adapter_and_refers_to_the_start(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, peft_config=_lora(), learning_rate=1e-2)
    assert trainer.reference is None
    before = weights_of(trainer)
    trainer.train()
    after = weights_of(trainer)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert any("lora_" in name for name in moved)
    assert all("lora_" in name or name == "value_head.weight" for name in moved)
    assert iterations_of(trainer)[1]["kl"] != 0


def test_the_reference_of_full_training_stays(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path)
    before = {name: tensor.clone() for name, tensor in trainer.reference.state_dict().items()}
    trainer.train()
    assert same_weights(before, dict(trainer.reference.state_dict()))
    assert not same_weights(before, dict(trainer.model.policy.state_dict()))


def test_the_loader_is_ours_and_not_prefetched(tmp_path: Path) -> None:
    """Behind accelerate's loader the next rollout would be made one update early."""
    seen: list[int] = []

    class Order(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            assert isinstance(kwargs["train_dataloader"], RolloutLoader)

    def reward(answers: Answers) -> torch.Tensor:
        seen.append(trainer.state.global_step)
        return even_share(answers)

    trainer = tiny_trainer(tmp_path, iterations=3, reward=reward, callbacks=[Order()])
    trainer.train()
    assert seen == [0, 2, 4]


def test_a_nan_loss_is_logged_at_its_step_and_ends_the_run(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, iterations=4)
    compute_loss = trainer.compute_loss

    def poisoned(*args: Any, **kwargs: Any) -> Any:
        return compute_loss(*args, **kwargs) * (float("nan") if trainer.state.global_step == 2 else 1.0)

    trainer.compute_loss = poisoned  # type: ignore[method-assign]
    with pytest.raises(InstabilityError, match="step 3: loss is nan") as caught:
        trainer.train()
    assert caught.value.step == 3
    assert [math.isnan(row["loss"]) for row in steps_of(trainer)] == [False, False, True]


@pytest.mark.parametrize("when", ["weights", "reward"])
def test_other_nans_end_the_run_too(when: str, tmp_path: Path) -> None:
    class Poison(TrainerCallback):
        def on_epoch_end(self, *_: Any, **kwargs: Any) -> None:
            with torch.no_grad():
                kwargs["model"].policy.lm_head.weight[0] = float("nan")

    def poisoned(answers: Answers) -> torch.Tensor:
        scores = even_share(answers)
        scores[1] = float("nan")
        return scores

    options = {"callbacks": [Poison()]} if when == "weights" else {"reward": poisoned}
    words = {"weights": "step 2: the policy's logits", "reward": "step 0: 1 of 8 scores are not finite"}
    with pytest.raises(InstabilityError, match=words[when]):
        tiny_trainer(tmp_path, **options).train()


@pytest.fixture(scope="module")
def base_run(tmp_path_factory: pytest.TempPathFactory) -> PPOTrainer:
    trainer = tiny_trainer(tmp_path_factory.mktemp("base"), iterations=4)
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    ("knob", "value", "watched", "direction"),
    [
        ("ppo_epochs", 4, "approx_kl", 1),
        ("num_minibatches", 2, "approx_kl", 1),
        ("init_kl_coef", 2.0, "kl_coef", 1),
        ("target_kl", 1e-4, "kl_coef", 1),
        ("target_kl", None, "kl_coef", 1),  # the base run is below its target, so its coefficient falls
        ("kl_horizon", 3200, "kl_coef", 1),
        ("cliprange", 0.01, "clip_fraction", 1),
        ("cliprange_value", 1e-3, "value_clip_fraction", 1),
        ("vf_coef", 5.0, "loss", 1),
        ("gamma", 0.5, "advantage_std", -1),
        ("lam", 0.5, "advantage_mean", -1),
        ("max_new_tokens", 12, "tokens_response", 1),
        ("max_prompt_length", 2, "tokens_prompt", -1),
        ("temperature", 0.3, "entropy", -1),
        ("whiten_rewards", True, "advantage_mean", 0),
        ("missing_eos_penalty", 5.0, "reward_mean", -1),
        ("rollout_batch_size", 4, "tokens_prompt", -1),
        ("value_head", "separate", "value_loss", 0),
        ("learning_rate", 1e-5, "approx_kl", -1),
        ("max_grad_norm", 1e-3, None, 0),
        ("weight_decay", 10.0, None, 0),
        ("warmup_steps", 6, None, 0),
    ],
)
def test_every_knob_changes_what_happens(
    knob: str, value: Any, watched: str | None, direction: int, base_run: PPOTrainer, tmp_path: Path
) -> None:
    """direction: +1 the watched mean rises, -1 it falls, 0 it differs; the weights differ always."""
    options: dict[str, Any] = {"iterations": 4, knob: value}
    if knob == "warmup_steps":
        options["lr_scheduler_type"] = "constant_with_warmup"
    trainer = tiny_trainer(tmp_path, **options)
    trainer.train()
    name = "policy.lm_head.weight"
    assert not torch.equal(weights_of(trainer)[name], weights_of(base_run)[name])
    if watched is None:
        return
    base, changed = (
        sum(row[watched] for row in iterations_of(run)) / len(iterations_of(run)) for run in (base_run, trainer)
    )
    assert changed != base
    assert direction == 0 or (changed - base) * direction > 0, (base, changed)


def test_the_loss_is_policy_loss_plus_weighted_value_loss(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, ppo_epochs=1, vf_coef=0.25)
    trainer.train()
    for row in iterations_of(trainer):
        assert row["loss"] == pytest.approx(row["policy_loss"] + 0.25 * row["value_loss"], rel=1e-5, abs=1e-6)


def test_activation_checkpointing_changes_no_number(base_run: PPOTrainer, tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, iterations=4, activation_checkpointing=True)
    trainer.train()
    losses = [row["loss"] for row in steps_of(trainer)]
    assert losses == pytest.approx([row["loss"] for row in steps_of(base_run)], abs=1e-6)


def test_setup_errors(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(SetupError, match="no end-of-text token"):
        tiny_trainer(tmp_path, tokenizer=tokenizer)
    with pytest.raises(SetupError, match="no prompts"):
        tiny_trainer(tmp_path, train_prompts=[])
    assert PROMPTS
