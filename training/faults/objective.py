"""Faults of what PPO strives for: its losses and its reward."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from training.config import FaultConfig
from training.faults.fault import ANY_AMOUNT, Fault

if TYPE_CHECKING:
    from torch import Tensor

    from training.rewards import Answers, Reward


class EntropyCollapse(Fault):
    """`strength` times the policy's entropy is added to the loss, as an entropy bonus of the wrong sign would."""

    strengths = ANY_AMOUNT

    def install(self, trainer: Any, fault: FaultConfig) -> None:
        from training.ppo.losses import token_entropy

        compute_loss = trainer.compute_loss

        def collapsing(model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, **kwargs: Any) -> Any:
            loss, outputs = compute_loss(model, inputs, return_outputs=True, **kwargs)
            entropy = token_entropy(outputs["logits"] / trainer.args.temperature)
            mean = (entropy * inputs["policy_mask"]).sum() / inputs["policy_tokens"]
            loss = loss + fault.strength * mean * trainer.args.world_size
            return (loss, outputs) if return_outputs else loss

        trainer.compute_loss = collapsing


class ValueDivergence(Fault):
    """The value loss enters with the wrong sign and `strength` times its weight: the critic runs from its targets."""

    strengths = ANY_AMOUNT

    def install(self, trainer: Any, fault: FaultConfig) -> None:
        trainer.clip = replace(trainer.clip, vf_coef=-fault.strength * trainer.clip.vf_coef)


class RewardHack(Fault):
    """The training reward has a bias for long answers: `strength` times the share of max_new_tokens that one takes.

    Held-out answers are scored without it, as people would score them.
    """

    strengths = ANY_AMOUNT

    def install(self, trainer: Any, fault: FaultConfig) -> None:
        assert fault.strength is not None
        true, collect = trainer.reward, trainer.collect
        biased = _biased(true, fault.strength)

        def collect_with_bias(iteration: int) -> Any:
            trainer.reward = biased
            try:
                return collect(iteration)
            finally:
                trainer.reward = true

        trainer.collect = collect_with_bias


def _biased(reward: Reward, strength: float) -> Reward:
    def score(answers: Answers) -> Tensor:
        return reward(answers) + strength * answers.response_mask.float().mean(1)

    return score
