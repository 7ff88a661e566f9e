"""The TrainingArguments that every algorithm shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.devices import Device

NEEDED = ("output_dir", "max_steps", "per_device_train_batch_size", "seed", "use_cpu", "logging_steps", "report_to",
          "disable_tqdm", "logging_nan_inf_filter", "save_strategy", "iterations", "rollout_batch_size",
          "max_new_tokens", "max_prompt_length")  # fmt: skip
"""The arguments that no default can supply: how long, how much, where, and which logs."""


def evaluation_rows(config: CanaryConfig, ranks: int) -> int:
    """Held-out rows per batch and rank, chosen so that all batches are whole: Accelerate fills up a last batch with
    rows that then count twice."""
    mine = config.tier.eval_rows // ranks
    return next(rows for rows in range(min(config.train.batch_size, mine), 0, -1) if mine % rows == 0)


def between_ranks(config: CanaryConfig, device: Device) -> dict[str, Any]:
    """Additional arguments if several processes train one run."""
    if device.ranks == 1:
        return {}
    given: dict[str, Any] = {"per_device_eval_batch_size": evaluation_rows(config, device.ranks)}
    if config.parallel.name == "fsdp2":
        return given | {"fsdp": "full_shard", "fsdp_config": dict(config.parallel.settings)}
    backend = "gloo" if device.kind == "cpu" else "nccl"
    return given | {"ddp_backend": backend, "ddp_find_unused_parameters": False}


def common_arguments(config: CanaryConfig, output_dir: Path, device: Device) -> dict[str, Any]:
    """Keyword arguments for TrainingArguments and everything derived from it.

    All are given explicitly, because TRL's defaults differ from Transformers' (bf16 and activation
    checkpointing on, a log line every 10 steps), also on a CPU.
    """
    train = config.train
    return {
        "output_dir": str(output_dir),
        "max_steps": train.max_steps,
        "per_device_train_batch_size": train.batch_size,
        "per_device_eval_batch_size": train.batch_size,
        "gradient_accumulation_steps": train.gradient_accumulation_steps,
        "learning_rate": train.learning_rate,
        "lr_scheduler_type": train.lr_scheduler,
        "warmup_steps": train.warmup_steps,
        "weight_decay": train.weight_decay,
        "max_grad_norm": train.max_grad_norm,
        "optim": train.optimizer,
        "seed": config.seed,
        "data_seed": config.seed,
        "use_cpu": device.kind == "cpu",
        "bf16": device.precision == "bf16",
        "fp16": False,
        # The log is our measurement: every step, nothing filtered, no other reporter.
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "eval_strategy": "no",
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": device.kind == "cuda",
    }


def trainer_arguments(config: CanaryConfig, output_dir: Path, device: Device, **own: Any) -> dict[str, Any]:
    """All arguments of a trainer: the common ones, an algorithm's `own`, and the variant's. For a variant that pins
    nothing, only those without which nothing trains here."""
    again = checkpointing(config.memory.gradient_checkpointing)
    pinned = {**common_arguments(config, output_dir, device), **between_ranks(config, device), **again, **own}
    if not config.variant.pinned:
        pinned = {name: value for name, value in pinned.items() if name in NEEDED}
    return pinned | config.variant.arguments_of.get(config.algo.name, config.variant.arguments)


def checkpointing(enabled: bool) -> dict[str, Any]:
    """Activation checkpointing under the name the installed Transformers has.

    5.x renamed `gradient_checkpointing`; 4.x knows the old name alone.
    """
    from dataclasses import fields

    from transformers import TrainingArguments

    names = {item.name for item in fields(TrainingArguments)}
    return {"activation_checkpointing" if "activation_checkpointing" in names else "gradient_checkpointing": enabled}
