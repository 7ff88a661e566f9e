"""What memory a run needs: settings that reach the trainer, and words that name keys that exist."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from canaries import a_config
from forked_runs import ForkedRuns
from transformers import PrinterCallback, set_seed

from canary_mlflow.errors import UsageError
from canary_mlflow.tracking.probes.invariants.rollouts import gradient_norms
from canary_mlflow.training import memory, preflight
from canary_mlflow.training.algorithms import build
from canary_mlflow.training.assets.tiny import tiny_model_folder
from canary_mlflow.training.command_line import parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.config import MemoryConfig, TrainConfig
from canary_mlflow.training.devices import Device, settle
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.loading import load_model, load_tokenizer
from canary_mlflow.training.parts import build_parts

CPU = Device(kind="cpu", precision="fp32")


def trainer_of(folder: Path, algo: str, *words: str) -> Any:
    few = (
        "tier.train_rows=16",
        "tier.eval_rows=8",
        "train.max_steps=2",
        "train.warmup_steps=0",
        "train.batch_size=4",
        "hardware=cpu",
    )
    config = composed(f"algo={algo}", *few, *(["algo.max_new_tokens=4"] if algo == "ppo" else []), *words)
    set_seed(0)
    device = settle(config.hardware)
    trainer = build(config, build_parts(config, device), device, folder, [])
    trainer.remove_callback(PrinterCallback)
    return trainer


def composed(*words: str) -> Any:
    register_schemas()
    return check(parse([*words]))[0]


@pytest.mark.parametrize("algo", ["sft", pytest.param("dpo", marks=pytest.mark.full), "ppo"])
def test_activations_computed_again_give_the_same_gradient(algo: str, tmp_path: Path) -> None:
    kept, again = (
        trainer_of(tmp_path / word, algo, f"memory.gradient_checkpointing={word}") for word in ("false", "true")
    )
    for trainer, wanted in ((kept, False), (again, True)):
        trainer.train()
        assert any(getattr(one, "gradient_checkpointing", False) for one in trainer.model.modules()) == wanted
    assert torch.equal(*(gradient_norms(getattr(one.model, "policy", one.model)) for one in (kept, again)))


def test_the_saving_preset_trains_in_half_with_small_states(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, "sft", "memory=saving")
    before = [weight.clone() for weight in trainer.model.parameters()]
    trainer.train()
    assert {weight.dtype for weight in trainer.model.parameters()} == {torch.bfloat16}
    assert any(not torch.equal(old, new) for old, new in zip(before, trainer.model.parameters(), strict=True))
    assert torch.uint8 in {state["state1"].dtype for state in trainer.optimizer.state.values()}
    assert trainer.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("adapter", "precision", "weights", "dtype"),
    [
        ("full", "bf16", "auto", torch.float32),
        ("lora", "bf16", "auto", torch.bfloat16),
        ("full", "fp32", "bf16", torch.bfloat16),
        ("lora", "bf16", "fp32", torch.float32),
    ],
)
def test_weights_are_read_in_their_dtype_and_in_no_other(
    adapter: str, precision: str, weights: str, dtype: torch.dtype
) -> None:
    config = replace(a_config(adapter=adapter), memory=MemoryConfig(weights=weights))
    folder = tiny_model_folder()
    device = Device(kind="cpu", precision=precision)

    model = load_model(config, folder, load_tokenizer(folder), device)
    assert {one.dtype for one in model.parameters()} == {dtype}


def test_on_a_gpu_weights_go_straight_there_and_a_second_copy_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is here: what from_pretrained is asked for is looked at, and the model is made on the CPU."""
    from transformers import AutoModelForCausalLM

    asked: list[Any] = []
    real = AutoModelForCausalLM.from_pretrained

    def seen(folder: Path, **options: Any) -> Any:
        asked.append(options.pop("device_map", None))
        return real(folder, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", seen)
    folder = tiny_model_folder()
    for inspect_only in (False, True):
        load_model(
            a_config(), folder, load_tokenizer(folder), Device(kind="cuda", precision="bf16"), inspect_only=inspect_only
        )
    assert asked == [{"": 0}, None]


def test_a_map_gives_the_weights_that_loading_through_memory_gives() -> None:
    from transformers import AutoModelForCausalLM

    plain, mapped = (
        AutoModelForCausalLM.from_pretrained(tiny_model_folder(), dtype=torch.float32, **options)
        for options in ({}, {"device_map": {"": "cpu"}})
    )
    assert all(map(torch.equal, plain.state_dict().values(), mapped.state_dict().values()))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["memory.weights=fp8"], r"memory\.weights is 'fp8'; expected one of auto, fp32, bf16"),
        (["memory.attention=paged"], r"memory\.attention is 'paged'; expected one of"),
        (["memory.attention=flash_attention_2", "hardware=cpu"], r"use memory\.attention=sdpa"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        composed(*words)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"train\.optimizer=paged_adamw_8bit needs the package bitsandbytes"):
        memory.check(replace(a_config(), train=TrainConfig(optimizer="paged_adamw_8bit")))
    with pytest.raises(SetupError, match="needs the package flash-attn"):
        memory.check(
            replace(a_config(), train=TrainConfig(optimizer="sgd"), memory=MemoryConfig(attention="flash_attention_2"))
        )


def test_the_weights_digits_are_another_canary_and_the_rest_is_judged() -> None:
    saving = MemoryConfig(gradient_checkpointing=True, weights="bf16", attention="sdpa")
    assert memory.work(replace(a_config(), memory=saving)) == {"weights": "bf16"}
    assert memory.work(replace(a_config(), memory=replace(saving, weights="auto"))) == {}


def test_the_advice_names_keys_that_exist() -> None:
    words = ("memory=saving", "train.batch_size=2", "train.max_length=64", "adapter=lora")
    assert all(word.partition("=")[0] in memory.ADVICE for word in words)
    preflight.preflight(composed(*words, "hardware=cpu"))


OUT_OF_MEMORY = """
from transformers import Trainer
step = Trainer.training_step
def short(trainer, *given, **named):
    if trainer.state.global_step == 2:
        raise MemoryError("made up: a card that is full")
    return step(trainer, *given, **named)
Trainer.training_step = short
"""


def test_a_run_without_memory_says_its_step_and_what_the_plan_counts(tmp_path: Path) -> None:
    run = ForkedRuns(tmp_path).train("algo=sft", "train.max_steps=4", patch=OUT_OF_MEMORY)
    assert (run.failure, run.last_step) == ("oom", 2)
    assert re.search(r"MemoryError: made up.*canary plan counts \d+ MiB; expected a run that fits", run.failure_reason)
