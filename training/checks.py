"""What a configuration's values must satisfy before anything is recorded."""

from __future__ import annotations

from canary_mlflow.errors import UsageError
from canary_mlflow.policies import load_policy
from training.config import CanaryConfig, PPOAlgo

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
        ("tier.timeout_minutes", tier.timeout_minutes, 0),
        ("hardware.threads", config.hardware.threads, 1),
        ("seed", config.seed, 0),
    ]:
        # `not >=` rather than `<`, so that NaN is refused too.
        if not value >= least:
            raise UsageError(f"{key} is {value}; expected at least {least}")
    if config.repeats is not None and config.repeats < 1:
        raise UsageError(f"repeats is {config.repeats}; expected at least 1")
    if config.seed > MAX_SEED - runs_of(config):
        raise UsageError(f"seed is {config.seed}; expected at most {MAX_SEED - runs_of(config)}")
    _one_of("hardware.device", config.hardware.device, ("auto", "cpu", "cuda"))
    _one_of("hardware.precision", config.hardware.precision, ("auto", "fp32", "bf16"))
    if isinstance(config.algo, PPOAlgo):
        _check_ppo(config.algo, train.batch_size)
    load_policy(config.gate)


def runs_of(config: CanaryConfig) -> int:
    """How many runs (seeds) one session makes."""
    return config.tier.repeats if config.repeats is None else config.repeats


def _check_ppo(algo: PPOAlgo, batch_size: int) -> None:
    for key in ("ppo_epochs", "num_minibatches", "kl_horizon", "max_new_tokens", "max_prompt_length"):
        if getattr(algo, key) < 1:
            raise UsageError(f"algo.{key} is {getattr(algo, key)}; expected at least 1")
    for key in ("cliprange", "cliprange_value", "temperature", "target_kl"):
        if not getattr(algo, key) > 0:
            raise UsageError(f"algo.{key} is {getattr(algo, key)}; expected more than 0")
    if batch_size % algo.num_minibatches:
        raise UsageError(
            f"algo.num_minibatches is {algo.num_minibatches}; expected a divisor of train.batch_size ({batch_size})"
        )
    _one_of("algo.value_head", algo.value_head, ("shared", "separate"))
    _one_of("algo.reward.kind", algo.reward.kind, ("length", "token_share", "model"))


def _one_of(key: str, found: str, valid: tuple[str, ...]) -> None:
    if found not in valid:
        raise UsageError(f"{key} is {found!r}; expected one of {', '.join(valid)}")
