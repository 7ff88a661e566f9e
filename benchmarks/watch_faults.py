"""What makes a session of the watch's benchmark fail from a known step on; each is one function and one line.

A fault gets the trainer and how many steps ago it struck (1 at the first), before every optimizer step. `made` were
there when the rules were written; `kept` are of other kinds and were kept for the final table; `third` for the look
after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Strike = Callable[[Any, int], None]
Reward = Callable[[float, str, int], float]  # the reward, the answer, steps since the onset → what the trainer gets

ONLINE, ALL = ("grpo", "rloo", "ppo"), ("grpo", "rloo", "ppo", "dpo", "sft")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`data`: how rows after the onset are spoiled (watch_sessions.py)."""

    algos: tuple[str, ...]
    strike: Strike | None = None
    reward: Reward | None = None
    data: str = ""
    shuffled: bool = False  # an answer is scored as the answer to another prompt


def _rate(times: Callable[[int], float]) -> Strike:
    def strike(trainer: Any, since: int) -> None:
        for group in trainer.optimizer.param_groups:  # the scheduler has just set it again
            group["lr"] *= times(since)

    return strike


def _negated(trainer: Any, since: int) -> None:
    """The objective with the wrong sign, at a rate at which this shows."""
    _rate(lambda since: 4.0)(trainer, since)
    if since == 1:
        right = trainer.compute_loss
        trainer.compute_loss = lambda *words, **more: -right(*words, **more)


def _kl_paid(trainer: Any, since: int) -> None:
    """Distance from the reference is rewarded instead of penalised."""
    if hasattr(trainer, "kl_controller"):
        trainer.kl_controller.value, trainer.kl_controller.target = -5.0, None
    else:
        trainer.beta = -5.0


def _beta_lost(trainer: Any, since: int) -> None:
    """DPO with almost nothing that keeps it near its reference."""
    _rate(lambda since: 10.0)(trainer, since)
    trainer.beta = 0.01


def _decay(trainer: Any, since: int) -> None:
    """Weight decay a thousand times too high."""
    with torch.no_grad():
        for weights in trainer.model.parameters():
            weights.mul_(0.98)


def _noise(trainer: Any, since: int) -> None:
    """Random damage to the weights."""
    with torch.no_grad():
        for weights in trainer.model.parameters():
            if weights.ndim > 1:
                weights.add_(torch.randn_like(weights) * 0.08 * weights.std())


def _second_moment_lost(trainer: Any, since: int) -> None:
    """The optimizer's second moments are lost repeatedly, so that its steps are far too large."""
    if since % 4 == 1:
        for state in trainer.optimizer.state.values():
            state["exp_avg_sq"].mul_(1e-4)


def _no_end(trainer: Any, since: int) -> None:
    """Answers cannot end."""
    trainer.generation_config.suppress_tokens = [1]


def _hurried(times: float) -> Strike:
    """A higher learning rate for a wrong reward, so that its effect shows within a short run."""
    return _rate(lambda since: times)


def _hot(trainer: Any, since: int) -> None:
    """Answers are drawn at three times the temperature that they are scored at."""
    _rate(lambda since: 3.0)(trainer, since)
    if since == 1:
        trainer.generation_config.temperature *= 3


def _head_drifts(trainer: Any, since: int) -> None:
    """The output layer drifts in one direction, a little at each step."""
    with torch.no_grad():
        head = trainer.model.get_output_embeddings().weight
        if since == 1:
            trainer.drift_of_head = torch.randn_like(head)
        head.add_(0.05 * head.std() * trainer.drift_of_head)


MADE = {
    "lr_jump": Fault(algos=ALL, strike=_rate(lambda since: 100.0)),
    "lr_ramp": Fault(algos=ALL, strike=_rate(lambda since: min(1.2**since, 300.0))),
    "negated": Fault(algos=(*ONLINE, "dpo"), strike=_negated),
    "kl_paid": Fault(algos=ONLINE, strike=_kl_paid),
    "length_paid": Fault(
        algos=ONLINE, strike=_hurried(3.0), reward=lambda reward, answer, since: reward + 0.1 * len(answer)
    ),
    "reward_down": Fault(algos=ONLINE, reward=lambda reward, answer, since: 0.0),
    "rate_30": Fault(algos=("dpo",), strike=_rate(lambda since: 30.0)),
    "random_labels": Fault(algos=("sft",), data="random"),
}
KEPT = {
    "decay": Fault(algos=ALL, strike=_decay),
    "weight_noise": Fault(algos=ALL, strike=_noise),
    "second_moment_lost": Fault(algos=ALL, strike=_second_moment_lost),
    "others_scored": Fault(algos=ONLINE, strike=_hurried(3.0), shuffled=True),
    "length_hack": Fault(  # length is rewarded more than a right answer
        algos=ONLINE, strike=_hurried(3.0), reward=lambda reward, answer, since: 0.2 * reward + 0.15 * len(answer)
    ),
    "no_end": Fault(algos=("grpo", "rloo"), strike=_no_end),
    "same_score": Fault(algos=ONLINE, reward=lambda reward, answer, since: 0.2),
    "swapped_pairs": Fault(algos=("dpo",), data="swapped"),
    "beta_lost": Fault(algos=("dpo",), strike=_beta_lost),
    "wrong_answers": Fault(algos=("sft",), data="wrong"),
}
THIRD = {
    "hot": Fault(algos=("grpo", "rloo"), strike=_hot),
    "head_drifts": Fault(algos=("grpo", "rloo"), strike=_head_drifts),
    "rate_jump_30": Fault(algos=("grpo", "rloo"), strike=_rate(lambda since: 30.0)),
    "sign_lost": Fault(  # a worse answer is rewarded more; the logged reward is the right one's mirror image
        algos=("grpo", "rloo"), strike=_hurried(3.0), reward=lambda reward, answer, since: 0.5 - reward
    ),
    "silence_paid": Fault(  # an empty answer earns more than most
        algos=("grpo", "rloo"), strike=_hurried(3.0), reward=lambda reward, answer, since: 0.4 - 0.1 * len(answer)
    ),
}
