"""How a run learns: from examples, where the loss tells how well it does, or from rewards, where it does not."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum


class Paradigm(StrEnum):
    """How a training learns, and so what its loss tells. An RL loss is scaled by its own advantages: it rose in half of
    the healthy public GRPO histories seen."""

    SUPERVISED = "supervised"
    REINFORCEMENT = "reinforcement"


# A trainer's name begins or ends with one of them: papers and releases make ever new ones of these, such as Dr. GRPO,
# REINFORCE++ and recurrent PPO. The first three compare answers that they draw themselves, so their loss stays near
# ln 2 however well they learn.
_REINFORCEMENT = (
    "onlinedpo", "xpo", "nashmd", "grpo", "ppo", "rloo", "dapo", "vapo", "gspo", "gmpo", "cispo", "sapo", "remax",
    "reinforce", "policygradient", "a2c", "a3c", "sac", "td3", "ddpg", "dqn",
)  # fmt: skip
_SUPERVISED = ("sft", "dpo", "kto", "orpo", "cpo", "simpo", "gkd", "reward")
# Too short, or no kind of what it ends with: the metrics tell what SDPO, GDPO and DDPO are, which learn from rewards.
_WHOLE: dict[str, Paradigm | None] = {
    "rm": Paradigm.SUPERVISED, "sppo": Paradigm.SUPERVISED, "sdpo": None, "gdpo": None, "ddpo": None
}  # fmt: skip
_OF_PREFERENCES = frozenset({"chosen_reward", "rejected_reward", "reward_margin", "eval_margin"})
_OF_REWARDS = frozenset({"reward_mean", "reward_std", "score_mean", "advantage_mean", "response_length"})
_OF_POLICY_GRADIENTS = frozenset({"policy_loss", "clip_fraction", "approx_kl", "advantage_mean", "reward_std"})


def is_policy_gradient(metrics: Collection[str]) -> bool:
    """Whether the metrics are ones that nothing but a policy gradient has."""
    return not _OF_POLICY_GRADIENTS.isdisjoint(metrics)


def paradigm_of(algo: str, metrics: Collection[str]) -> Paradigm:
    """The paradigm by the algorithm's name, else by the recorded metrics; SUPERVISED if neither tells."""
    return named_paradigm(algo) or recorded_paradigm(metrics) or Paradigm.SUPERVISED


def named_paradigm(algo: str) -> Paradigm | None:
    """The paradigm by the algorithm's name; None if the name is unknown."""
    name = "".join(filter(str.isalnum, algo.lower()))
    if name in _WHOLE:
        return _WHOLE[name]
    for stems, paradigm in ((_REINFORCEMENT, Paradigm.REINFORCEMENT), (_SUPERVISED, Paradigm.SUPERVISED)):
        if name.startswith(stems) or name.endswith(stems):
            return paradigm
    return None


def recorded_paradigm(metrics: Collection[str]) -> Paradigm | None:
    """The paradigm by the metrics: by the marks of a policy gradient, or by rewards; None if nothing tells. A KL alone
    is no such mark: distillation has one. A reward model's training has a mean reward too, but only learning from
    preferences has metrics that set the preferred answer apart. An accuracy tells nothing: classifiers have one, and
    beside rewards it may be that of the answers."""
    if is_policy_gradient(metrics):
        return Paradigm.REINFORCEMENT
    if not _OF_PREFERENCES.isdisjoint(metrics):
        return Paradigm.SUPERVISED
    return None if _OF_REWARDS.isdisjoint(metrics) else Paradigm.REINFORCEMENT
