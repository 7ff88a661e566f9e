"""The metrics by canonical name: their MLflow key, unit, worse direction, and what each trainer calls them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

FOREIGN = "trl/"  # prefix of everything a trainer logs that has no canonical name


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One series of a run, one value per optimizer step.

    `worse` is higher, lower or both. `aliases` are the keys under which trainers log it; a metric of the groups
    stability and quality is also known by its own name, one of the group perf only where our PPO logs it: GRPO has
    a `step_time` of another kind.
    """

    name: str
    unit: str
    worse: str
    group: str
    aliases: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name in MLflow, whose UI makes a section of each group."""
        return f"{self.group}/{self.name}"


def _perf(name: str, unit: str, *aliases: str, worse: str = "higher") -> Metric:
    return Metric(name=name, unit=unit, worse=worse, group="perf", aliases=aliases)


def _stability(name: str, worse: str, *aliases: str, unit: str = "") -> Metric:
    return Metric(name=name, unit=unit, worse=worse, group="stability", aliases=(name, *aliases))


def _quality(name: str, worse: str, *aliases: str) -> Metric:
    return Metric(name=name, unit="", worse=worse, group="quality", aliases=(name, *aliases))


# Aliases: `objective/…`, `policy/…`, `loss/…`, `val/…` and `lr` are TRL's PPOTrainer (to 1.12); `rewards/…` and
# `logps/…` DPO and KTO; `reward`, `completions/…`, `clip_ratio/…` GRPO and RLOO; `margin`, `mean_reward` Reward.
METRICS: tuple[Metric, ...] = (
    _perf("step_time", "s"),
    _perf("step_cpu_time", "s"),
    _perf("step_cost", "kernels"),
    _perf("sentinel_time", "s"),
    _perf("iteration_time", "s", "iteration_time"),
    _perf("iteration_cpu_time", "s", "iteration_cpu_time"),
    _perf("iteration_cost", "kernels"),
    _perf("time_generate", "s", "time_generate"),
    _perf("time_score", "s", "time_score"),
    _perf("time_update", "s", "time_update"),
    _perf("tokens", "tokens", worse="both"),
    _perf("tokens_prompt", "tokens", "tokens_prompt", worse="both"),
    _perf("tokens_response", "tokens", "tokens_response", worse="both"),
    _perf("tokens_per_second", "tokens/s", worse="lower"),
    _perf("peak_memory", "MiB"),
    _perf("reserved_memory", "MiB"),
    _stability("loss", "higher"),
    _stability("grad_norm", "both"),
    _stability("learning_rate", "both", "lr"),
    _stability("entropy", "both", "policy/entropy_avg"),
    _stability("nonfinite", "higher", unit="values"),
    _stability("kl", "both", "objective/kl"),
    _stability("kl_coef", "both"),
    _stability("kl_target_error", "both"),
    _stability("approx_kl", "higher", "policy/approxkl_avg"),
    _stability("clip_fraction", "higher", "policy/clipfrac_avg", "clip_ratio/region_mean"),
    _stability("value_clip_fraction", "higher", "val/clipfrac_avg"),
    _stability("policy_loss", "higher", "loss/policy_avg"),
    _stability("value_loss", "higher", "loss/value_avg"),
    _stability("explained_variance", "lower"),
    _stability("reward_mean", "lower", "objective/rlhf_reward", "reward", "mean_reward"),
    _stability("reward_std", "both"),
    _stability("score_mean", "lower", "objective/scores"),
    _stability("score_std", "both"),
    _stability("advantage_mean", "both"),
    _stability("advantage_std", "both"),
    _stability("response_length", "both", "completions/mean_length", unit="tokens"),
    _stability("truncated_share", "higher", "completions/clipped_ratio"),
    _stability("ratio", "both", "val/ratio"),
    _stability("first_kl_max_abs", "higher"),
    _stability("chosen_reward", "both", "rewards/chosen"),
    _stability("rejected_reward", "both", "rewards/rejected"),
    _stability("reward_margin", "lower", "rewards/margins", "margin"),
    _stability("reward_accuracy", "lower", "rewards/accuracies", "accuracy"),
    _stability("chosen_logp", "both", "logps/chosen"),
    _stability("rejected_logp", "both", "logps/rejected"),
    _quality("eval_loss", "higher"),
    _quality("eval_accuracy", "lower", "eval_rewards/accuracies"),
    _quality("eval_margin", "lower", "eval_rewards/margins"),
    _quality("eval_reward", "lower", "eval_score_mean", "eval_objective/scores"),
)

BY_NAME = {metric.name: metric for metric in METRICS}
BY_KEY = {metric.key: metric.name for metric in METRICS}
BY_ALIAS = {alias: metric.name for metric in METRICS for alias in metric.aliases}
STABILITY = frozenset(metric.name for metric in METRICS if metric.group == "stability")

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
