"""The arithmetic of PPO as pure functions on tensors; R rows, T response tokens, V vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# Sums a tensor over all ranks; the identity where there is one process.
Reduce = Callable[[torch.Tensor], torch.Tensor]


def identity(tensor: torch.Tensor) -> torch.Tensor:
    """The reduction of a single process."""
    return tensor


CHUNK = 2**24  # logits converted to float32 at a time: whole copies of [R, T, V] do not fit beside a real model


def token_logps(logits: torch.Tensor, tokens: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Log-probability [R, T], float32, of each token [R, T] under logits [R, T, V] / temperature, of any precision."""
    found: torch.Tensor = _TokenLogps.apply(logits, tokens, temperature)
    return found


class _TokenLogps(torch.autograd.Function):
    """Backward recomputes the softmax in chunks, whereas autograd would keep all of it."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, tokens: torch.Tensor, temperature: float) -> torch.Tensor:
        norms, chosen = [], []
        for window in windows(logits):
            part = logits[..., window, :].float() / temperature
            norms.append(part.logsumexp(-1))
            chosen.append(part.gather(-1, tokens[..., window].unsqueeze(-1)).squeeze(-1))
        norm = torch.cat(norms, dim=-1)
        ctx.temperature = temperature
        ctx.save_for_backward(logits, tokens, norm)
        return torch.cat(chosen, dim=-1) - norm

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (logits, tokens, norm), slope = ctx.saved_tensors, slopes[0]
        answer = torch.empty_like(logits)
        for window in windows(logits):
            part = (logits[..., window, :].float() / ctx.temperature - norm[..., window].unsqueeze(-1)).exp_()
            part.mul_(-slope[..., window].unsqueeze(-1))
            part.scatter_add_(-1, tokens[..., window].unsqueeze(-1), slope[..., window].unsqueeze(-1))
            answer[..., window, :] = part.div_(ctx.temperature)
        return answer, None, None


def token_entropy(logits: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Entropy [R, T] in nats, float32, of the distributions of logits [R, T, V] / temperature, of any precision."""
    parts = []
    for window in windows(logits):
        logps = (logits[..., window, :].float() / temperature).log_softmax(-1)
        parts.append(-(logps.exp() * logps).sum(-1))
    return torch.cat(parts, dim=-1)


def windows(logits: torch.Tensor) -> list[slice]:
    """Slices of the T positions of logits [..., T, V] that hold about CHUNK numbers each, at least one position."""
    length = logits.shape[-2]
    width = max(1, CHUNK * length // max(1, logits.numel()))
    return [slice(first, first + width) for first in range(0, length, width)]


def whiten(
    values: torch.Tensor, mask: torch.Tensor, *, shift_mean: bool = True, reduce: Reduce = identity
) -> torch.Tensor:
    """Scale to unit variance (unbiased) over mask and all ranks; zero mean unless shift_mean is false.

    Positions outside the mask are 0 in the result. Fewer than two positions have no variance and stay unscaled.
    """
    count = reduce(mask.sum().to(values.dtype))
    mean = reduce((values * mask).sum()) / count
    centred = values - mean
    variance = reduce((centred.square() * mask).sum()) / (count - 1).clamp(min=1)
    scale = torch.where(count > 1, torch.rsqrt(variance + 1e-8), torch.ones_like(variance))
    return (centred * scale + (0 if shift_mean else mean)) * mask


def token_rewards(scores: torch.Tensor, kl: torch.Tensor, kl_coef: float, policy_mask: torch.Tensor) -> torch.Tensor:
    """Rewards [R, T]: minus kl_coef x kl [R, T] at each token, plus the score [R] once at the end.

    The score is added at the position after the last token (the value of the finished answer is a separate prediction),
    or on the last token if the answer fills all T positions: TRL's convention.
    """
    rewards = -kl_coef * kl * policy_mask
    length = policy_mask.sum(1)
    end = length.clamp(max=policy_mask.shape[1] - 1)
    return rewards.scatter_add(1, end.unsqueeze(1), scores.to(rewards.dtype).unsqueeze(1))


def value_mask_of(policy_mask: torch.Tensor) -> torch.Tensor:
    """The mask [R, T] of predicted values: one position longer than the answer, if there is room."""
    positions = torch.arange(policy_mask.shape[1], device=policy_mask.device)
    return positions <= policy_mask.sum(1, keepdim=True)


def gae(rewards: torch.Tensor, values: torch.Tensor, gamma: float, lam: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantage estimates and returns, both [R, T] (Schulman et al. 2016, eq. 16).

    Both inputs [R, T] are 0 after the end of a row; the value after position T is 0.
    """
    advantages = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    following = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * following - values[:, t]
        running = delta + gamma * lam * running
        advantages[:, t] = running
        following = values[:, t]
    return advantages, advantages + values


@dataclass(frozen=True, kw_only=True)
class UpdateStats:
    """Sums of one micro-batch / its minibatch's token counts: added up, they are minibatch means."""

    policy_loss: torch.Tensor
    value_loss: torch.Tensor
    clip_fraction: torch.Tensor
    value_clip_fraction: torch.Tensor
    approx_kl: torch.Tensor
    ratio: torch.Tensor
    max_abs_diff: torch.Tensor  # max |new - old log-probability| in this micro-batch


@dataclass(frozen=True, kw_only=True)
class Clip:
    """The three knobs of the PPO loss."""

    cliprange: float
    cliprange_value: float
    vf_coef: float


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of a rollout as the loss needs them: everything [b, T], the two token counts scalars.

    policy_tokens and value_tokens count the whole minibatch, over all its micro-batches and ranks.
    """

    old_logps: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    policy_mask: torch.Tensor
    value_mask: torch.Tensor
    policy_tokens: torch.Tensor
    value_tokens: torch.Tensor


def ppo_loss(
    new_logps: torch.Tensor, new_values: torch.Tensor, batch: Batch, clip: Clip
) -> tuple[torch.Tensor, UpdateStats]:
    """The clipped policy loss plus vf_coef x the clipped value loss (Schulman et al. 2017), and statistics."""

    def policy_mean(x: torch.Tensor) -> torch.Tensor:
        return (x * batch.policy_mask).sum() / batch.policy_tokens

    def value_mean(x: torch.Tensor) -> torch.Tensor:
        return (x * batch.value_mask).sum() / batch.value_tokens

    diff = (new_logps - batch.old_logps) * batch.policy_mask
    ratio = diff.exp()
    unclipped = -batch.advantages * ratio
    clipped = -batch.advantages * ratio.clamp(1 - clip.cliprange, 1 + clip.cliprange)
    policy_loss = policy_mean(torch.max(unclipped, clipped))

    # Clamped to bounds: old + clamp(new - old) would round, and so count unclipped values as clipped.
    low, high = batch.values - clip.cliprange_value, batch.values + clip.cliprange_value
    error = (new_values - batch.returns).square()
    clipped_error = (new_values.clamp(low, high) - batch.returns).square()
    value_loss = 0.5 * value_mean(torch.max(error, clipped_error))

    with torch.no_grad():
        stats = UpdateStats(
            policy_loss=policy_loss.detach(),
            value_loss=value_loss.detach(),
            clip_fraction=policy_mean((clipped > unclipped).float()),
            value_clip_fraction=value_mean((clipped_error > error).float()),
            approx_kl=0.5 * policy_mean(diff.square()),
            ratio=policy_mean(ratio),
            max_abs_diff=diff.abs().max(),
        )
    return policy_loss + clip.vf_coef * value_loss, stats
