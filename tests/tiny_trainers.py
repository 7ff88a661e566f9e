"""Every trainer that the callback drops into, on a model that takes milliseconds, built as users build them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPTNeoXConfig,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

TEXT = "a cat sat on the mat and the dog ran home while birds sang in tall green trees"
WORDS = TEXT.split()
LINES = [" ".join(WORDS[(7 * i + 3 * j) % len(WORDS)] for j in range(4 + i % 9)) for i in range(80)]
PAIRS = [{"prompt": line[:10], "chosen": line[10:], "rejected": line[::-1]} for line in LINES if len(line) > 12]


def save_tiny(folder: str) -> str:
    """Write a two-layer GPT-NeoX and its tokenizer into `folder`."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        LINES, BpeTrainer(vocab_size=300, special_tokens=["<pad>", "<eos>"], initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<pad>", eos_token="<eos>")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    special = {"eos_token_id": 1, "pad_token_id": 0}
    config = GPTNeoXConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **special, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def arguments(kind: type[Any], place: Path, **own: Any) -> Any:
    """Arguments of a short, silent run on the CPU."""
    usual = {
        "output_dir": str(place / "out"),
        "max_steps": 8,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "learning_rate": 3e-3,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
    }
    return kind(**usual | own)


def sft(tiny: str, place: Path, callbacks: list[Any], peft_config: Any = None, **own: Any) -> Any:
    from trl import SFTConfig, SFTTrainer

    texts = Dataset.from_list([{"text": line} for line in LINES])
    return SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny),
        args=arguments(SFTConfig, place, activation_checkpointing=False, **own),
        processing_class=AutoTokenizer.from_pretrained(tiny),
        train_dataset=texts,
        eval_dataset=texts.select(range(4)),
        peft_config=peft_config,
        callbacks=callbacks,
    )


def dpo(
    tiny: str, place: Path, callbacks: list[Any], peft_config: Any = None, ref_model: Any = None, **own: Any
) -> Any:
    from trl import DPOConfig, DPOTrainer

    return DPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny),
        ref_model=ref_model,
        args=arguments(DPOConfig, place, activation_checkpointing=False, **own),
        processing_class=AutoTokenizer.from_pretrained(tiny),
        train_dataset=Dataset.from_list(PAIRS),
        eval_dataset=Dataset.from_list(PAIRS[:4]),
        peft_config=peft_config,
        callbacks=callbacks,
    )


def kto(tiny: str, place: Path, callbacks: list[Any], **own: Any) -> Any:
    from trl import KTOConfig, KTOTrainer

    rows = [
        {"prompt": pair["prompt"], "completion": pair[kind], "label": kind == "chosen"}
        for pair in PAIRS
        for kind in ("chosen", "rejected")
    ]
    return KTOTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny),
        args=arguments(KTOConfig, place, activation_checkpointing=False, **own),
        processing_class=AutoTokenizer.from_pretrained(tiny),
        train_dataset=Dataset.from_list(rows),
        callbacks=callbacks,
    )


def reward(tiny: str, place: Path, callbacks: list[Any], **own: Any) -> Any:
    from trl import RewardConfig, RewardTrainer

    return RewardTrainer(
        model=AutoModelForSequenceClassification.from_pretrained(tiny, num_labels=1),
        args=arguments(RewardConfig, place, activation_checkpointing=False, **own),
        processing_class=AutoTokenizer.from_pretrained(tiny),
        train_dataset=Dataset.from_list(PAIRS),
        callbacks=callbacks,
    )


def length_of(completions: list[str], **_: Any) -> list[float]:
    """A reward that any policy can raise."""
    return [float(len(completion.split())) for completion in completions]


def on_policy(kind: str, tiny: str, place: Path, callbacks: list[Any], **own: Any) -> Any:
    """GRPO or RLOO."""
    import trl

    tokenizer = AutoTokenizer.from_pretrained(tiny, padding_side="left")
    usual = {"activation_checkpointing": False, "num_generations": 2, "max_completion_length": 8, "beta": 0.05}
    return getattr(trl, f"{kind}Trainer")(
        model=tiny,  # by path, which is where the reference comes from
        reward_funcs=length_of,
        args=arguments(getattr(trl, f"{kind}Config"), place, **usual | own),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": pair["prompt"]} for pair in PAIRS]),
        callbacks=callbacks,
    )


def grpo(tiny: str, place: Path, callbacks: list[Any], **own: Any) -> Any:
    return on_policy("GRPO", tiny, place, callbacks, **own)


def rloo(tiny: str, place: Path, callbacks: list[Any], **own: Any) -> Any:
    return on_policy("RLOO", tiny, place, callbacks, **own)


class Line(torch.nn.Module):
    """y = w x, with a loss of its own, as Transformers' models have."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((x @ self.w - labels) ** 2).mean()}


def trainer(tiny: str, place: Path, callbacks: list[Any], **own: Any) -> Trainer:
    """Transformers' own, on a module that is not a language model."""
    torch.manual_seed(1)
    x = torch.randn(64, 4)
    data = [{"x": row, "labels": row.sum()} for row in x]
    args = arguments(TrainingArguments, place, **{"remove_unused_columns": False, "learning_rate": 0.1} | own)
    return Trainer(model=Line(), args=args, train_dataset=data, callbacks=callbacks)


BUILDERS = {"sft": sft, "dpo": dpo, "kto": kto, "reward": reward, "grpo": grpo, "rloo": rloo, "trainer": trainer}


def build(kind: str, tiny: str, place: Path, callbacks: list[Any], **own: Any) -> Any:
    """A trainer of this kind, without the lines that it would print."""
    built = BUILDERS[kind](tiny, place, callbacks, **own)
    built.remove_callback(PrinterCallback)
    return built
