"""One iteration's experience: answers, their scores, advantages, and the numbers that describe them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from canary_mlflow.training.ppo.losses import Reduce, gae, token_rewards, value_mask_of, whiten
from canary_mlflow.training.ppo.settings import PPOConfig
from canary_mlflow.training.rewards import Answers


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The models' numbers for R answers of T tokens, under the policy that drew them."""

    old_logps: torch.Tensor  # [R, T]
    ref_logps: torch.Tensor  # [R, T]
    values: torch.Tensor  # [R, T]
    entropy: torch.Tensor  # [R, T], nats


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The tensors of one iteration; [R, T] unless said, 0 outside their mask."""

    input_ids: torch.Tensor  # [R, P + T]
    attention_mask: torch.Tensor  # [R, P + T]
    responses: torch.Tensor
    policy_mask: torch.Tensor  # answer tokens, end of text included
    value_mask: torch.Tensor  # one position longer
    old_logps: torch.Tensor
    values: torch.Tensor
    entropy: torch.Tensor
    kl: torch.Tensor  # old - reference log-probability
    rewards: torch.Tensor  # score minus KL penalty, before any whitening
    advantages: torch.Tensor  # whitened
    raw_advantages: torch.Tensor
    returns: torch.Tensor
    scores: torch.Tensor  # [R], as the reward function gave them
    ended: torch.Tensor  # [R], whether the answer has an end of text

    def rows(self, index: torch.Tensor) -> dict[str, torch.Tensor]:
        """The tensors that an update needs, for the given rows."""
        names = (
            "input_ids",
            "attention_mask",
            "responses",
            "policy_mask",
            "value_mask",
            "old_logps",
            "values",
            "advantages",
            "returns",
        )
        return {name: getattr(self, name)[index] for name in names}


def shape_rollout(
    answers: Answers,
    scored: Scored,
    scores: torch.Tensor,
    ended: torch.Tensor,
    args: PPOConfig,
    kl_coef: float,
    reduce: Reduce,
) -> Rollout:
    """Put a rollout together: KL penalty, score at the end, GAE, whitened advantages. `kl_coef`: this iteration's."""
    policy_mask = answers.response_mask
    value_mask = value_mask_of(policy_mask)
    values = scored.values * value_mask
    kl = (scored.old_logps - scored.ref_logps) * policy_mask
    penalized = scores - args.missing_eos_penalty * ~ended
    rewards = token_rewards(penalized, kl, kl_coef, policy_mask)
    whitened = whiten(rewards, value_mask, shift_mean=False, reduce=reduce) if args.whiten_rewards else rewards
    advantages, returns = gae(whitened, values, args.gamma, args.lam)
    return Rollout(
        input_ids=torch.cat([answers.prompt_ids, answers.response_ids], dim=1),
        attention_mask=attention_mask_of(answers),
        responses=answers.response_ids,
        policy_mask=policy_mask,
        value_mask=value_mask,
        old_logps=scored.old_logps * policy_mask,
        values=values,
        entropy=scored.entropy * policy_mask,
        kl=kl,
        rewards=rewards,
        advantages=whiten(advantages, policy_mask, reduce=reduce),
        raw_advantages=advantages * policy_mask,
        returns=returns * value_mask,
        scores=scores,
        ended=ended,
    )


def attention_mask_of(answers: Answers) -> torch.Tensor:
    """The mask [R, P + T] of prompt and answer tokens, as the models want it."""
    return torch.cat([answers.prompt_mask, answers.response_mask], dim=1).long()
