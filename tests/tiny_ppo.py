"""A PPO run that takes a fraction of a second, for the tests of training.ppo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast, PrinterCallback

from canary_mlflow.training.ppo.settings import PPOConfig
from canary_mlflow.training.ppo.trainer import PPOTrainer
from canary_mlflow.training.rewards import Answers

EOS, PAD = 0, 1
PROMPTS = [f"the {a} {b} the {c}" for a in ("cat", "dog") for b in ("sees", "hunts a") for c in ("sea", "old house")]


def tiny_tokenizer(pad_token: str = "<pad>") -> PreTrainedTokenizerFast:
    """A byte-level BPE, trained here and now."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<eos>", "<pad>"]
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(PROMPTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<eos>", pad_token=pad_token, padding_side="left")


def tiny_model(seed: int = 0, **options: Any) -> GPTNeoXForCausalLM:
    """Pythia's architecture, 64 wide and 2 layers deep, with spread-out weights so that policies differ."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    return GPTNeoXForCausalLM(
        GPTNeoXConfig(vocab_size=280, initializer_range=0.1, eos_token_id=EOS, pad_token_id=PAD, **sizes, **options)
    )


def even_share(answers: Answers) -> torch.Tensor:
    """10 x the share of even token ids: a reward that is noise-free, bounded and easy to raise."""
    even = (answers.response_ids % 2 == 0) & answers.response_mask
    return 10 * even.sum(1).float() / answers.response_mask.sum(1)


def tiny_trainer(folder: Path, **options: Any) -> PPOTrainer:
    """A trainer on the tiny parts; options are PPOConfig's or PPOTrainer's."""
    own = {"model", "tokenizer", "reward", "peft_config", "callbacks", "ref_model", "sampler", "train_prompts"}
    parts = {name: options.pop(name) for name in own & options.keys()}
    settings: dict[str, Any] = {
        "iterations": 2,
        "rollout_batch_size": 8,
        "ppo_epochs": 2,
        "max_new_tokens": 6,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "seed": 1,
    }
    trainer = PPOTrainer(
        args=PPOConfig(output_dir=str(folder), **settings | options),
        **{
            "model": parts.pop("model", None) or tiny_model(),
            "tokenizer": parts.pop("tokenizer", None) or tiny_tokenizer(),
            "train_prompts": PROMPTS,
            "eval_prompts": PROMPTS[:3],
            "reward": even_share,
            **parts,
        },
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def iterations_of(trainer: PPOTrainer) -> list[dict[str, Any]]:
    """The log rows that carry an iteration's metrics."""
    return [row for row in trainer.state.log_history if "kl" in row]


def steps_of(trainer: PPOTrainer) -> list[dict[str, Any]]:
    """The log rows of optimizer steps."""
    return [row for row in trainer.state.log_history if "grad_norm" in row]


def weights_of(trainer: PPOTrainer) -> dict[str, torch.Tensor]:
    """A copy of everything that is trained or frozen in the module."""
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two copies agree bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
