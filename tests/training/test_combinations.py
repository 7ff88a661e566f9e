"""Algorithm x adapter x quantization: each trains, and neither a rollout nor an evaluation changes a gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, set_seed

from canary_mlflow.tracking.probes.invariants.rollouts import gradient_norms
from canary_mlflow.training.algorithms import build
from canary_mlflow.training.assets.tiny import tiny_model_folder
from canary_mlflow.training.command_line import parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.devices import settle
from canary_mlflow.training.loading import load_tokenizer
from canary_mlflow.training.parts import build_parts

FEW = {
    "sft": ["train.max_steps=2"],
    "dpo": ["train.max_steps=2"],
    "ppo": ["train.max_steps=2", "algo.max_new_tokens=4", "train.batch_size=4"],
}
FROZEN = [("full", "none"), ("lora", "none"), ("lora", "nf4"), ("lora", "int8")]
ALL = [(algo, adapter, kind) for algo in FEW for adapter, kind in FROZEN]
EVERY_DAY = [*((algo, "lora", "nf4") for algo in FEW), ("dpo", "lora", "int8")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every combination with --full."""
    if "adapter" in metafunc.fixturenames:
        rows = ALL if metafunc.config.getoption("--full") else EVERY_DAY
        metafunc.parametrize(("algo", "adapter", "kind"), rows)


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU on which bitsandbytes packs 4-bit weights for inference, whichever this one is."""
    from bitsandbytes.nn import modules

    monkeypatch.setattr(modules, "has_avx512bf16", lambda: True)


def trainer_of(folder: Path, algo: str, adapter: str, kind: str, *words: str) -> Any:
    register_schemas()
    words = (f"algo={algo}", f"adapter={adapter}", f"quantization={kind}", "hardware=cpu", *FEW[algo], *words)
    # Without dropout, which SFT keeps: two passes over a batch are compared.
    config = check(parse(["tier.train_rows=32", "tier.eval_rows=8", "adapter.dropout=0", *words]))[0]
    set_seed(0)
    device = settle(config.hardware)
    trainer = build(config, build_parts(config, device), device, folder, [])
    trainer.remove_callback(PrinterCallback)
    return trainer


def policy_of(trainer: Any) -> Any:
    return getattr(trainer.model, "policy", trainer.model)


def off_after_looking(trainer: Any) -> float:
    """How far the gradient of a fixed batch is off after an evaluation and, for PPO, a rollout, as a share."""
    before = gradient_norms(policy_of(trainer))
    trainer.evaluate()
    if hasattr(trainer, "collect"):
        trainer.collect(0)
    return float((gradient_norms(policy_of(trainer)) - before).norm() / before.norm())


def test_it_trains_and_looking_at_it_changes_no_gradient(
    algo: str, adapter: str, kind: str, packs: None, tmp_path: Path
) -> None:
    trainer = trainer_of(tmp_path, algo, adapter, kind)
    assert off_after_looking(trainer) < 1e-6
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    trainer.train()
    assert any(
        not torch.equal(before[name], weight) for name, weight in trainer.model.named_parameters() if name in before
    )
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses
    assert all(abs(loss) < 1e6 for loss in losses)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without biases, where a layer packed for inference raises nothing."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokenizer = load_tokenizer(tiny_model_folder())
    LlamaForCausalLM(LlamaConfig(vocab_size=512, **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_rollout_changes_no_gradient_of_a_model_without_biases(packs: None, llama: Path, tmp_path: Path) -> None:
    words = ("model=local", f"model.path={llama}", "train.learning_rate=1e-3")
    assert off_after_looking(trainer_of(tmp_path, "ppo", "lora", "nf4", *words)) < 1e-6
