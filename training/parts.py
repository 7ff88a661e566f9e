"""Everything an algorithm is built from: model, tokenizer, data, adapter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from canary_mlflow.training import adapters, datasets, loading, models, reward_sources
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.datasets import DataStats
from canary_mlflow.training.reward_sources import revision_of

if TYPE_CHECKING:
    from datasets import Dataset
    from peft import PeftConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from canary_mlflow.training.devices import Device


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a run begins with, and what identifies its work; the model's weights are not loaded yet."""

    folder: Path  # the model's files
    tokenizer: PreTrainedTokenizerBase
    train_dataset: Dataset
    eval_dataset: Dataset
    data: DataStats
    model_revision: str  # identifies the start weights: part of what makes two runs comparable
    reward_revisions: tuple[str, ...]  # digest of each reward model's files or function's source; else ""


@dataclass(frozen=True, kw_only=True)
class Parts(Inputs):
    """What a trainer needs; data as datasets.Dataset with str columns prompt, chosen, rejected."""

    model: PreTrainedModel
    peft_config: PeftConfig | None


def prepare_inputs(config: CanaryConfig) -> Inputs:
    """Read the data and fit it to the model's tokens, independent of the seed. Raises SetupError in one line."""
    folder = models.model_folder(config.model)
    tokenizer = loading.load_tokenizer(folder)
    if config.model.chat_template:
        tokenizer.chat_template = models.template_of(config.model)
    train, held_out, stats = datasets.load(config, tokenizer)
    revisions = tuple(map(revision_of, config.algo.scored_by()))
    for reward in config.algo.scored_by():
        if reward.kind == "function":
            reward_sources.try_function(
                reward.path or "", train.select(range(min(len(train), reward_sources.TRIED))).to_list()
            )
    return Inputs(
        folder=folder,
        tokenizer=tokenizer,
        train_dataset=train,
        eval_dataset=held_out,
        data=stats,
        model_revision=models.revision_of(config.model, folder),
        reward_revisions=revisions,
    )


def build_parts(config: CanaryConfig, device: Device | None = None, inputs: Inputs | None = None) -> Parts:
    """Load everything; the same configuration gives the same parts, whatever was drawn from global generators.

    Without `device`, the configured hardware is settled here; without `inputs`, they are prepared here. Raises
    SetupError in one line.
    """
    from canary_mlflow.training.devices import settle

    device, inputs = device or settle(config.hardware), inputs or prepare_inputs(config)
    model = loading.load_model(config, inputs.folder, inputs.tokenizer, device)
    return Parts(**vars(inputs), model=model, peft_config=adapters.peft_config(config.adapter, model, config.algo.head))
