"""Reward models as folders, good and bad ones, on the embedded model."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tiny_trainers import arguments
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from canary_mlflow.training.assets.tiny import tiny_model_folder
from canary_mlflow.training.datasets import embedded
from canary_mlflow.training.datasets.rows import shuffled

Change = Callable[[Any], None]
DRAWN: dict[str, tuple[Any, Any]] = {
    "Llama": (LlamaConfig, LlamaForSequenceClassification),
    "BERT": (BertConfig, BertForSequenceClassification),
    "RoBERTa": (RobertaConfig, RobertaForSequenceClassification),
}


def trained(folder: Path, seed: int = 0, steps: int = 60) -> str:
    """A good one: TRL's trainer on the embedded pairs that no check looks at."""
    from datasets import Dataset
    from trl import RewardConfig, RewardTrainer

    rows = map(embedded.make_row, shuffled(embedded.PROMPTS, embedded.KEY)[embedded.HELD_OUT :][: 8 * steps])
    torch.manual_seed(seed)
    own = {"max_steps": steps, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "seed": seed}
    args = arguments(RewardConfig, folder, activation_checkpointing=False, **own)
    reader = AutoTokenizer.from_pretrained(tiny_model_folder())
    trainer = RewardTrainer(
        model=_embedded(),
        args=args,
        processing_class=reader,
        train_dataset=Dataset.from_list(
            [{"prompt": row.prompt, "chosen": row.chosen, "rejected": row.rejected} for row in rows]
        ),
    )
    trainer.train()
    return _saved(trainer.model, reader, folder / "model")


def untrained(folder: Path, seed: int) -> str:
    """A new head on the embedded model, saved with it: nothing in its files says that it is random."""
    torch.manual_seed(seed)
    return _saved(_embedded(), AutoTokenizer.from_pretrained(tiny_model_folder()), folder)


def changed(source: str, folder: Path, change: Change) -> str:
    """A copy with another head."""
    model = AutoModelForSequenceClassification.from_pretrained(source)
    with torch.no_grad():
        change(model.score.weight)
    return _saved(model, AutoTokenizer.from_pretrained(source), folder)


def drawn(seed: int) -> Change:
    """A head drawn at random, as an untrained one is."""
    return lambda weight: weight.normal_(0.0, 0.02, generator=torch.Generator().manual_seed(seed))


def reads_padding(source: str, folder: Path) -> str:
    """A copy that takes another token for padding than its tokenizer."""
    model = AutoModelForSequenceClassification.from_pretrained(source)
    model.config.pad_token_id = len(AutoTokenizer.from_pretrained(source)) - 1
    return _saved(model, AutoTokenizer.from_pretrained(source), folder)


def drawn_whole(name: str, folder: Path, seed: int) -> str:
    """A small model of another architecture, of which nothing was trained."""
    config, model = DRAWN[name]
    reader = AutoTokenizer.from_pretrained(tiny_model_folder())
    torch.manual_seed(seed)
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    own = config(vocab_size=len(reader), num_labels=1, pad_token_id=reader.pad_token_id, **small)
    return _saved(model(own), reader, folder)


def by_length(folder: Path) -> str:
    """One that scores how long a text is: its states are the places of the last tokens on a half circle."""
    reader = AutoTokenizer.from_pretrained(tiny_model_folder())
    config = GPT2Config(vocab_size=len(reader), n_positions=256, n_embd=4, n_layer=1, n_head=1, num_labels=1,
                        pad_token_id=reader.pad_token_id)  # fmt: skip
    model = GPT2ForSequenceClassification(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0)
        angles = math.pi * (torch.arange(256) / 256 - 0.5)
        model.transformer.wpe.weight[:, 0], model.transformer.wpe.weight[:, 2] = angles.cos(), -angles.cos()
        model.transformer.wpe.weight[:, 1], model.transformer.wpe.weight[:, 3] = angles.sin(), -angles.sin()
        model.score.weight.copy_(torch.tensor([[0.0, 1.0, 0.0, -1.0]]))
    return _saved(model, reader, folder)


def _embedded() -> Any:
    return AutoModelForSequenceClassification.from_pretrained(tiny_model_folder(), num_labels=1)


def _saved(model: Any, reader: Any, folder: Path) -> str:
    model.save_pretrained(folder)
    reader.save_pretrained(folder)
    return str(folder)
