"""What a file calls a metric, and which of its columns is the step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from canary_mlflow.tracking.describing.schema import BY_KEY, FOREIGN, canonical
from gates.model.metrics import METRICS

# Beside the trainers' own names (tracking/describing/schema.py): the columns of `stability.jsonl`, of the tables that
# Transformers prints in notebooks, and what older releases of TRL logged.
RENAMED = {
    "kl_target_err": "kl_target_error",
    "ppo_clip_fraction": "clip_fraction",
    # What plain scripts write.
    "step_time_s": "step_time",
    "time_per_step": "step_time",
    "iter_time": "step_time",
    "cpu_time": "step_cpu_time",
    "peak_memory_mib": "peak_memory",
    "peak_memory_mb": "peak_memory",
    "train_loss": "loss",
    "train_losses": "loss",
    "val_losses": "eval_loss",
    "train_loss_step": "loss",  # Lightning, which logs both
    "train_loss_epoch": "loss",
    "total_loss": "loss",
    "current_loss": "loss",
    "lm loss": "loss",  # Megatron
    "loss train": "loss",  # litgpt
    "reduced_train_loss": "loss",  # NeMo
    "train_step_timing in s": "step_time",
    "lm_loss": "loss",
    "loss/train": "loss",  # also of the DPO paper's own code, as are the next ones
    "rewards_train/chosen": "chosen_reward",
    "rewards_train/rejected": "rejected_reward",
    "rewards_train/margins": "reward_margin",
    "rewards_train/accuracies": "reward_accuracy",
    "logps_train/chosen": "chosen_logp",
    "logps_train/rejected": "rejected_logp",
    "rewards_eval/margins": "eval_margin",
    "rewards_eval/accuracies": "eval_accuracy",
    "loss/total": "loss",
    "val_loss": "eval_loss",
    "valid_loss": "eval_loss",
    "test_loss": "eval_loss",
    "loss/val": "eval_loss",
    "loss/eval": "eval_loss",
    "training_loss": "loss",
    "validation_loss": "eval_loss",
    "completion_length": "response_length",
    "completions/completion_length": "response_length",
    "ppo/policy/entropy": "entropy",
    "ppo/policy/clipfrac": "clip_fraction",
    "ppo/policy/approxkl": "approx_kl",
    "ppo/loss/value": "value_loss",
    "ppo/loss/policy": "policy_loss",
    # OpenRLHF (ppo_trainer.py) and NeMo-RL, whose other names are ours or TRL's.
    "actor_lr": "learning_rate",
    "critic_loss": "value_loss",
    "mean_gen_tokens_per_sample": "response_length",
    "approx_entropy": "entropy",
    "ppo/mean_scores": "score_mean",
    "ppo/std_scores": "score_std",
    # Tinker's cookbook.
    "train_mean_nll": "loss",
    "test/nll": "eval_loss",
    "env/all/reward/total": "reward_mean",
    "env/all/ac_tokens_per_turn": "response_length",
    "optim/entropy": "entropy",
    # What scripts with a loop of their own call the same.
    "gradient_norm": "grad_norm",
    "total_grad_norm": "grad_norm",
    "reward/mean": "reward_mean",
    "rewards/mean": "reward_mean",
    "avg_reward": "reward_mean",
    "episode_reward": "reward_mean",
    "episodic_reward": "reward_mean",
    "ep_reward": "reward_mean",
    "env_reward": "reward_mean",
    "total_reward": "reward_mean",
    "return": "reward_mean",
    "episode_return": "reward_mean",
    "episodic_return": "reward_mean",
    "ep_rew_mean": "reward_mean",
    "rollout/ep_rew_mean": "reward_mean",
    "policy_gradient_loss": "policy_loss",
    "pi_loss": "policy_loss",
    "π_loss": "policy_loss",
    "v_loss": "value_loss",
    "vf_loss": "value_loss",
    # DeepSpeed-Chat's PPO.
    "act_loss": "policy_loss",
    "cri_loss": "value_loss",
    "average reward score": "score_mean",
    "average_reward": "reward_mean",
    "reward_avg": "reward_mean",
    "rewards_avg": "reward_mean",
    "reward/std": "reward_std",
    "rewards/std": "reward_std",
    "actor_loss": "policy_loss",
    "pg_loss": "policy_loss",
    "rl_loss": "policy_loss",
    "reward_margins": "reward_margin",
    "reward_accuracies": "reward_accuracy",
    # TRL's of DPO, where a slash was not allowed.
    "rewards_chosen": "chosen_reward",
    "rewards_rejected": "rejected_reward",
    "rewards_margins": "reward_margin",
    "rewards_accuracies": "reward_accuracy",
    "margins": "reward_margin",
    "chosen_rewards": "chosen_reward",
    "rejected_rewards": "rejected_reward",
    "kl_mean": "kl",
    "kl_ref": "kl",
    "mean_kl": "kl",
    "kl_div": "kl",
    "kl_divergence": "kl",
    "clip_frac": "clip_fraction",
    "clipfrac": "clip_fraction",
    "mean_length": "response_length",
    "avg_response_len": "response_length",
    "response_length_mean": "response_length",
    "completion_length_mean": "response_length",
    "mean_completion_length": "response_length",
    "clipped_ratio": "truncated_share",
    "truncation_rate": "truncated_share",
    "truncated_rate": "truncated_share",
    "zero_std_group_ratio": "zero_spread_share",
    "zero_advantage_fraction": "zero_spread_share",
}

# An exact zero of these says that nothing is learned; a printed one may be what few decimals leave of a small number.
ROUNDED = frozenset({"learning_rate", "kl", "actor/kl_loss", "grad_norm"})
_ROUNDED_ZERO = re.compile(r"[-+]?0\.00+")  # a format's; Python's own zero is 0.0

# verl: what it logs per iteration → (ours, our units in one of theirs). Times are seconds there too, losses, KL and
# entropy nats, shares 0 to 1; higher and lower mean the same in both. Where the two measure unlike things the series
# keeps its own name: critic/advantages/* is whitened there and raw here, perf/throughput is per GPU, critic/grad_norm
# and critic/lr are a second model's. canary_mlflow/files/verl.py says where the names come from, and derives kl and
# tokens_per_second.
VERL: Mapping[str, tuple[str, float]] = {
    "actor/pg_loss": ("policy_loss", 1.0),
    "actor/entropy": ("entropy", 1.0),
    "actor/entropy_loss": ("entropy", 1.0),  # the same, before mid-2025; its sign is the entropy's
    "actor/pg_clipfrac": ("clip_fraction", 1.0),
    "actor/ppo_kl": ("approx_kl", 1.0),  # mean of old - new, where ours is half the mean of its square
    "actor/grad_norm": ("grad_norm", 1.0),
    "actor/lr": ("learning_rate", 1.0),
    "actor/kl_coef": ("kl_coef", 1.0),
    "actor/reward_kl_penalty_coeff": ("kl_coef", 1.0),
    "critic/vf_loss": ("value_loss", 1.0),
    "critic/vf_clipfrac": ("value_clip_fraction", 1.0),
    "critic/vf_explained_var": ("explained_variance", 1.0),
    "critic/score/mean": ("score_mean", 1.0),
    "critic/rewards/mean": ("reward_mean", 1.0),
    "response_length/mean": ("response_length", 1.0),  # tokens
    "response_length/clip_ratio": ("truncated_share", 1.0),
    "timing_s/gen": ("time_generate", 1.0),
    "timing_s/reward": ("time_reward", 1.0),
    "timing_s/ref": ("time_reference", 1.0),
    "perf/total_num_tokens": ("tokens", 1.0),  # prompts and responses, all GPUs
    "perf/max_memory_allocated_gb": ("peak_memory", 1024.0),  # GiB, whatever its name says, to MiB
    "perf/max_memory_reserved_gb": ("reserved_memory", 1024.0),
    "perf/cpu_memory_used_gb": ("host_memory", 1024.0),
}
VERL_SUMS: Mapping[str, tuple[str, ...]] = {  # parts of an iteration, seconds
    "time_score": ("timing_s/old_log_prob", "timing_s/values"),
    "time_update": ("timing_s/update_actor", "timing_s/update_critic"),
}

# wandb and TensorBoard put the split first, CleanRL and environments a group; Transformers' own key of an evaluation is
# eval_<key>.
_MEANS = ("avg_", "average_", "mean_")  # of what a row stands for
PREFIXES = {
    **dict.fromkeys(("train/", "env/", "rollout/", "charts/", "losses/", "metrics/"), ""),
    **dict.fromkeys(("eval/", "val/", "valid/", "validation/"), "eval_"),
}

# In this order: a wandb export has `_step` (its own row count) beside the trainer's `train/global_step`.
# `current_steps` is LLaMA-Factory's (beside `total_steps`); ms-swift writes both into one, "10/200".
OF_SWIFT = "global_step/max_steps"
_OF_TRAINERS = ("train/global_step", "trainer/global_step", "current_steps", OF_SWIFT)
_OF_PAPERS = ("counters/updates", "system/step")  # the DPO paper's own code, ROLL
_OF_GAMES = ("time/total_timesteps", "total_timesteps", "timesteps", "episode")  # Stable-Baselines3 and the like
_OF_SCRIPTS = ("iter", "train_step", "training_step", "train/step", "training/global_step", "update", *_OF_GAMES)
STEPS = ("step", "global_step", *_OF_TRAINERS, "iteration", "_step", *_OF_PAPERS, *_OF_SCRIPTS)
_LATE = ("metrics/", "env_reward", "ep_reward")  # read where no column says its metric itself
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
EPOCH = "epoch"  # the step of what has no other one, such as a Keras log: a row per epoch
PLANNED = {"current_steps": "total_steps"}  # step → beside it, how many there are to be
STEP_NAMES = "step, global_step, iteration, _step or epoch"  # for people


@cache
def name_of_column(column: str) -> str:
    """The canonical name of a file's column, or `trl/<column>`."""
    return _written(column) or _guessed(column) or (column if column.startswith(FOREIGN) else FOREIGN + column)


@cache
def is_guess(column: str) -> bool:
    """Whether it is known only without its plural or its capitals: it may also hold lists or text, and a column that is
    known as it is written comes first. So are wrapped metrics and the reward of the environment alone."""
    if column.strip().lower().startswith(_LATE):
        return True
    return _written(column) is None and _guessed(column) is not None


def _guessed(column: str) -> str | None:
    if found := _written(_CAPITAL.sub("_", column.strip()).lower()):  # PolicyLoss
        return found
    # A list of values per metric has the plural: `episode_rewards`, `losses`.
    folded = column.strip().lower()
    for word in (folded.removesuffix("s"), folded.removesuffix("es")):
        if word != folded and (found := _known(word)):
            return found
    return None


def _written(column: str) -> str | None:
    folded = column.strip().lower()
    # Transformers' tables in notebooks write `rewards / chosen` for rewards/chosen.
    for word in dict.fromkeys((column, folded, folded.replace(" / ", "/"), folded.replace(" ", "_"))):
        if found := _known(word):
            return found
        for prefix, instead in PREFIXES.items():
            found = _known(instead + word.removeprefix(prefix)) if word.startswith(prefix) else None
            if found:
                return found
        for means in _MEANS:
            found = _known(word.removeprefix(means)) if word.startswith(means) else None
            if found:
                return found
    return None


def is_rounded_zero(column: str, text: str) -> bool:
    """Whether a printed "0.000" need not be zero: releases of verl until 2025 print a learning rate of 1e-6 so."""
    name = VERL[column][0] if column in VERL else name_of_column(column)
    return not ROUNDED.isdisjoint({column, name}) and _ROUNDED_ZERO.fullmatch(text) is not None


def is_canonical(name: str) -> bool:
    """Whether a name that `name_of_column` gave is one of the schema's."""
    return name in METRICS


def step_column(columns: Iterable[str]) -> str | None:
    """Which of these columns holds the optimizer step."""
    folded = {column.strip().lower().replace(" ", "_"): column for column in columns}
    return next((folded[name] for name in STEPS if name in folded), None)


def epoch_column(columns: Iterable[str]) -> str | None:
    """Which of these columns counts epochs."""
    return next(filter(is_epoch, columns), None)


def is_epoch(column: str) -> bool:
    """Whether a column counts epochs."""
    return column.strip().lower() == EPOCH


def _known(column: str) -> str | None:
    own = column if column in METRICS else None  # a file has no trainer's step_time beside ours, as a live log may
    return canonical(column) or RENAMED.get(column) or BY_KEY.get(column) or own
