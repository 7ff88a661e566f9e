"""What makes a session of the watch's benchmark fail from a known step on; each is one function and one line.

A fault gets the trainer and how many steps ago it struck (1 at the first), before every optimizer step. `made` were
there when the rules were written; `kept` are of other kinds and were kept for the final table; `third` are of still
other kinds, for the look after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM

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


def _policy(trainer: Any) -> Any:
    return getattr(trainer.model, "policy", trainer.model)


def _head_drifts(trainer: Any, since: int) -> None:
    """The output layer drifts in one direction, a little at each step."""
    with torch.no_grad():
        head = _policy(trainer).get_output_embeddings().weight
        if since == 1:
            trainer.drift_of_head = torch.randn_like(head)
        head.add_(0.05 * head.std() * trainer.drift_of_head)


def _end_fades(trainer: Any, since: int) -> None:
    """The output layer's row for the end of an answer fades, as if its shard were never updated."""
    with torch.no_grad():
        _policy(trainer).get_output_embeddings().weight[1].mul_(0.5)


def _attention_sharpens(trainer: Any, since: int) -> None:
    """Queries and keys grow without end, until each token looks at one other only."""
    with torch.no_grad():
        for name, weights in _policy(trainer).named_parameters():
            if "q_proj" in name or "k_proj" in name:
                weights.mul_(1.1)


def _pulled_back(trainer: Any, since: int) -> None:
    """The weights that training began with are averaged in at every step."""
    model = _policy(trainer)
    if since == 1:
        trainer.first_model = AutoModelForCausalLM.from_pretrained(model.config.name_or_path)
    with torch.no_grad():
        for weights, first in zip(model.parameters(), trainer.first_model.parameters(), strict=True):
            weights.lerp_(first, 0.3)


def _coarse(trainer: Any, since: int) -> None:
    """The weights are kept in three bits."""
    with torch.no_grad():
        for weights in _policy(trainer).parameters():
            step = weights.abs().max().clamp(min=1e-9) / 3
            weights.copy_((weights / step).round() * step)


def _reference_follows(trainer: Any, since: int) -> None:
    """The reference becomes the policy at every step, as if it had been synchronised too often."""
    trainer.ref_model.load_state_dict(trainer.model.state_dict())


def _head_dies(trainer: Any, since: int) -> None:
    """The score's head is 0 from here on, so that every answer earns the same."""
    with torch.no_grad():
        trainer.model.score.weight.zero_()


def _not_a_number(trainer: Any, since: int) -> None:
    """One weight overflows."""
    with torch.no_grad():
        trainer.model.score.weight[0, 0] = float("nan")


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
    "head_drifts": Fault(algos=ONLINE, strike=_head_drifts),
    "rate_jump_30": Fault(algos=("grpo", "rloo", "reward"), strike=_rate(lambda since: 30.0)),
    "sign_lost": Fault(  # a worse answer is rewarded more; the logged reward is the right one's mirror image
        algos=ONLINE, strike=_hurried(3.0), reward=lambda reward, answer, since: 0.5 - reward
    ),
    "silence_paid": Fault(  # an empty answer earns more than most
        algos=ONLINE, strike=_hurried(3.0), reward=lambda reward, answer, since: 0.4 - 0.1 * len(answer)
    ),
    "attention_sharpens": Fault(algos=("dpo", "kto", "sft"), strike=_attention_sharpens),
    "end_fades": Fault(algos=("ppo",), strike=_end_fades),
    "pulled_back": Fault(algos=("ppo", "dpo", "kto", "sft"), strike=_pulled_back),
    "coarse_weights": Fault(algos=("dpo", "kto", "sft"), strike=_coarse),
    "others_answers": Fault(algos=("dpo", "kto", "sft"), data="others"),
    "prompt_lost": Fault(algos=("sft",), data="no_prompt"),
    "reference_follows": Fault(algos=("dpo", "kto"), strike=_reference_follows),
    "near_pairs": Fault(algos=("dpo",), strike=_hurried(10.0), data="near"),
    "labels_drawn": Fault(algos=("kto", "reward"), strike=_hurried(3.0), data="drawn"),
    "labels_reversed": Fault(algos=("reward",), data="swapped"),
    "rate_climbs": Fault(algos=("reward",), strike=_rate(lambda since: min(1.2**since, 100.0))),
    "head_dies": Fault(algos=("reward",), strike=_head_dies),
    "not_a_number": Fault(algos=("reward",), strike=_not_a_number),
}
