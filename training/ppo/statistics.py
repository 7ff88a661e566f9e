"""The numbers published per iteration, reduced over all ranks."""

from __future__ import annotations

import time
from dataclasses import fields

import torch

from canary_mlflow.training.ppo.losses import Reduce, UpdateStats
from canary_mlflow.training.ppo.rollout import Rollout


def moments(values: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Count, sum and sum of squares [3] in float64, which ranks can add up."""
    flat = values.double()
    weight = torch.ones_like(flat) if mask is None else mask.double()
    return torch.stack([weight.sum(), (flat * weight).sum(), (flat.square() * weight).sum()])


def mean_of(moment: torch.Tensor) -> float:
    """The mean, from the three moments."""
    return float(moment[1] / moment[0])


def variance_of(moment: torch.Tensor) -> float:
    """The population variance, from the three moments; never negative by rounding."""
    mean = moment[1] / moment[0]
    return float((moment[2] / moment[0] - mean.square()).clamp(min=0))


def rollout_metrics(rollout: Rollout, kl_coef: float, target_kl: float | None, reduce: Reduce) -> dict[str, float]:
    """Metrics of one rollout.

    score_* are the reward function's scores; reward_* are what PPO maximises, per sequence: the
    score minus the KL penalty (and the penalty for a missing end). kl sums over the tokens of an
    answer; entropy is per token; advantage_* are taken before whitening. explained_variance is 0
    if all returns are equal.
    """
    policy, value = rollout.policy_mask, rollout.value_mask
    named = {
        "score": moments(rollout.scores),
        "reward": moments(rollout.rewards.sum(1)),
        "kl": moments(rollout.kl.sum(1)),
        "entropy": moments(rollout.entropy, policy),
        "advantage": moments(rollout.raw_advantages, policy),
        "returns": moments(rollout.returns, value),
        "residual": moments(rollout.returns - rollout.values, value),
        "length": moments(policy.sum(1)),
        "prompt": moments(rollout.attention_mask.sum(1) - policy.sum(1)),
        "truncated": moments(~rollout.ended),
    }
    total = dict(zip(named, reduce(torch.stack(list(named.values()))).cpu(), strict=True))
    kl, returns = mean_of(total["kl"]), variance_of(total["returns"])
    metrics = {
        "kl": kl,
        "kl_coef": kl_coef,
        "entropy": mean_of(total["entropy"]),
        "explained_variance": 1 - variance_of(total["residual"]) / returns if returns > 0 else 0.0,
        "response_length": mean_of(total["length"]),
        "truncated_share": mean_of(total["truncated"]),
        "tokens_prompt": float(total["prompt"][1]),
        "tokens_response": float(total["length"][1]),
    }
    for name in ("score", "reward", "advantage"):
        metrics[f"{name}_mean"] = mean_of(total[name])
        metrics[f"{name}_std"] = variance_of(total[name]) ** 0.5
    if target_kl is not None:
        metrics["kl_target_error"] = kl - target_kl
    return metrics


class UpdateMeter:
    """Adds up the statistics of an iteration's micro-batches; one device-to-host copy at the end."""

    def __init__(self) -> None:
        self._sums: torch.Tensor | None = None
        self._names = [item.name for item in fields(UpdateStats) if item.name != "max_abs_diff"]
        self._first: list[torch.Tensor] = []

    def add(self, stats: UpdateStats, *, first_update: bool) -> None:
        """Add one micro-batch; first_update: it belongs to the iteration's first optimizer step."""
        row = torch.stack([getattr(stats, name) for name in self._names])
        self._sums = row if self._sums is None else self._sums + row
        if first_update:
            self._first.append(stats.max_abs_diff)

    def close(self, updates: int, reduce: Reduce) -> dict[str, float]:
        """Means over the iteration's updates, and the self-test; the meter is empty afterwards.

        first_kl_max_abs is the largest |new - old log-probability| on the first update, before any
        weight has moved: exactly 0 unless sampling and update disagree about the policy.
        """
        assert self._sums is not None
        # The sum of the ranks' maxima is 0 exactly if all are 0, which is what the self-test checks.
        worst = torch.stack(self._first).max()
        summed = reduce(torch.cat([self._sums / updates, worst.unsqueeze(0)])).tolist()
        self._sums, self._first = None, []
        return dict(zip([*self._names, "first_kl_max_abs"], summed, strict=True))


class PhaseClock:
    """Wall and CPU time of an iteration, from the previous one's end to its own, and of its phases."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start: tuple[float, float] | None = None
        self._phases: dict[str, float] = {}
        self._since = 0.0

    def begin(self) -> None:
        """A rollout begins; the first one also starts the first iteration."""
        self._since = self._now()
        if self._start is None:
            self._start = self._since, time.process_time()

    def phase(self, name: str) -> None:
        """Count the time since the last call to this phase."""
        now = self._now()
        self._phases[f"time_{name}"] = self._phases.get(f"time_{name}", 0.0) + now - self._since
        self._since = now

    def lap(self) -> dict[str, float]:
        """End the iteration and return its times, all in seconds."""
        assert self._start is not None
        now, cpu = self._now(), time.process_time()
        times = {"iteration_time": now - self._start[0], "iteration_cpu_time": cpu - self._start[1], **self._phases}
        self._start, self._phases = (now, cpu), {}
        return times

    def _now(self) -> float:
        # Kernels are still running after the call that started them.
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
