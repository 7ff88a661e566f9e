"""TRL 1.12.0's PPOTrainer on small parts: what the recording and the benchmark have in common.

TRL itself is imported where it is used: it comes from the folder that `make oracle` fills.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, PrinterCallback

EOS, PAD = 0, 1

# Token ids and their mask [R, L] -> the score [R, L] of every prefix.
Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Words w2, w3, … next to the two special tokens."""
    ids = {"<eos>": EOS, "<pad>": PAD, **{f"w{i}": i for i in range(2, vocabulary)}}
    words = Tokenizer(WordLevel(ids, unk_token="w2"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<pad>", padding_side="left")


class _Echo(torch.nn.Module):
    """A backbone whose hidden state is the input itself: rule rewards can then be a score head."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> Any:
        hidden = torch.stack([input_ids, attention_mask.long()], dim=-1).float()
        return type("Output", (), {"hidden_states": (hidden,)})()


class RuleReward(torch.nn.Module):
    """A rule in the shape of the reward model that TRL asks for."""

    base_model_prefix = "backbone"

    def __init__(self, rule: Score) -> None:
        super().__init__()
        self.backbone = _Echo()
        self.rule = rule

    def score(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.rule(*hidden.unbind(-1)).unsqueeze(-1)


def trl_trainer(
    trainer_class: Any,
    *,
    policy: Any,
    reference: Any,
    value: Any,
    rule: Score,
    tokenizer: Any,
    prompts: Sequence[str],
    rows: int,
    iterations: int,
    callbacks: Sequence[Any] = (),
    **settings: Any,
) -> Any:
    """TRL's trainer, or a subclass of it: `rows` answers to an iteration, and nothing but training; on the CPU if the
    settings do not say otherwise."""
    from trl.experimental.ppo import PPOConfig

    trainer = trainer_class(
        args=PPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=1,
            num_mini_batches=1,
            total_episodes=rows * iterations,
            num_sample_generations=0,
            local_rollout_forward_batch_size=rows,
            stop_token="eos",
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            **{"use_cpu": True, "bf16": False} | settings,
        ),
        processing_class=tokenizer,
        model=policy,
        ref_model=reference,
        reward_model=RuleReward(rule),
        value_model=value,
        train_dataset=Dataset.from_dict({"input_ids": [tokenizer(text)["input_ids"] for text in prompts]}),
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer
