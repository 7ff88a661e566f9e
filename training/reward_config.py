"""What answers are paid for: the settings of a reward, checked and told apart without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional

from omegaconf import MISSING

from canary_mlflow.errors import UsageError
from training import values

# OmegaConf reads these annotations at run time, hence typing's Optional and List.

KINDS = ("length", "token_share", "model")


@dataclass
class RewardConfig:
    """A rule on the answer's tokens, or a reward model."""

    kind: str = MISSING  # length | token_share | model
    scale: float = MISSING  # multiplies the raw score
    target: int = MISSING  # length: the wanted number of answer tokens
    tokens: List[str] = field(default_factory=list)  # token_share: first letters that count
    min_tokens: int = MISSING  # token_share: a shorter answer counts as if it had so many
    path: Optional[str] = None  # model: folder or hub id of a sequence classifier

    def check(self) -> None:
        """Raise UsageError naming the first key whose value no answer can be scored with."""
        values.one_of("algo.reward.kind", self.kind, KINDS)
        values.positive("algo.reward.scale", self.scale)
        if self.kind == "length" and self.target < 1:
            raise UsageError(f"algo.reward.target is {self.target}; expected at least 1 token")
        if self.kind == "token_share" and not any(letters.strip() for letters in self.tokens):
            raise UsageError("algo.reward.tokens is empty; expected first letters that count, such as [a,b]")
        if self.kind == "token_share" and self.min_tokens < 1:
            raise UsageError(f"algo.reward.min_tokens is {self.min_tokens}; expected at least 1")
        if self.kind == "model" and not self.path:
            raise UsageError("algo.reward.path is not set; expected a folder or hub id of a sequence classifier")

    def work(self, revision: str) -> dict[str, str]:
        """What a score means: fields that the kind does not use make no difference, nor does where a model's files
        lie. `revision`: what identifies the reward model."""
        own = {
            "length": {"reward_target": str(self.target)},
            "token_share": {
                "reward_tokens": ",".join(sorted(self.tokens)),
                "reward_min_tokens": str(self.min_tokens),
            },
            "model": {"reward_revision": revision},
        }
        return {"reward": self.kind, "reward_scale": str(float(self.scale)), **own[self.kind]}
