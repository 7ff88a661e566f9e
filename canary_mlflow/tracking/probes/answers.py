"""What a policy answers while it trains: repetition, empty answers, and the best and the worst of a step.

For TRL's GRPO and RLOO, and our PPO. The texts go to the run's samples, if these are on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from canary_mlflow.tracking.probes import Probe, Row, Setting
from canary_mlflow.tracking.probes.hooks import replace_method
from canary_mlflow.tracking.reading.samples import Answer

REWARDS = "_calculate_rewards"  # of TRL's trainers: (inputs, prompts, completions, token ids) to rewards [B, functions]
ROLLOUT = "last_rollout"  # of our PPO: an iteration's answers
LOOKED_AT = 64  # answers of a step for repetition: more would cost time but not change the mean
GRAM = 3  # tokens
KEPT = 2  # best and worst answers of a step
LOOKS = 10  # steps of a run whose best and worst are kept


class Answers(Probe):
    """`repetition`: the share of an answer's tokens that complete a run of three tokens seen before in it, as a mean
    over answers. `empty_share`: the share of answers without a token except their end."""

    name = "answers"

    def __init__(self) -> None:
        self._row: Row = {}
        self._begun = 0
        self._every = 1
        self._samples: Any = None
        self._trainer: Any = None
        self._rolls_out = False
        self._seen: Any = None  # the last rollout of PPO's that was looked at
        self._undo: Callable[[], None] | None = None

    def start(self, setting: Setting) -> None:
        if setting.algo not in ("grpo", "rloo", "ppo") or setting.trainer is None:
            return
        # Weak: the run's journal must not keep a trainer alive that everybody else has dropped.
        self._trainer, self._samples = weakref.proxy(setting.trainer), setting.samples
        steps = setting.arguments.get("max_steps")
        self._every = max(1, (steps if isinstance(steps, int) and steps > 0 else LOOKS) // LOOKS)
        self._rolls_out = setting.algo == "ppo" and hasattr(setting.trainer, ROLLOUT)
        if setting.algo in ("grpo", "rloo") and hasattr(setting.trainer, REWARDS):
            self._hook(setting.trainer)

    def listens(self, event: str) -> bool:
        return self._trainer is not None and super().listens(event)

    def step_ended(self, row: Row) -> None:
        if self._rolls_out and getattr(self._trainer, ROLLOUT) is not self._seen:
            self._seen = getattr(self._trainer, ROLLOUT)
            self._see_rollout(self._seen)
        row.update(self._row)
        self._row = {}

    def stop(self) -> None:
        self._seen = None
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _hook(self, trainer: Any) -> None:
        original = getattr(trainer, REWARDS)

        def seen(*given: Any, **named: Any) -> Any:
            found = original(*given, **named)
            self._see_rewards(found, *given)
            return found

        self._undo = replace_method(trainer, REWARDS, seen)

    def _see_rewards(self, rewards: Any, inputs: Any, prompts: Sequence[Any], texts: Sequence[Any], ids: Any) -> None:
        if not self._trainer.model.training:
            return
        ends = set(getattr(self._trainer, "eos_token_ids", None) or [self._trainer.processing_class.eos_token_id])
        self._count(ids, ends)
        if self._is_due():
            weights = getattr(self._trainer, "reward_weights", None)
            total = (rewards if weights is None else rewards * weights.to(rewards.device)).nansum(1).tolist()
            count = len(total)  # with several ranks the rewards are those of all, the texts are ours
            self._keep([as_text(p) for p in prompts], [as_text(t) for t in texts], total[:count], [len(i) for i in ids])

    def _see_rollout(self, rollout: Any) -> None:
        kept = rollout.policy_mask
        ids = [row[mask].tolist() for row, mask in zip(rollout.responses, kept, strict=True)]
        decode = self._trainer.processing_class.decode
        self._count(ids, {self._trainer.processing_class.eos_token_id})
        updates = self._trainer.args.updates_per_iteration
        self._begun = self._trainer.state.global_step
        if self._samples is not None and self._begun // updates % max(1, self._every // updates) == 0:
            width = rollout.input_ids.shape[1] - rollout.responses.shape[1]
            seen = rollout.attention_mask[:, :width].bool()
            prompts = [decode(row[:width][mask]) for row, mask in zip(rollout.input_ids, seen, strict=True)]
            texts = [decode(row, skip_special_tokens=True) for row in ids]
            kls = (rollout.kl * kept).sum(1).tolist()
            self._keep(prompts, texts, rollout.scores.tolist(), [len(row) for row in ids], kls)

    def _is_due(self) -> bool:
        self._begun = self._trainer.state.global_step
        return self._samples is not None and self._begun % self._every == 0

    def _count(self, ids: Sequence[Sequence[int]], ends: set[int]) -> None:
        bare = [[token for token in row if token not in ends] for row in ids]
        looked_at = [repetition(row) for row in bare[:LOOKED_AT]]
        self._row["empty_share"] = sum(not row for row in bare) / max(1, len(bare))
        self._row["repetition"] = sum(looked_at) / max(1, len(looked_at))

    def _keep(
        self, prompts: Sequence[str], texts: Sequence[str], rewards: Sequence[float], lengths: Sequence[int],
        kls: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        if self._samples is None:
            return
        order = sorted(range(min(len(texts), len(rewards))), key=lambda at: rewards[at])
        chosen = [("worst", at) for at in order[:KEPT]] + [("best", at) for at in reversed(order[-KEPT:])]
        self._samples.add(
            Answer(
                step=self._begun + 1, kind=kind, prompt=prompts[at], answer=texts[at], reward=float(rewards[at]),
                length=lengths[at], kl=None if kls is None else float(kls[at]),
            )
            for kind, at in chosen
        )  # fmt: skip


def repetition(tokens: Sequence[int]) -> float:
    """The share of tokens that complete a run of GRAM tokens seen before in the same answer."""
    grams = [tuple(tokens[at : at + GRAM]) for at in range(len(tokens) - GRAM + 1)]
    return (len(grams) - len(set(grams))) / len(grams) if grams else 0.0


def as_text(said: Any) -> str:
    """A prompt or an answer as one text; for a conversation, its messages."""
    if isinstance(said, str):
        return said
    if isinstance(said, list):
        return "\n".join(f"{one.get('role', '')}: {one.get('content', '')}" for one in said if isinstance(one, dict))
    return str(said)
