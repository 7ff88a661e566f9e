"""Runs one PPO iteration of trl 1.12.0 on a tiny model and writes everything it computed to an .npz file.

    make oracle
    PYTHONPATH=.oracle:tests python -m oracle.record tests/data/trl_ppo_1_12_0.npz

The file holds the start weights, the rollout and TRL's own intermediate results: what
tests/training/test_ppo_parity.py compares with. Half of the answers are made to end early.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from oracle.trl_ppo import EOS, PAD, trl_trainer, word_tokenizer
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, GPTNeoXForSequenceClassification

ROWS, TOKENS, VOCABULARY = 8, 12, 48
# Early ends by row; -1: the answer fills all positions. The last one ends at the last position.
ENDS = (-1, 3, -1, 0, 7, -1, 10, 11)
SETTINGS: dict[str, Any] = {
    "kl_coef": 0.2,
    "cliprange": 0.1,
    "cliprange_value": 0.05,
    "vf_coef": 0.1,
    "gamma": 0.98,
    "lam": 0.9,
    "temperature": 0.8,
    "missing_eos_penalty": 0.3,
    "num_ppo_epochs": 4,
    "learning_rate": 2e-3,
}


def neox_config() -> GPTNeoXConfig:
    """Small enough for its weights to be part of a fixture."""
    return GPTNeoXConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.2,
        num_labels=1,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )


def prompts() -> list[str]:
    """Prompts of different lengths, so that padding matters."""
    random = np.random.default_rng(5)
    return [" ".join(f"w{i}" for i in random.integers(2, VOCABULARY, size=3 + row % 4)) for row in range(ROWS)]


def mean_token(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean token id of prompt and answer so far, over 10: any rule would do."""
    return (ids * mask).cumsum(1) / mask.cumsum(1).clamp(min=1) / 10


def record() -> dict[str, np.ndarray]:
    """One iteration of TRL's trainer; arrays [R, T] unless their name says otherwise."""
    from trl.experimental.ppo import PPOTrainer, ppo_trainer

    torch.manual_seed(11)
    reference = GPTNeoXForCausalLM(neox_config()).eval()
    policy = GPTNeoXForCausalLM(neox_config())
    policy.load_state_dict({name: w + 0.02 * torch.randn_like(w) for name, w in reference.state_dict().items()})
    value = GPTNeoXForSequenceClassification(neox_config())
    found: dict[str, np.ndarray] = {}
    for name, model in (("policy", policy), ("reference", reference), ("value", value)):
        found |= {f"{name}/{key}": w.detach().numpy().copy() for key, w in model.state_dict().items()}

    generate = ppo_trainer.batch_generation

    def generate_and_end(model: Any, *args: Any) -> Any:
        sequences, _ = generate(model, *args)
        width = sequences.shape[1] - TOKENS
        for row, end in enumerate(ENDS):
            answer = sequences[row, width:]
            answer[answer <= PAD] = 2  # no ends but ours
            if end >= 0:
                answer[end], answer[end + 1 :] = EOS, PAD
        # What sampling saw was another continuation; TRL's own forward pass sees this one.
        logits = ppo_trainer.forward(model, sequences, PAD).logits[:, width - 1 : -1]
        return sequences, logits / (SETTINGS["temperature"] + 1e-7)

    class Recorder(PPOTrainer):
        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            caller = sys._getframe(1).f_locals
            names = (
                "queries responses logprobs ref_logprobs values scores kl rewards advantages returns padding_mask "
                "padding_mask_p1 approxkl_stats pg_clipfrac_stats pg_loss_stats vf_loss_stats vf_clipfrac_stats "
                "ratio_stats"
            )
            for name in names.split():
                found[name] = caller[name].detach().numpy().copy()
            found["mean_kl"] = np.float32(logs["objective/kl"])

    ppo_trainer.batch_generation = generate_and_end
    try:
        trainer = trl_trainer(
            Recorder,
            policy=policy,
            reference=reference,
            value=value,
            rule=mean_token,
            tokenizer=word_tokenizer(VOCABULARY),
            prompts=prompts(),
            rows=ROWS,
            iterations=1,
            response_length=TOKENS,
            lr_scheduler_type="constant",
            seed=3,
            **SETTINGS,
        )
        trainer.train()
    finally:
        ppo_trainer.batch_generation = generate
    return found


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(target, **record())
    print(f"{target}: {target.stat().st_size / 1024:.0f} KiB")
