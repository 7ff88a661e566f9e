"""What trainers call the metrics (gates/model/metrics.py), which series a run must have, and the keys in MLflow."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache

from canary_mlflow.gates.model.metrics import METRICS, Metric

# Trainer → logged key → canonical name. A key means the same in all trainers.
NAMES: Mapping[str, Mapping[str, str]] = {
    "transformers.Trainer": {"eval_loss": "eval_loss"},  # loss, grad_norm and learning_rate have our names
    "trl DPO, KTO": {
        "rewards/chosen": "chosen_reward",
        "rewards/rejected": "rejected_reward",
        "rewards/margins": "reward_margin",
        "rewards/accuracies": "reward_accuracy",
        "logps/chosen": "chosen_logp",
        "logps/rejected": "rejected_logp",
        "eval_rewards/accuracies": "eval_accuracy",
        "eval_rewards/margins": "eval_margin",
    },
    "trl Reward": {"margin": "reward_margin", "accuracy": "reward_accuracy", "mean_reward": "reward_mean"},
    "trl GRPO, RLOO": {
        "reward": "reward_mean",
        "clip_ratio/region_mean": "clip_fraction",
        "completions/mean_length": "response_length",
        "completions/clipped_ratio": "truncated_share",
        "frac_reward_zero_std": "zero_spread_share",
    },
    "trl PPO, to 1.12": {
        "lr": "learning_rate",
        "objective/kl": "kl",
        "objective/rlhf_reward": "reward_mean",
        "objective/scores": "score_mean",
        "policy/approxkl_avg": "approx_kl",
        "policy/clipfrac_avg": "clip_fraction",
        "policy/entropy_avg": "entropy",  # objective/entropy is summed over tokens: another quantity
        "loss/policy_avg": "policy_loss",
        "loss/value_avg": "value_loss",
        "val/clipfrac_avg": "value_clip_fraction",
        "val/ratio": "ratio",
        "eval_score_mean": "eval_reward",
        "eval_objective/scores": "eval_reward",
    },
}

# In the group perf a trainer's key may mean something else (GRPO has its own kind of `step_time`), so only what our own
# PPO logs is taken by the canonical name.
OWN_PPO = (
    "iteration_time",
    "iteration_cpu_time",
    "time_generate",
    "time_score",
    "time_reward",
    "time_reference",
    "time_update",
    "tokens_prompt",
    "tokens_response",
)

_ALWAYS = ("step_time", "step_cpu_time", "peak_memory", "nonfinite", "grad_norm", "learning_rate")
_PAIRS = ("chosen_reward", "rejected_reward", "reward_margin", "chosen_logp", "rejected_logp", "entropy", "tokens")
_ANSWERS = ("loss", "reward_mean", "reward_std", "zero_spread_share", "response_length", "truncated_share", "entropy")

# Algorithm → the series that its runs must have. An algorithm that is not listed must have those of `trainer`.
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "trainer": (*_ALWAYS, "loss"),
    "sft": (*_ALWAYS, "loss", "entropy", "tokens"),
    "dpo": (*_ALWAYS, "loss", "reward_accuracy", "implied_kl", *_PAIRS),
    "kto": (*_ALWAYS, "loss", "kl", *_PAIRS),
    "reward": (*_ALWAYS, "loss", "reward_margin", "reward_accuracy", "tokens"),
    "grpo": (*_ALWAYS, *_ANSWERS, "clip_fraction"),
    "rloo": (*_ALWAYS, *_ANSWERS, "clip_fraction"),
    "ppo": (*_ALWAYS, "policy_loss", "value_loss", "kl", "entropy", "clip_fraction", "approx_kl", "score_mean"),
}

_KL_WITH_REFERENCE = ("grpo", "rloo")  # have a reference model, and log a KL, only if beta > 0

SERIES_FROM = (1, 12)  # TRLs that log all of these


def required(algo: str, arguments: Mapping[str, object], trl: str = "") -> tuple[str, ...]:
    """The series that a run of `algo` with these arguments must have (names as in TrainingArguments).

    `trl` is the installed release. An older one logs less: TRL 0.18 no entropy. What a later release no longer logs is
    lost; what that one never did is not there to be had, and only what any trainer logs is asked of it.
    """
    older = bool(trl) and _release(trl) < SERIES_FROM
    names = REQUIRED.get(algo.lower(), REQUIRED["trainer"])
    if older:
        names = tuple(name for name in names if name in REQUIRED["trainer"])
    beta = arguments.get("beta")
    if not older and algo.lower() in _KL_WITH_REFERENCE and isinstance(beta, (int, float)) and beta > 0:
        names = (*names, "kl")
    if arguments.get("use_liger_kernel"):
        # Liger's fused losses do not return the logits, from which trainers compute the entropy.
        names = tuple(name for name in names if name != "entropy")
    return names


def _release(version: str) -> tuple[int, ...]:
    """(0, 18) of 0.18.1.dev0."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


CONFIG_PREFIX = "cfg/"  # of params that hold what a training was told
FOREIGN = "trl/"  # prefix of everything a trainer logs that has no canonical name


def key_of(metric: Metric) -> str:
    """The metric's key in MLflow, whose UI makes a section of each group."""
    return f"{metric.group}/{metric.name}"


def aliases(metric: Metric) -> tuple[str, ...]:
    """The keys under which trainers log the metric.

    A trainer's key that equals a metric's name is taken to mean that metric in the groups stability and quality; in the
    group perf only from our own PPO (trainers.OWN_PPO).
    """
    own = (metric.name,) if metric.group != "perf" or metric.name in OWN_PPO else ()
    given = [key for names in NAMES.values() for key, name in names.items() if name == metric.name]
    return tuple(dict.fromkeys((*own, *given)))


BY_KEY = {key_of(metric): name for name, metric in METRICS.items()}
BY_ALIAS = {alias: name for name, metric in METRICS.items() for alias in aliases(metric)}


def is_fault(name: str, value: float) -> bool:
    """Whether a value is a fault: a NaN in a metric that must not have one, or an infinity, which only an explained
    variance may be."""
    metric = METRICS.get(name)
    if math.isnan(value):
        return metric is not None and metric.never_nan
    return math.isinf(value) and metric is not None and metric.group == "stability" and name != "explained_variance"


# MLflow refuses a whole batch for one key outside this set.
_FORBIDDEN = re.compile(r"[^\w\-. /:]")
_LONGEST_KEY = 250


@cache
def canonical(trainer_key: str) -> str | None:
    """The canonical name of what a trainer logs; None if it has none."""
    return BY_ALIAS.get(trainer_key)


@cache
def name_of(trainer_key: str) -> str:
    """The name under which a logged value is kept: canonical, or `trl/<key>` unchanged."""
    return canonical(trainer_key) or FOREIGN + trainer_key


@cache
def mlflow_key(name: str) -> str:
    """The MLflow key of a canonical name, or of a `trl/<key>`, made safe for MLflow."""
    metric = METRICS.get(name)
    return key_of(metric) if metric else _FORBIDDEN.sub("_", name)[:_LONGEST_KEY]


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
