"""The work of a step after each change that the fingerprint was designed for: seen and named, or known not to be seen.

More of them, by hand: tests/canary_mlflow/test_work.py. Between releases: benchmarks/real_regressions.py.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from tiny_trainers import BUILDERS, LINES, arguments
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)
from workplace import ROOT

from canary_mlflow.gates.facts.work import IDENTICAL, MATERIAL, compare_work
from canary_mlflow.tracking.probes.work import work_facts

Change = Callable[[Any], None]


def causal(tiny: str, place: Path, callbacks: list[Any], **own: Any) -> Trainer:
    """Transformers' own trainer on a language model."""
    reader = AutoTokenizer.from_pretrained(tiny)
    return Trainer(
        model=AutoModelForCausalLM.from_pretrained(tiny),
        args=arguments(TrainingArguments, place, **own),
        train_dataset=Dataset.from_list([dict(reader(line)) for line in LINES]),
        data_collator=DataCollatorForLanguageModeling(reader, mlm=False),
        callbacks=callbacks,
    )


def unchanged(trainer: Any) -> None:
    """As it was built."""


def around(trainer: Any, before: Callable[[], object] = int, after: Callable[[], object] = int) -> None:
    step = trainer.training_step

    def training_step(*given: Any) -> Any:
        before()
        loss = step(*given)
        after()
        return loss

    trainer.training_step = training_step


def checkpoints(trainer: Any) -> None:
    trainer.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def eager(trainer: Any) -> None:
    trainer.model.set_attn_implementation("eager")


def upcasts_logits(trainer: Any) -> None:
    trainer.model.get_output_embeddings().register_forward_hook(lambda module, given, logits: logits.double())


def logs_norms(trainer: Any) -> None:
    around(trainer, after=lambda: [one.grad.norm().item() for one in trainer.model.parameters()])


def looks_at_reference(trainer: Any, *, grad: bool) -> None:
    loss_of, reference = trainer.compute_loss, copy.deepcopy(trainer.model)

    def compute_loss(model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        with torch.set_grad_enabled(grad):
            logits = reference(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        return loss_of(model, inputs, *given, **named) + 0 * logits.mean()

    trainer.compute_loss = compute_loss


def frozen(trainer: Any) -> None:
    looks_at_reference(trainer, grad=False)


def recorded(trainer: Any) -> None:
    looks_at_reference(trainer, grad=True)


def offloads(trainer: Any) -> None:
    step = trainer.training_step

    def training_step(*given: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda one: one.clone(), lambda one: one):
            return step(*given)

    trainer.training_step = training_step


def caches(trainer: Any) -> None:
    trainer.model.config.use_cache = True


def forces_cache(trainer: Any) -> None:
    forward = trainer.model.forward
    trainer.model.forward = lambda *given, **named: forward(*given, **{**named, "use_cache": True})


def many_at_once(trainer: Any) -> None:
    for group in trainer.optimizer.param_groups:
        group |= {"fused": False, "foreach": True}


def lora(rank: int, *layers: str) -> dict[str, Any]:
    return {"peft_config": LoraConfig(r=rank, target_modules=list(layers or ("query_key_value",)))}


EVERY_LAYER = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One change: of the trainer's arguments, or of the trainer that was built. `said`: what names it; empty if its
    work is identical."""

    said: tuple[str, ...] = ()
    kind: str = "sft"
    before: dict[str, Any] = field(default_factory=dict)
    now: dict[str, Any] = field(default_factory=dict)
    was: Change = unchanged
    is_now: Change = unchanged


RECOMPUTES = "operations in the backward pass (gradient checkpointing)"
SHAPES = "the same operations on other shapes: padding, batch, or rank"
ROWS = {
    "gradient checkpointing, DPO": Row(kind="dpo", is_now=checkpoints, said=(RECOMPUTES, "flops +")),
    "gradient checkpointing, HF": Row(kind="causal", is_now=checkpoints, said=(RECOMPUTES, "flops +")),
    "eager attention": Row(is_now=eager, said=("attention aten::_scaled_dot_product", "→ none", "flops +")),
    "logits upcast, HF": Row(kind="causal", is_now=upcasts_logits,
                             said=("cast float32 to float64: 1 more", "allocated +")),
    "bf16 autocast": Row(now={"bf16": True}, said=("cast float32 to bfloat16", "allocated -")),
    "norms of each gradient logged": Row(is_now=logs_norms,
                                         said=("read of a scalar: 28 more at ", "test_work_rows.py:")),
    "reference with gradients": Row(was=frozen, is_now=recorded,
                                    said=("a frozen forward pass now records gradients", "flops +")),
    "LoRA, not everything": Row(now=lora(4), said=("flops -",)),
    "LoRA on every layer": Row(before=lora(4), now=lora(4, *EVERY_LAYER), said=("mm: ", "flops +")),
    "LoRA of twice the rank": Row(before=lora(4), now=lora(8), said=(SHAPES, "flops +")),
    "longer padding": Row(now={"pad_to_multiple_of": 64}, said=(SHAPES, "flops +", "traffic +")),
    "optimizer in a loop": Row(now={"optim": "adamw_torch"}, said=("the optimizer's step: 6 → ", "tensors +")),
    "optimizer of many tensors at once": Row(before={"optim": "adamw_torch"}, now={"optim": "adamw_torch"},
                                             is_now=many_at_once, said=("the optimizer's step: ", "tensors -")),
    "activations offloaded": Row(is_now=offloads, said=("clone: ", "traffic +")),
    "use_cache, which training ignores": Row(is_now=caches),
    "use_cache, forced": Row(kind="causal", is_now=forces_cache, said=("cat: 4 more", "traffic +")),
    "garbage collection in each step": Row(is_now=lambda trainer: around(trainer, gc.collect)),
    "tokenized in each step": Row(is_now=lambda trainer: around(trainer, lambda: trainer.processing_class(LINES))),
}  # fmt: skip


@pytest.fixture(scope="module")
def counted(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """The facts of a trainer that was built so and changed."""

    def of(kind: str, change: Change, own: dict[str, Any]) -> dict[str, str]:
        build = {**BUILDERS, "causal": causal}[kind]
        trainer = build(tiny, tmp_path_factory.mktemp(kind), [], **{"max_steps": 1, "seed": 0, **own})
        trainer.train()
        change(trainer)
        found = work_facts(trainer)
        assert found["status"] == "counted", found
        return {f"work.{key}": value for key, value in found.items()}

    plain = cache(lambda kind: of(kind, unchanged, {}))
    return lambda kind, change, own: plain(kind) if change is unchanged and not own else of(kind, change, own)


@pytest.mark.parametrize("name", ROWS)
def test_each_change_is_named_or_known_not_to_be_seen(counted: Callable[..., dict[str, str]], name: str) -> None:
    row = ROWS[name]
    found = compare_work(counted(row.kind, row.was, row.before), counted(row.kind, row.is_now, row.now))
    assert found.kind == (MATERIAL if row.said else IDENTICAL), found.said
    said = "; ".join(found.said)
    assert all(words in said for words in row.said), said


def test_batches_that_are_sampled_are_not_counted(tiny: str, tmp_path: Path) -> None:
    trainer = BUILDERS["grpo"](tiny, tmp_path, [], max_steps=1)
    trainer.train()
    assert work_facts(trainer) == {"status": "unavailable: its batches are sampled"}


COUNT = """
import json, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from tiny_trainers import sft
from canary_mlflow.tracking.probes.work import work_facts
trainer = sft(sys.argv[3], Path(sys.argv[4]), [], max_steps=2, seed=3)
trainer.train()
print("found", json.dumps({f"work.{key}": value for key, value in work_facts(trainer).items()}))
"""


@pytest.mark.full  # half a minute; another process with the same kernels: test_facts.py, every day
def test_another_process_with_other_kernels_does_the_same_work(
    counted: Callable[..., dict[str, str]], tiny: str, tmp_path: Path
) -> None:
    """Without AVX the loss differs in its last digits."""
    words = [sys.executable, "-c", COUNT, str(ROOT), str(ROOT / "tests"), tiny, str(tmp_path)]
    kernels = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
    done = subprocess.run(words, env={**os.environ, **kernels}, capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    assert json.loads(line.removeprefix("found ")) == counted("sft", unchanged, {})
