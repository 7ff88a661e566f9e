"""What a configuration's values must satisfy before anything is recorded."""

from __future__ import annotations

import math
from dataclasses import replace

from canary_mlflow.errors import UsageError
from canary_mlflow.policies import load_policy, load_watch
from training import faults
from training.config import CanaryConfig, DPOAlgo, FaultConfig, PPOAlgo, RewardConfig

# What the pinned Transformers and TRL know, and TRL 1.12.0 too.
OPTIMIZERS = (
    "adamw_torch",
    "adamw_torch_fused",
    "adafactor",
    "sgd",
    "rmsprop",
    "adamw_8bit",
    "paged_adamw_8bit",
    "paged_adamw_32bit",
    "lion_8bit",
    "lion_32bit",
)
SCHEDULERS = ("linear", "cosine", "constant", "constant_with_warmup", "polynomial", "inverse_sqrt")
DPO_LOSSES = ("sigmoid", "hinge", "ipo", "robust", "apo_zero", "apo_down")
MAX_SEED = 2**32 - 1  # numpy's limit, which transformers.set_seed passes on


def check_values(config: CanaryConfig) -> None:
    """Raise UsageError naming the first key whose value cannot be trained with."""
    train, tier = config.train, config.tier
    for key, value, least in [
        ("train.max_steps", train.max_steps, 1),
        ("train.batch_size", train.batch_size, 1),
        ("train.gradient_accumulation_steps", train.gradient_accumulation_steps, 1),
        ("train.max_length", train.max_length, 8),
        ("train.warmup_steps", train.warmup_steps, 0),
        ("train.learning_rate", train.learning_rate, 0),
        ("train.max_grad_norm", train.max_grad_norm, 0),
        ("train.weight_decay", train.weight_decay, 0),
        ("tier.train_rows", tier.train_rows, train.batch_size),
        ("tier.eval_rows", tier.eval_rows, 1),
        ("hardware.threads", config.hardware.threads, 1),
        ("seed", config.seed, 0),
    ]:
        if not (math.isfinite(value) and value >= least):
            raise UsageError(f"{key} is {value}; expected at least {least}")
    _positive("tier.timeout_minutes", tier.timeout_minutes)
    if runs_of(config) < 1:
        key = "tier.repeats" if config.repeats is None else "repeats"
        raise UsageError(f"{key} is {runs_of(config)}; expected at least 1")
    if config.model_name is not None and (not config.model_name.strip() or set(config.model_name) & set("/:")):
        raise UsageError(f"model_name is {config.model_name!r}; expected a name without '/' and ':'")
    if not config.register and load_policy(config.gate).top_up:
        raise UsageError("register is false and gate.top_up is true; expected one of them: only versions are topped up")
    _one_of("train.optimizer", train.optimizer, OPTIMIZERS)
    _one_of("train.lr_scheduler", train.lr_scheduler, SCHEDULERS)
    if config.seed > MAX_SEED - runs_of(config):
        raise UsageError(f"seed is {config.seed}; expected at most {MAX_SEED - runs_of(config)}")
    if not config.tracking.experiment.strip():
        raise UsageError(f"tracking.experiment is {config.tracking.experiment!r}; expected a name, such as canary")
    _one_of("tracking.weights", config.tracking.weights, ("log", "none"))
    _one_of("hardware.device", config.hardware.device, ("auto", "cpu", "cuda"))
    _one_of("hardware.precision", config.hardware.precision, ("auto", "fp32", "bf16"))
    if isinstance(config.algo, DPOAlgo):
        _one_of("algo.loss_type", config.algo.loss_type, DPO_LOSSES)
        _positive("algo.beta", config.algo.beta)
    if isinstance(config.algo, PPOAlgo):
        _check_ppo(config.algo, train.batch_size)
    load_policy(config.gate)
    load_watch(config.watch)
    _check_fault(config)


def runs_of(config: CanaryConfig) -> int:
    """How many runs (seeds) one session makes."""
    return config.tier.repeats if config.repeats is None else config.repeats


def _check_ppo(algo: PPOAlgo, batch_size: int) -> None:
    for key in ("ppo_epochs", "num_minibatches", "kl_horizon", "max_new_tokens", "max_prompt_length"):
        if getattr(algo, key) < 1:
            raise UsageError(f"algo.{key} is {getattr(algo, key)}; expected at least 1")
    for key in ("cliprange", "cliprange_value", "temperature", "target_kl"):
        _positive(f"algo.{key}", getattr(algo, key))
    for key in ("gamma", "lam"):
        if not 0 <= getattr(algo, key) <= 1:
            raise UsageError(f"algo.{key} is {getattr(algo, key)}; expected 0 to 1")
    for key in ("init_kl_coef", "vf_coef", "missing_eos_penalty"):
        if not (math.isfinite(getattr(algo, key)) and getattr(algo, key) >= 0):
            raise UsageError(f"algo.{key} is {getattr(algo, key)}; expected at least 0")
    if batch_size % algo.num_minibatches:
        raise UsageError(
            f"algo.num_minibatches is {algo.num_minibatches}; expected a divisor of train.batch_size ({batch_size})"
        )
    _one_of("algo.value_head", algo.value_head, ("shared", "separate"))
    _check_reward(algo.reward)


def _check_reward(reward: RewardConfig) -> None:
    _one_of("algo.reward.kind", reward.kind, ("length", "token_share", "model"))
    _positive("algo.reward.scale", reward.scale)
    if reward.kind == "length" and reward.target < 1:
        raise UsageError(f"algo.reward.target is {reward.target}; expected at least 1 token")
    if reward.kind == "token_share" and not any(letters.strip() for letters in reward.tokens):
        raise UsageError("algo.reward.tokens is empty; expected first letters that count, such as [a,b]")
    if reward.kind == "token_share" and reward.min_tokens < 1:
        raise UsageError(f"algo.reward.min_tokens is {reward.min_tokens}; expected at least 1")
    if reward.kind == "model" and not reward.path:
        raise UsageError("algo.reward.path is not set; expected a folder or hub id of a sequence classifier")


def _check_fault(config: CanaryConfig) -> None:
    """The fault must be able to strike, and what it leaves must still be a canary."""
    faults.check(config, _optimizer_steps(config))
    struck = faults.configure(config)
    if struck is not config:
        check_values(replace(struck, fault=FaultConfig(name="none")))


def _optimizer_steps(config: CanaryConfig) -> int:
    updates = config.algo.ppo_epochs * config.algo.num_minibatches if isinstance(config.algo, PPOAlgo) else 1
    return config.train.max_steps * updates


def _positive(key: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{key} is {value}; expected more than 0")


def _one_of(key: str, found: str, valid: tuple[str, ...]) -> None:
    if found not in valid:
        raise UsageError(f"{key} is {found!r}; expected one of {', '.join(valid)}")
