"""A training script as people write them, for old and new releases alike: `train.py KIND`. It prints what it saw as one
JSON line and imports nothing of this project, unless WATCHED=1 asks for the callback.

Runs in the environments that benchmarks/real_regressions.py builds; the model has two layers and 200 words.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed

WORDS = [f"w{number}" for number in range(200)]
STEPS = 4


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: at for at, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    found = PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", bos_token="<eos>", unk_token="<unk>"
    )
    found.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    return found


def config(**more: object) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=203, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, eos_token_id=1, bos_token_id=1, **more,
    )  # fmt: skip


def model(**more: object) -> LlamaForCausalLM:
    set_seed(0)
    return LlamaForCausalLM(config(**more))


def kept(folder: str) -> LlamaForCausalLM:
    """From a folder, as people have theirs: some releases read the reference from it."""
    place = str(Path(folder) / "model")
    model().save_pretrained(place)
    return LlamaForCausalLM.from_pretrained(place)


def text(draw: random.Random, least: int, most: int) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))


def pairs(rows: int = 64) -> Dataset:
    draw = random.Random(0)
    return Dataset.from_list(
        [{"prompt": text(draw, 3, 6) + " ", "chosen": text(draw, 3, 8), "rejected": text(draw, 3, 8)}
         for _ in range(rows)]
    )  # fmt: skip


def texts(rows: int = 64) -> Dataset:
    draw = random.Random(0)
    return Dataset.from_list([{"text": text(draw, 6, 14)} for _ in range(rows)])


def labelled(rows: int = 64) -> Dataset:
    draw = random.Random(0)
    return Dataset.from_list(
        [{"prompt": text(draw, 3, 6) + " ", "completion": text(draw, 3, 8), "label": at % 2 == 0}
         for at in range(rows)]
    )  # fmt: skip


class Seen(TrainerCallback):
    """What was logged, and what trains at the end."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_log(self, args: object, state: object, control: object, logs: dict | None = None, **named: object) -> None:
        if logs and "loss" in logs:
            self.rows.append({key: float(logs[key]) for key in ("loss", "grad_norm") if key in logs})


def common(folder: str, **more: object) -> dict[str, object]:
    return {
        "output_dir": folder, "max_steps": STEPS, "per_device_train_batch_size": 4, "logging_steps": 1,
        "use_cpu": True, "report_to": "none", "disable_tqdm": True, "seed": 0, "learning_rate": 1e-3,
        "save_strategy": "no", **more,
    }  # fmt: skip


def finish(trainer: object, seen: Seen) -> dict[str, object]:
    before = trainable(trainer.model)
    trainer.train()
    args = trainer.args
    data = trainer.train_dataset
    tokens = sum(len(row) for row in data["input_ids"]) if "input_ids" in (data.column_names or []) else None
    return {
        "rows": seen.rows,
        "trainable": [before, trainable(trainer.model)],
        "data": [len(data), tokens],
        "weights": str(next(trainer.model.parameters()).dtype),
        "arguments": {
            name: str(getattr(args, name, None))
            for name in ("bf16", "gradient_checkpointing", "activation_checkpointing", "learning_rate", "optim")
        },
        "attention": getattr(trainer.model.config, "_attn_implementation", None),
    }


def trainable(model: torch.nn.Module) -> int:
    return sum(one.numel() for one in model.parameters() if one.requires_grad)


def callbacks(seen: Seen) -> list[TrainerCallback]:
    if os.environ.get("WATCHED") != "1":
        return [seen]
    from canary_mlflow import CanaryCallback

    return [seen, CanaryCallback(watch=None, system_metrics=False)]


def dpo(folder: str, *, own: dict[str, object] | None = None, **given: object) -> dict[str, object]:
    from trl import DPOConfig, DPOTrainer

    seen = Seen()
    args = DPOConfig(**common(folder, **{"max_length": 32, **given}))
    return finish(
        DPOTrainer(model=kept(folder), args=args, processing_class=tokenizer(), train_dataset=pairs(),
                   callbacks=callbacks(seen), **(own or {})), seen
    )  # fmt: skip


def sft(
    folder: str, *, own: dict[str, object] | None = None, pinned: bool = True, whole: bool = False, **given: object
) -> dict[str, object]:
    """`whole`: model and tokenizer come from a folder, and both are saved after the training."""
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    seen, named = Seen(), {field for field in SFTConfig.__dataclass_fields__}
    length = "max_length" if "max_length" in named else "max_seq_length"
    limits = {} if not pinned else {length: given.pop("length", 32)}
    args, start, words = SFTConfig(**common(folder, **limits, **given)), model, tokenizer()
    if whole:
        words.save_pretrained(place := str(Path(folder) / "model"))
        start, words = (lambda: kept(folder)), AutoTokenizer.from_pretrained(place)
    trainer = SFTTrainer(model=start(), args=args, processing_class=words, train_dataset=texts(),
                         callbacks=callbacks(seen), **(own or {}))  # fmt: skip
    found = finish(trainer, seen)
    if whole:
        trainer.save_model(place := str(Path(folder) / "saved"))
        words.save_pretrained(place)
    return found


def kto(folder: str, **given: object) -> dict[str, object]:
    try:
        from trl import KTOConfig, KTOTrainer
    except ImportError:
        from trl.experimental.kto import KTOConfig, KTOTrainer

    seen = Seen()
    args = KTOConfig(**common(folder, **given))
    return finish(
        KTOTrainer(model=model(), ref_model=model(), args=args, processing_class=tokenizer(), train_dataset=labelled(),
                   callbacks=callbacks(seen)), seen
    )  # fmt: skip


def reader(trainer: type) -> dict[str, object]:
    """The tokenizer, under the name that the release has for it."""
    import inspect

    old = "tokenizer" in inspect.signature(trainer.__init__).parameters
    return {"tokenizer" if old else "processing_class": tokenizer()}


def preference(name: str, folder: str, **given: object) -> dict[str, object]:
    import trl

    try:
        made, kind = getattr(trl, f"{name}Config"), getattr(trl, f"{name}Trainer")
    except (AttributeError, ImportError):
        from importlib import import_module

        module = import_module(f"trl.experimental.{name.lower()}")
        made, kind = getattr(module, f"{name}Config"), getattr(module, f"{name}Trainer")
    seen = Seen()
    args = made(**common(folder, **{"max_length": 32, **given}))
    return finish(
        kind(model=model(), args=args, train_dataset=pairs(), callbacks=callbacks(seen), **reader(kind)),
        seen,
    )


def reward(folder: str, **given: object) -> dict[str, object]:
    from transformers import LlamaForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    seen = Seen()
    set_seed(0)
    scorer = LlamaForSequenceClassification(config(num_labels=1))
    args = RewardConfig(**common(folder, **{"max_length": 32, **given}))
    return finish(
        RewardTrainer(model=scorer, args=args, processing_class=tokenizer(), train_dataset=pairs(),
                      callbacks=callbacks(seen)), seen
    )  # fmt: skip


def lora(kind: str | bool) -> object:
    from peft import LoraConfig

    return LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=kind, task_type="CAUSAL_LM"
    )


def olora(folder: str) -> dict[str, object]:
    """Training that saves its adapter, converted to a plain one, at its second step, and goes on."""
    from peft import get_peft_model
    from transformers import Trainer, TrainingArguments

    adapted = get_peft_model(model(), lora("olora"))
    start = Path(folder) / "start"
    adapted.peft_config["default"].init_lora_weights = True
    adapted.save_pretrained(start)
    adapted.peft_config["default"].init_lora_weights = "olora"

    class Saves(TrainerCallback):
        def on_step_end(self, args: object, state: object, control: object, **named: object) -> None:
            if state.global_step == 2:
                adapted.save_pretrained(Path(folder) / "saved", path_initial_model_for_weight_conversion=str(start))

    words = tokenizer()
    rows = texts().map(lambda row: {"input_ids": words(row["text"])["input_ids"][:6]}, remove_columns=["text"])
    rows = rows.map(lambda row: {"labels": row["input_ids"]})
    seen = Seen()
    trainer = Trainer(
        model=adapted, args=TrainingArguments(**common(folder)), train_dataset=rows,
        callbacks=[Saves(), *callbacks(seen)],
    )  # fmt: skip
    return finish(trainer, seen)


KINDS = {
    "dpo": dpo,
    "dpo-accumulation": lambda folder: dpo(folder, gradient_accumulation_steps=4),
    "dpo-prompt-length": lambda folder: dpo(folder, max_prompt_length=16),
    "cpo-accumulation": lambda folder: preference("CPO", folder, gradient_accumulation_steps=4),
    "orpo-accumulation": lambda folder: preference("ORPO", folder, gradient_accumulation_steps=4),
    "orpo-prompt-length": lambda folder: preference("ORPO", folder, max_prompt_length=16),
    "reward-accumulation": lambda folder: reward(folder, gradient_accumulation_steps=4),
    "kto": lambda folder: kto(folder, max_length=32),
    "kto-accumulation": lambda folder: kto(folder, max_length=32, gradient_accumulation_steps=4),
    "kto-prompt-length": lambda folder: kto(folder, max_length=32, max_prompt_length=16),
    "sft": sft,
    "sft-accumulation": lambda folder: sft(folder, gradient_accumulation_steps=4),
    "sft-defaults": lambda folder: sft(folder, pinned=False),
    "sft-packing": lambda folder: sft(folder, packing=True, packing_strategy="bfd", length=12),
    "sft-lora": lambda folder: sft(folder, own={"peft_config": lora(True)}),
    "whole-accumulation": lambda folder: sft(folder, whole=True, gradient_accumulation_steps=4),
    "whole-lora": lambda folder: sft(folder, whole=True, own={"peft_config": lora(True)}),
    "olora-save": olora,
}


def run(kinds: Mapping[str, Callable[[str], dict[str, object]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = kinds[sys.argv[1]](folder)
    print("SEEN " + json.dumps(found))


if __name__ == "__main__":
    run(KINDS)
