"""How a run learns: from examples, where the loss tells how well it does, or from rewards, where it does not."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum


class Paradigm(StrEnum):
    """How a training learns, and so what its loss tells. An RL loss is scaled by its own advantages: it rose in half of
    the healthy public GRPO histories seen."""

    SUPERVISED = "supervised"
    REINFORCEMENT = "reinforcement"


_SUPERVISED = ("sft", "dpo", "kto", "orpo", "cpo", "rm", "gkd")
# The last three compare answers that they draw themselves, so their loss stays near ln 2 however well they learn.
_REINFORCEMENT = ("ppo", "grpo", "rloo", "dapo", "gspo", "reinforce", "onlinedpo", "xpo", "nashmd")
_OF_PREFERENCES = frozenset({"chosen_reward", "rejected_reward", "reward_margin", "eval_margin"})
_OF_REWARDS = frozenset({"reward_mean", "reward_std", "score_mean", "advantage_mean", "response_length"})
_OF_POLICY_GRADIENTS = frozenset({"policy_loss", "clip_fraction", "approx_kl", "advantage_mean", "reward_std"})


def paradigm_of(algo: str, metrics: Collection[str]) -> Paradigm:
    """The paradigm by the algorithm's name, else by the recorded metrics; SUPERVISED if neither tells."""
    return named_paradigm(algo) or recorded_paradigm(metrics) or Paradigm.SUPERVISED


def named_paradigm(algo: str) -> Paradigm | None:
    """The paradigm by the algorithm's name; None if the name is unknown."""
    name = algo.lower()
    if name in _REINFORCEMENT:
        return Paradigm.REINFORCEMENT
    return Paradigm.SUPERVISED if name in _SUPERVISED or name.startswith("reward") else None


def recorded_paradigm(metrics: Collection[str]) -> Paradigm | None:
    """The paradigm by the metrics: by the marks of a policy gradient, or by rewards; None if nothing tells. A KL alone
    is no such mark: distillation has one. A reward model's training has a mean reward too, but only learning from
    preferences has metrics that set the preferred answer apart. An accuracy tells nothing: classifiers have one, and
    beside rewards it may be that of the answers."""
    if not _OF_POLICY_GRADIENTS.isdisjoint(metrics):
        return Paradigm.REINFORCEMENT
    if not _OF_PREFERENCES.isdisjoint(metrics):
        return Paradigm.SUPERVISED
    return None if _OF_REWARDS.isdisjoint(metrics) else Paradigm.REINFORCEMENT
