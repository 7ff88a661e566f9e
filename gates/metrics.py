"""The metrics that a policy may judge: label, unit, the direction that is worse, and the scale that fits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MetricInfo:
    """`worse` is higher, lower or both; `scale` is log for quantities above zero, identity for those of any
    sign.

    `repeatable` metrics follow from seed, code and data alone, so bit-equal series prove that nothing
    changed. `may_be_signed` metrics are positive as a rule: judged on the log scale, on the identity scale
    where they are not. A `share` lies between 0 and 1. `of_iterations`: measured once an iteration, not a step.
    """

    label: str
    unit: str
    worse: str
    scale: str
    repeatable: bool = True
    may_be_signed: bool = False
    share: bool = False
    of_iterations: bool = False


def _cost(label: str, unit: str, worse: str = "higher", of_iterations: bool = False) -> MetricInfo:
    return MetricInfo(label=label, unit=unit, worse=worse, scale="log", repeatable=False, of_iterations=of_iterations)


def _loss(label: str) -> MetricInfo:
    return MetricInfo(label=label, unit="", worse="higher", scale="log", may_be_signed=True)


def _positive(label: str, worse: str = "both", unit: str = "") -> MetricInfo:
    return MetricInfo(label=label, unit=unit, worse=worse, scale="log")


def _signed(label: str, worse: str = "both") -> MetricInfo:
    return MetricInfo(label=label, unit="", worse=worse, scale="identity")


def _share(label: str, worse: str) -> MetricInfo:
    return MetricInfo(label=label, unit="", worse=worse, scale="identity", share=True)


RECORDINGS = ("recorded", "early", "new", "absent")
"""What a policy's overlays may ask of a metric: see gates.sides.facts."""

METRICS: dict[str, MetricInfo] = {
    "step_time": _cost("step time", "s"),
    "step_cpu_time": _cost("step CPU time", "s"),
    "step_cost": _cost("step cost", "kernels"),
    "tokens": _positive("tokens per step", unit="tokens"),
    "tokens_per_second": _cost("tokens per second", "tokens/s", worse="lower"),
    "peak_memory": _cost("peak memory", "MiB"),
    "reserved_memory": _cost("reserved memory", "MiB"),
    "iteration_time": _cost("iteration time", "s", of_iterations=True),
    "iteration_cpu_time": _cost("iteration CPU time", "s", of_iterations=True),
    "iteration_cost": _cost("iteration cost", "kernels", of_iterations=True),
    "sentinel_time": _cost("sentinel kernel", "s"),
    "loss": _loss("loss"),
    "policy_loss": _loss("policy loss"),
    "value_loss": _loss("value loss"),
    "grad_norm": _positive("gradient norm"),
    "learning_rate": _positive("learning rate"),
    "entropy": _positive("entropy"),
    "kl": _positive("KL"),
    "kl_coef": _positive("KL coefficient"),
    "approx_kl": _signed("approximate KL", worse="higher"),
    "clip_fraction": _share("clip fraction", worse="higher"),
    "explained_variance": _signed("explained variance", worse="lower"),
    "reward_mean": _signed("mean reward", worse="lower"),
    "reward_std": _signed("reward spread"),
    "score_mean": _signed("mean score", worse="lower"),
    "score_std": _signed("score spread"),
    "advantage_mean": _signed("mean advantage"),
    "advantage_std": _signed("advantage spread"),
    "response_length": _positive("response length", unit="tokens"),
    "ratio": _positive("probability ratio"),
    "first_kl_max_abs": _signed("largest first-update KL", worse="higher"),
    "chosen_reward": _signed("chosen reward"),
    "rejected_reward": _signed("rejected reward"),
    "reward_margin": _signed("reward margin", worse="lower"),
    "reward_accuracy": _share("reward accuracy", worse="lower"),
    "chosen_logp": _signed("chosen log-probability"),
    "rejected_logp": _signed("rejected log-probability"),
    "eval_loss": _loss("evaluation loss"),
    "eval_accuracy": _share("evaluation accuracy", worse="lower"),
    "eval_margin": _signed("evaluation reward margin", worse="lower"),
    "eval_reward": _signed("evaluation reward", worse="lower"),
}

REWARDS = ("reward_mean", "score_mean", "eval_reward")
CLOCKS = ("step_time", "step_cpu_time", "iteration_time", "iteration_cpu_time")
"""Measured by a clock at every step, to the nanosecond: no two runs agree in all of them."""
