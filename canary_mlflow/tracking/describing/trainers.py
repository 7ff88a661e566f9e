"""What each trainer calls the metrics, and which series its runs must have. Names are those of the schema."""

from __future__ import annotations

from collections.abc import Mapping

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

OLDEST_TRL = (1, 12)  # that we train with (pyproject.toml)


def required(algo: str, arguments: Mapping[str, object], trl: str = "") -> tuple[str, ...]:
    """The series that a run of `algo` with these arguments must have (names as in TrainingArguments).

    `trl` is the installed release. A user's own script may have an older one than we train with, which logs less: TRL
    0.18 no entropy. What a release of ours no longer logs is lost; what that one never did is not there to be had.
    """
    older = bool(trl) and _release(trl) < OLDEST_TRL
    names = REQUIRED["trainer"] if older else REQUIRED.get(algo.lower(), REQUIRED["trainer"])
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
