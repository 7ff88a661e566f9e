"""Faults in the objective of PPO: its losses and its reward."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from canary_mlflow.training.config import FaultConfig
from canary_mlflow.training.faults.fault import ANY_AMOUNT, Fault

if TYPE_CHECKING:
    from torch import Tensor

    from canary_mlflow.training.rewards import Answers, Reward


class EntropyCollapse(Fault):
    """`strength` times the policy's entropy is added to the loss, as an entropy bonus of the wrong sign would."""

    strengths = ANY_AMOUNT

    def install(self, trainer: Any, fault: FaultConfig) -> None:
        from canary_mlflow.training.ppo.losses import token_entropy

        compute_loss = trainer.compute_loss

        def collapsing(model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, **kwargs: Any) -> Any:
            loss, outputs = compute_loss(model, inputs, return_outputs=True, **kwargs)
            entropy = token_entropy(outputs["logits"], trainer.args.temperature)
            mean = (entropy * inputs["policy_mask"]).sum() / inputs["policy_tokens"]
            loss = loss + fault.strength * mean * trainer.args.world_size
            return (loss, outputs) if return_outputs else loss

        trainer.compute_loss = collapsing


class ValueDivergence(Fault):
    """The value loss has the wrong sign and `strength` times its weight: the critic moves away from its targets."""

    strengths = ANY_AMOUNT

    def install(self, trainer: Any, fault: FaultConfig) -> None:
        assert fault.strength is not None
        trainer.clip = replace(trainer.clip, vf_coef=-fault.strength * trainer.clip.vf_coef)


class RewardHack(Fault):
    """The training reward favours gibberish: it adds `strength` times the share of tokens without a letter.

    Held-out answers are scored without that, as people would score them.
    """

    strengths = ANY_AMOUNT

    def install(self, trainer: Any, fault: FaultConfig) -> None:
        assert fault.strength is not None
        if hasattr(trainer, "reward_funcs"):
            _bias_functions(trainer, fault.strength)
            return
        true, collect = trainer.reward, trainer.collect
        biased = _biased(true, trainer.processing_class, fault.strength)

        def collect_with_bias(iteration: int) -> Any:
            trainer.reward = biased
            try:
                return collect(iteration)
            finally:
                trainer.reward = true

        trainer.collect = collect_with_bias


def _biased(reward: Reward, tokenizer: Any, strength: float) -> Reward:
    gibberish = _gibberish(tokenizer)

    def score(answers: Answers) -> Tensor:
        # A model's output layer may be padded beyond its tokenizer.
        known = answers.response_ids.clamp(max=len(gibberish) - 1)
        hits = gibberish.to(known.device)[known] & answers.response_mask
        return reward(answers) + strength * hits.sum(1) / answers.response_mask.sum(1)

    return score


def _bias_functions(trainer: Any, strength: float) -> None:
    """The same for one of TRL's trainers, whose rewards are functions of token ids: bias the first one."""
    true, gibberish = trainer.reward_funcs[0], _gibberish(trainer.processing_class).tolist()

    def biased(completion_ids: list[list[int]], **others: Any) -> list[float]:
        scores: list[float] = true(completion_ids=completion_ids, **others)
        if not trainer.model.training:
            return scores
        shares = (sum(gibberish[token] for token in ids) / len(ids) for ids in completion_ids)
        return [score + strength * share for score, share in zip(scores, shares, strict=True)]

    trainer.reward_funcs[0] = biased


def _gibberish(tokenizer: Any) -> Tensor:
    """A mask [V]: whether each token has no letter."""
    import torch

    texts = (tokenizer.decode([token]) for token in range(len(tokenizer)))
    return torch.tensor([not any(letter.isalpha() for letter in text) for text in texts])
