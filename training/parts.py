"""Everything an algorithm is built from: model, tokenizer, data, adapter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from training import adapters, datasets, loading, models
from training.config import CanaryConfig
from training.datasets import DataStats

if TYPE_CHECKING:
    from datasets import Dataset
    from peft import PeftConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from training.devices import Device


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a trainer needs; data as datasets.Dataset with str columns prompt, chosen, rejected."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    train_dataset: Dataset
    eval_dataset: Dataset
    peft_config: PeftConfig | None
    data: DataStats
    model_revision: str  # identifies the start weights: part of what makes two runs comparable


def build_parts(config: CanaryConfig, device: Device | None = None) -> Parts:
    """Load everything; the same configuration gives the same parts, whatever was drawn from global generators.

    Without `device` the configured hardware is settled here. Raises SetupError in one line.
    """
    from training.devices import settle

    device = device or settle(config.hardware)
    folder = models.model_folder(config.model)
    tokenizer = loading.load_tokenizer(folder)
    train, held_out, stats = datasets.load(config, tokenizer)
    model = loading.load_model(config, folder, tokenizer, device)
    return Parts(
        model=model,
        tokenizer=tokenizer,
        train_dataset=train,
        eval_dataset=held_out,
        peft_config=adapters.peft_config(config.adapter, model),
        data=stats,
        model_revision=models.revision_of(config.model, folder),
    )
