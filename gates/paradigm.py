"""How a run learns: from examples, so that its loss says how well, or from rewards, so that its loss does not."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum


class Paradigm(StrEnum):
    """What a training's loss is worth. An RL loss is scaled by its own advantages: it rose in half of the healthy
    public GRPO histories seen."""

    SUPERVISED = "supervised"
    REINFORCEMENT = "reinforcement"


_SUPERVISED = ("sft", "dpo", "kto", "orpo", "cpo", "rm", "gkd")
REINFORCEMENT = ("ppo", "grpo", "rloo")
OF_PREFERENCES = frozenset(
    {"chosen_reward", "rejected_reward", "reward_margin", "reward_accuracy", "eval_accuracy", "eval_margin"}
)
OF_REWARDS = frozenset({"reward_mean", "reward_std", "score_mean", "advantage_mean", "response_length"})
_OF_POLICY_GRADIENTS = frozenset({"policy_loss", "clip_fraction", "approx_kl"})


def paradigm_of(algo: str, metrics: Collection[str]) -> Paradigm:
    """By the algorithm's name, else by what was recorded: rewards, or the marks of a policy gradient. A KL alone is no
    such mark, distillation has one; and a reward model's training has a mean reward, but only learning from
    preferences has what sets the preferred apart."""
    name = algo.lower()
    if name in REINFORCEMENT:
        return Paradigm.REINFORCEMENT
    supervised = name in _SUPERVISED or name.startswith("reward") or not OF_PREFERENCES.isdisjoint(metrics)
    rewarded = not (OF_REWARDS | _OF_POLICY_GRADIENTS).isdisjoint(metrics)
    return Paradigm.REINFORCEMENT if rewarded and not supervised else Paradigm.SUPERVISED
