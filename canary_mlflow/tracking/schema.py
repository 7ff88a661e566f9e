"""The metrics by canonical name: MLflow key, unit, worse direction. What trainers call them: tracking/trainers.py."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache

from canary_mlflow.tracking.trainers import NAMES, OWN_PPO
from gates.nonfinite import NEVER_UNDEFINED

CONFIG_PREFIX = "cfg/"  # of params that say what a training was told
FOREIGN = "trl/"  # prefix of everything a trainer logs that has no canonical name


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One series of a run, one value per optimizer step. `worse` is higher, lower or both.

    A trainer that logs a metric of the groups stability or quality under its own name is taken at its word, in the
    group perf only our PPO is (trainers.OWN_PPO).
    """

    name: str
    unit: str
    worse: str
    group: str

    @property
    def key(self) -> str:
        """The name in MLflow, whose UI makes a section of each group."""
        return f"{self.group}/{self.name}"

    @property
    def aliases(self) -> tuple[str, ...]:
        """The keys under which trainers log it."""
        own = (self.name,) if self.group != "perf" or self.name in OWN_PPO else ()
        given = [key for names in NAMES.values() for key, name in names.items() if name == self.name]
        return tuple(dict.fromkeys((*own, *given)))


def _perf(name: str, unit: str, *, worse: str = "higher") -> Metric:
    return Metric(name=name, unit=unit, worse=worse, group="perf")


def _stability(name: str, worse: str, *, unit: str = "") -> Metric:
    return Metric(name=name, unit=unit, worse=worse, group="stability")


def _quality(name: str, worse: str) -> Metric:
    return Metric(name=name, unit="", worse=worse, group="quality")


METRICS: tuple[Metric, ...] = (
    # Time, end to end and on the CPU; the slowest rank's where there are several.
    _perf("step_time", "s"),
    _perf("step_cpu_time", "s"),
    _perf("step_cost", "kernels"),
    _perf("sentinel_time", "s"),
    _perf("iteration_time", "s"),
    _perf("iteration_cpu_time", "s"),
    _perf("iteration_cost", "kernels"),
    # What a step's time went into. compute_time excludes data_wait; the others are parts of compute_time, except in
    # our PPO, where they are parts of iteration_time.
    _perf("compute_time", "s"),
    _perf("data_wait", "s"),
    _perf("time_forward", "s"),
    _perf("time_backward", "s"),
    _perf("time_optimizer", "s"),
    _perf("time_generate", "s"),
    _perf("time_reward", "s"),
    _perf("time_reference", "s"),
    _perf("time_score", "s"),
    _perf("time_update", "s"),
    # Work.
    _perf("tokens", "tokens", worse="both"),
    _perf("tokens_prompt", "tokens", worse="both"),
    _perf("tokens_response", "tokens", worse="both"),
    _perf("tokens_per_second", "tokens/s", worse="lower"),
    # Memory: the GPU's allocator where there is one, else the process; the largest rank's.
    _perf("peak_memory", "MiB"),
    _perf("reserved_memory", "MiB"),
    _perf("allocated_memory", "MiB"),
    _perf("memory_growth", "MiB/step"),
    # What NVIDIA's driver says of the device, whoever uses it.
    _perf("gpu_utilization", "%", worse="lower"),
    _perf("gpu_memory", "MiB"),
    _perf("gpu_power", "W", worse="both"),
    _perf("gpu_clock", "MHz", worse="lower"),
    # Every algorithm.
    _stability("loss", "higher"),
    _stability("grad_norm", "both"),
    _stability("clipped", "higher"),
    _stability("learning_rate", "both"),
    _stability("entropy", "both"),
    _stability("nonfinite", "higher", unit="values"),
    # Learning from answers: PPO, GRPO, RLOO.
    _stability("kl", "both"),
    _stability("kl_coef", "both"),
    _stability("kl_target_error", "both"),
    _stability("approx_kl", "higher"),
    _stability("clip_fraction", "higher"),
    _stability("value_clip_fraction", "higher"),
    _stability("policy_loss", "higher"),
    _stability("value_loss", "higher"),
    _stability("explained_variance", "lower"),
    _stability("reward_mean", "lower"),
    _stability("reward_std", "both"),
    _stability("score_mean", "lower"),
    _stability("score_std", "both"),
    _stability("advantage_mean", "both"),
    _stability("advantage_std", "both"),
    _stability("response_length", "both", unit="tokens"),
    _stability("truncated_share", "higher"),
    _stability("zero_spread_share", "higher"),
    _stability("repetition", "higher"),
    _stability("empty_share", "higher"),
    _stability("ratio", "both"),
    _stability("sampling_mismatch", "both", unit="nats"),
    _stability("first_kl_max_abs", "higher"),
    # Learning from pairs: DPO, KTO, Reward.
    _stability("chosen_reward", "both"),
    _stability("rejected_reward", "both"),
    _stability("reward_margin", "lower"),
    _stability("reward_accuracy", "lower"),
    _stability("chosen_logp", "both"),
    _stability("rejected_logp", "both"),
    _stability("implied_kl", "both"),
    # On held-out data.
    _quality("eval_loss", "higher"),
    _quality("eval_accuracy", "lower"),
    _quality("eval_margin", "lower"),
    _quality("eval_reward", "lower"),
)

BY_NAME = {metric.name: metric for metric in METRICS}
BY_KEY = {metric.key: metric.name for metric in METRICS}
BY_ALIAS = {alias: metric.name for metric in METRICS for alias in metric.aliases}
STABILITY = frozenset(metric.name for metric in METRICS if metric.group == "stability")


def is_fault(name: str, value: float) -> bool:
    """Whether a value is a NaN that is never meant, or an infinity: only an explained variance may be one."""
    if math.isnan(value):
        return name in NEVER_UNDEFINED
    return math.isinf(value) and name in STABILITY and name != "explained_variance"


# MLflow refuses a whole batch for one key outside this set.
_FORBIDDEN = re.compile(r"[^\w\-. /:]")
_LONGEST_KEY = 250


@cache
def canonical(trainer_key: str) -> str | None:
    """The canonical name of what a trainer logs; None when it has none."""
    return BY_ALIAS.get(trainer_key)


@cache
def name_of(trainer_key: str) -> str:
    """The name under which a logged value is kept: canonical, or `trl/<key>` unchanged."""
    return canonical(trainer_key) or FOREIGN + trainer_key


@cache
def mlflow_key(name: str) -> str:
    """The MLflow key of a canonical name, or of a `trl/<key>`, made safe for MLflow."""
    metric = BY_NAME.get(name)
    return metric.key if metric else _FORBIDDEN.sub("_", name)[:_LONGEST_KEY]


@cache
def name_of_key(key: str) -> str:
    """The inverse of `mlflow_key`: a series' name from its MLflow key; foreign keys stay as they are."""
    return BY_KEY.get(key, key)


def as_number(value: object) -> float | None:
    """A logged value as a float: Python and numpy numbers, tensors of one element; None for anything else."""
    if isinstance(value, (int, float)):
        return float(value)
    item = getattr(value, "item", None)
    if item is None or getattr(value, "size", None) is None or getattr(value, "ndim", 0) != 0:
        return None
    number = item()
    return float(number) if isinstance(number, (int, float)) else None
