"""The settings of a reward, checked and identified without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import List, Optional

from omegaconf import MISSING

from canary_mlflow.errors import UsageError
from canary_mlflow.training import values

# OmegaConf reads these annotations at run time, hence typing's Optional and List.

KINDS = ("length", "token_share", "model", "function")


@dataclass
class RewardConfig:
    """A rule on the answer's tokens, a reward model, or the user's own function."""

    kind: str = MISSING  # length | token_share | model | function
    scale: float = 1.0  # multiplies the raw score; the weight if there are several rewards
    target: int = 0  # length: the desired number of answer tokens
    tokens: List[str] = field(default_factory=list)  # token_share: first letters that count
    min_tokens: int = 1  # token_share: a shorter answer counts as if it had so many
    path: Optional[str] = None  # model: folder or hub id of a sequence classifier; function: pkg.module:name
    precheck: bool = True  # model: tried on the data's pairs before anything is recorded

    def check(self, key: str = "algo.reward") -> None:
        """Raise UsageError naming the first key with whose value no answer can be scored."""
        values.one_of(f"{key}.kind", self.kind, KINDS)
        values.positive(f"{key}.scale", self.scale)
        if self.kind == "length" and self.target < 1:
            raise UsageError(f"{key}.target is {self.target}; expected at least 1 token")
        if self.kind == "token_share" and not any(letters.strip() for letters in self.tokens):
            raise UsageError(f"{key}.tokens is empty; expected first letters that count, such as [a,b]")
        if self.kind == "token_share" and self.min_tokens < 1:
            raise UsageError(f"{key}.min_tokens is {self.min_tokens}; expected at least 1")
        if self.kind == "model" and not self.path:
            raise UsageError(f"{key}.path is not set; expected a folder or hub id of a sequence classifier")
        if self.kind == "function" and not self.path:
            raise UsageError(
                f"{key}.path is not set; expected a function's import path, such as my_package.rewards:polite"
            )

    def work(self, revision: str) -> dict[str, str]:
        """What identifies the meaning of a score: without fields that the kind does not use, and without the place of a
        model's files. `revision`: what identifies the reward model, or the source of the function."""
        own = {
            "length": {"reward_target": str(self.target)},
            "token_share": {
                "reward_tokens": ",".join(sorted(self.tokens)),
                "reward_min_tokens": str(self.min_tokens),
            },
            "model": {"reward_revision": revision},
            "function": {"reward_path": str(self.path), "reward_revision": revision},
        }
        return {"reward": self.kind, "reward_scale": str(float(self.scale)), **own[self.kind]}


def work_of_rewards(rewards: Sequence[RewardConfig], revisions: Sequence[str]) -> dict[str, str]:
    """The same for all rewards together: the first under its own keys, the others under `reward_2`, `reward_3` …"""
    found: dict[str, str] = {}
    for number, (reward, revision) in enumerate(zip(rewards, revisions, strict=True), start=1):
        word = "reward" if number == 1 else f"reward_{number}"
        found |= {key.replace("reward", word, 1): value for key, value in reward.work(revision).items()}
    return found


def reads_columns(rewards: Sequence[RewardConfig]) -> bool:
    """Whether one of them may read other columns of the data than the prompts."""
    return any(reward.kind == "function" for reward in rewards)
