"""Groups of answers with LoRA on models of the usual shapes: what is trained, what the step sees, and going on from a
checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Qwen3Config,
    Qwen3ForCausalLM,
    set_seed,
)

from canary_mlflow.training.algorithms import build
from canary_mlflow.training.assets.tiny import tiny_model_folder
from canary_mlflow.training.building import last_evaluation
from canary_mlflow.training.command_line import parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.devices import settle
from canary_mlflow.training.loading import load_tokenizer
from canary_mlflow.training.parts import build_parts, prepare_inputs
from canary_mlflow.training.variant_facts import FINISHED, OUTCOME, facts_of_variant
from canary_mlflow.training.variants import variants_of

SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "initializer_range": 0.2,
}
SHAPES: dict[str, Any] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2)),
    "qwen": lambda: Qwen3ForCausalLM(
        Qwen3Config(**SIZES, num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True)
    ),
    "neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, num_attention_heads=4)),
}
EVERY_DAY = [("grpo", "qwen")]
ALL = [(algo, shape) for algo in ("grpo", "rloo") for shape in SHAPES]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every combination with --full."""
    if {"algo", "shape"} <= set(metafunc.fixturenames):
        metafunc.parametrize(("algo", "shape"), ALL if metafunc.config.getoption("--full") else EVERY_DAY)


def config_of(folder: Path, algo: str, shape: str, *words: str) -> CanaryConfig:
    """A LoRA canary on a tiny model of the shape, with the embedded model's tokenizer."""
    register_schemas()
    torch.manual_seed(0)
    SHAPES[shape]().save_pretrained(folder / shape)
    load_tokenizer(tiny_model_folder()).save_pretrained(folder / shape)
    given = [f"algo={algo}", "adapter=lora", "model=local", f"model.path={folder / shape}", "train.learning_rate=5e-3"]
    return check(parse([*given, "hardware=cpu", "tier.eval_rows=4", "tier.train_rows=32", *words]))[0]


def test_an_adapter_is_trained_and_its_base_is_not(algo: str, shape: str, tmp_path: Path) -> None:
    words = ("train.max_steps=6", "train.batch_size=16", "algo.num_generations=4", "adapter.dropout=0")
    config = config_of(tmp_path, algo, shape, *words)
    set_seed(0)
    device = settle(config.hardware)
    trainer: Any = build(config, build_parts(config, device), device, tmp_path / "out", [])
    trainer.remove_callback(PrinterCallback)
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    scores = []
    for _ in range(2):
        trainer.evaluate()
        scores.append(last_evaluation(trainer))
    assert scores[0] == scores[1]
    assert "eval_reward" in scores[0]
    trainer.train()
    changed = {name for name, weight in trainer.model.named_parameters() if not torch.equal(before[name], weight)}
    trained = {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert changed == trained
    assert all("lora_" in name for name in trained)
    layers = {"llama": "q_proj", "qwen": "q_proj", "neox": "query_key_value"}
    assert any(layers[shape] in name for name in trained)
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert rows[-1]["kl"] != 0


@pytest.mark.full  # every day for one shape that an adapter is trained at all, above
@pytest.mark.parametrize("shape", SHAPES)
def test_an_adapter_learns_what_it_is_paid_for(shape: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, "grpo", shape, "tier=smoke", "train.max_steps=50", "train.learning_rate=1e-2")
    set_seed(0)
    device = settle(config.hardware)
    trainer = build(config, build_parts(config, device), device, tmp_path / "out", [])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 1, rewards


def test_a_resumed_training_makes_the_same_next_step(algo: str, shape: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, algo, shape, "tier=facts", "tier.variants=[save]")
    (variant,) = variants_of(config)
    found = facts_of_variant(variant, prepare_inputs(variant), settle(config.hardware), tmp_path / "out")[OUTCOME]
    assert found["ended"] == FINISHED
    resumed = {key: value for key, value in found.items() if key.startswith("resumed_")}
    assert len(resumed) == 5
    assert set(resumed.values()) == {"as saved", "the same next step"}, resumed
