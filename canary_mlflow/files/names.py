"""What a file calls a metric, and which of its columns is the step; verl's rows in our names and units."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from canary_mlflow.gates.model.metrics import METRICS
from canary_mlflow.tracking.describing.schema import BY_KEY, FOREIGN, canonical

# Beside the trainers' own names (tracking/describing/schema.py). A name that only one's own script has is its script's
# to translate: a reader of one's own (docs/files.md), or another name of the column.
RENAMED = {
    # `stability.jsonl`, and the tables that Transformers prints in notebooks.
    "kl_target_err": "kl_target_error",
    "ppo_clip_fraction": "clip_fraction",
    "training_loss": "loss",
    "validation_loss": "eval_loss",
    # JSONL and CSV of scripts.
    "train_loss": "loss",
    "val_loss": "eval_loss",
    "valid_loss": "eval_loss",
    "test_loss": "eval_loss",
    "step_time_s": "step_time",
    "cpu_time": "step_cpu_time",
    "peak_memory_mib": "peak_memory",
    "peak_memory_mb": "peak_memory",
    # Lightning, which logs both.
    "train_loss_step": "loss",
    "train_loss_epoch": "loss",
    # TRL: earlier releases, and DPO's where a slash was not allowed.
    "completion_length": "response_length",
    "completions/completion_length": "response_length",
    "ppo/policy/entropy": "entropy",
    "ppo/policy/clipfrac": "clip_fraction",
    "ppo/policy/approxkl": "approx_kl",
    "ppo/loss/value": "value_loss",
    "ppo/loss/policy": "policy_loss",
    "ppo/mean_scores": "score_mean",
    "ppo/std_scores": "score_std",
    "rewards_chosen": "chosen_reward",
    "rewards_rejected": "rejected_reward",
    "rewards_margins": "reward_margin",
    "rewards_accuracies": "reward_accuracy",
    # torchtune's PPO.
    "clipfrac": "clip_fraction",
    # Megatron, NeMo, litgpt.
    "lm loss": "loss",
    "reduced_train_loss": "loss",
    "train_step_timing in s": "step_time",
    "time/ppo/total": "step_time",  # TRL to 0.11: seconds of one call of step()
    "loss train": "loss",
    # OpenRLHF (ppo_trainer.py) and NeMo-RL, whose other names are ours or TRL's.
    "actor_loss": "policy_loss",
    "actor_lr": "learning_rate",
    "critic_loss": "value_loss",
    "mean_gen_tokens_per_sample": "response_length",
    "approx_entropy": "entropy",
}

# An exact zero of these says that nothing is learned; a printed one may be what few decimals leave of a small number.
ROUNDED = frozenset({"learning_rate", "kl", "actor/kl_loss", "grad_norm"})
_ROUNDED_ZERO = re.compile(r"[-+]?0\.00+")  # a format's; Python's own zero is 0.0

# verl: what it logs per iteration → (ours, our units in one of theirs). Times are seconds there too, losses, KL and
# entropy nats, shares 0 to 1; higher and lower mean the same in both. Where the two measure unlike things the series
# keeps its own name: critic/advantages/* is whitened there and raw here, perf/throughput is per GPU, critic/grad_norm
# and critic/lr are a second model's. The names stand in metric_utils.py and ray_trainer.py of verl/trainer/ppo,
# dp_actor.py and dp_critic.py of verl/workers, the shape of its file, {"step": 1, "data": {"actor/pg_loss": …}}, in
# verl/utils/tracking.py, all of https://github.com/volcengine/verl.
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

# wandb and TensorBoard put the split first; Transformers' own key of an evaluation is eval_<key>. A mean is of what a
# row stands for.
PREFIXES = {
    **dict.fromkeys(("train/", "avg_", "average_", "mean_"), ""),
    **dict.fromkeys(("eval/", "val/", "valid/", "validation/"), "eval_"),
}

# In this order: a wandb export has `_step` (its own row count) beside the trainer's `train/global_step`.
# `current_steps` is LLaMA-Factory's (beside `total_steps`); ms-swift writes both into one, "10/200".
OF_SWIFT = "global_step/max_steps"
_OF_TRAINERS = ("train/global_step", "trainer/global_step", "current_steps", OF_SWIFT)
_OF_SCRIPTS = ("iter", "train_step", "training_step", "train/step", "update")
STEPS = ("step", "global_step", *_OF_TRAINERS, "iteration", "_step", *_OF_SCRIPTS)
EPOCH = "epoch"  # the step of what has no other one, such as a Keras log: a row per epoch
PLANNED = {"current_steps": "total_steps"}  # step → beside it, how many there are to be
STEP_NAMES = "step, global_step, iteration, _step or epoch"  # for people


@cache
def name_of_column(column: str) -> str:
    """The canonical name of a file's column, or `trl/<column>`."""
    folded = column.strip().lower()
    # Transformers' tables in notebooks write `rewards / chosen` for rewards/chosen.
    for word in dict.fromkeys((column, folded, folded.replace(" / ", "/"), folded.replace(" ", "_"))):
        for prefix, instead in {"": "", **PREFIXES}.items():
            found = _known(instead + word.removeprefix(prefix)) if word.startswith(prefix) else None
            if found:
                return found
    return column if column.startswith(FOREIGN) else FOREIGN + column


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


MARKS = ("actor/", "critic/", "timing_s/")
# One held-out score per data source and number of tries; with several of them nobody knows which one counts.
_SCORE = re.compile(r"val-core/.+/reward/mean@\d+")


def is_verl(row: Mapping[str, Any]) -> bool:
    """Whether the row is one of verl's, as its file or its TensorBoard writer has it."""
    return isinstance(row.get("data"), Mapping) or any(key.startswith(MARKS) for key in row)


def translate(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the step beside the metrics, ours by our names and in our units; the rest as it is."""
    data = row.get("data")
    flat = {"step": row.get("step"), **data} if isinstance(data, Mapping) else dict(row)
    numbers = {key: float(value) for key, value in flat.items() if _is_number(value)}
    found = dict(flat)
    for theirs, (ours, factor) in VERL.items():
        if theirs in numbers:
            found.pop(theirs)
            found[ours] = numbers[theirs] * factor
    for ours, parts in VERL_SUMS.items():
        present = [numbers[part] for part in parts if part in numbers]
        if present:
            found[ours] = sum(present)
    return {**found, **_derived(numbers)}


def _derived(numbers: Mapping[str, float]) -> dict[str, float]:
    """What verl logs in another unit than ours, computed from two of its numbers."""
    derived: dict[str, float] = {}
    length, kl = numbers.get("response_length/mean"), numbers.get("actor/kl_loss")
    if length is not None and kl is not None:
        # Theirs is a mean over tokens (loss_agg_mode token-mean, the default), ours is summed over a response.
        derived["kl"] = kl * length
    tokens, seconds = numbers.get("perf/total_num_tokens"), numbers.get("timing_s/step")
    if tokens is not None and seconds:
        derived["tokens_per_second"] = tokens / seconds  # perf/throughput is per GPU
    if seconds is not None:
        # Its step is the iteration, so that it is both.
        derived |= {"step_time": seconds, "iteration_time": seconds}
    scores = [value for key, value in numbers.items() if _SCORE.fullmatch(key)]
    if len(scores) == 1:
        derived["eval_reward"] = scores[0]
    return derived


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
