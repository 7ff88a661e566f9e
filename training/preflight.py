"""Finds what must fail before torch is loaded and anything is recorded: values, then machine, files and network."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from canary_mlflow.errors import CanaryError, UsageError
from canary_mlflow.notify.session import ask
from canary_mlflow.policies import load_policy, load_watch, timed_metrics
from canary_mlflow.training import (
    adapters,
    datasets,
    devices,
    faults,
    memory,
    models,
    quantization,
    reward_sources,
    values,
)
from canary_mlflow.training.config import CanaryConfig, FaultConfig
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.reward_sources import reward_folder
from canary_mlflow.training.variants import variants_of

# Known to the pinned Transformers and TRL, and to TRL 1.12.0.
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
        values.at_least(key, value, least)
    values.positive("tier.timeout_minutes", tier.timeout_minutes)
    if runs_of(config) < 1:
        key = "tier.repeats" if config.repeats is None else "repeats"
        raise UsageError(f"{key} is {runs_of(config)}; expected at least 1")
    if config.model_name is not None and (not config.model_name.strip() or set(config.model_name) & set("/:")):
        raise UsageError(f"model_name is {config.model_name!r}; expected a name without '/' and ':'")
    if not config.register and load_policy(config.gate).top_up:
        raise UsageError("register is false and gate.top_up is true; expected one of them: only versions are topped up")
    values.one_of("train.optimizer", train.optimizer, OPTIMIZERS)
    values.one_of("train.lr_scheduler", train.lr_scheduler, SCHEDULERS)
    if config.seed > MAX_SEED - runs_of(config):
        raise UsageError(f"seed is {config.seed}; expected at most {MAX_SEED - runs_of(config)}")
    if not config.tracking.experiment.strip():
        raise UsageError(f"tracking.experiment is {config.tracking.experiment!r}; expected a name, such as canary")
    values.one_of("tracking.weights", config.tracking.weights, ("log", "none"))
    values.one_of("hardware.device", config.hardware.device, ("auto", "cpu", "cuda"))
    values.one_of("hardware.precision", config.hardware.precision, ("auto", "fp32", "bf16"))
    memory.check_values(config)
    _check_launcher(config)
    _check_ranks(config)
    config.algo.check(train)
    load_policy(config.gate)
    load_watch(config.watch)
    variants_of(config)
    _check_fault(config)


def _check_launcher(config: CanaryConfig) -> None:
    launcher, gpus = config.launcher, config.hardware.gpus
    values.one_of("launcher.name", launcher.name, ("local", "ray"))
    values.at_least("launcher.attempts", launcher.attempts, 1)
    values.at_least("launcher.wait_minutes", launcher.wait_minutes, 0)
    if launcher.cpus is not None:
        values.at_least("launcher.cpus", launcher.cpus, 0)
    values.positive("hardware.gpus", gpus)
    if gpus > 1:
        raise UsageError(f"hardware.gpus is {gpus:g}; expected at most 1: hardware.ranks is for several GPUs")
    if gpus < 1 and (timed := timed_metrics(load_policy(config.gate))):
        raise UsageError(
            f"hardware.gpus is {gpus:g}, and the policy judges {timed[0]}: runs that share a GPU slow each other; "
            "expected 1, or a policy without times, as tier=facts has"
        )


def _check_ranks(config: CanaryConfig) -> None:
    asked, rows = config.hardware.ranks, config.tier.eval_rows
    whole = isinstance(asked, int) and not isinstance(asked, bool) and asked >= 1
    if asked != "auto" and not whole:
        raise UsageError(f"hardware.ranks is {asked}; expected a whole number from 1 on, or auto")
    values.one_of("parallel.name", config.parallel.name, ("ddp", "fsdp2"))
    if config.parallel.name == "fsdp2":
        _check_sharding(config)
    if asked == 1:
        return
    for what, found in {
        "launcher=ray": config.launcher.name == "ray",
        "profile=true": config.profile,
        f"tier={config.tier.name}, whose variants train in one process": bool(config.tier.variants),
    }.items():
        if found:
            raise UsageError(f"hardware.ranks is {asked}, with {what}; expected hardware.ranks=1 there")
    if asked != "auto":
        values.at_least("tier.train_rows", config.tier.train_rows, config.train.batch_size * asked)
        if rows % asked:
            raise UsageError(
                f"tier.eval_rows is {rows} and hardware.ranks is {asked}; expected a multiple of {asked}: a rank that "
                "has a row less counts another one twice"
            )


def _check_sharding(config: CanaryConfig) -> None:
    for what, found in {
        "algo=ppo, which writes its own checkpoints": config.algo.name == "ppo",
        f"quantization={config.quantization.name}": config.quantization.name != "none",
        "hardware.device=cpu, where Accelerate would take DDP": config.hardware.device == "cpu",
    }.items():
        if found:
            raise UsageError(f"parallel is fsdp2, with {what}; expected parallel=ddp there")


def runs_of(config: CanaryConfig) -> int:
    """How many runs (seeds) one session makes."""
    return config.tier.repeats if config.repeats is None else config.repeats


def _check_fault(config: CanaryConfig) -> None:
    """Raise UsageError for a fault that cannot strike, or after which the configuration would be no canary."""
    faults.check(config, config.train.max_steps * config.algo.updates())
    struck = faults.configure(config)
    if struck is not config:
        check_values(replace(struck, fault=FaultConfig(name="none")))


def preflight(config: CanaryConfig, *, here: bool = True) -> None:
    """Check the webhook, machine, adapter, quantization, memory, data and model in that order: the network comes last.

    `here`: the runs are made on this machine, not sent elsewhere by a launcher. Raises SetupError with one line: what
    was found, what was expected, what to do. Hub files that are not cached are fetched here, once, so that the runs
    need no network.
    """
    ask(config.notify.entry(), Path("."), dict(os.environ))
    if here:
        check_machine(config)
    adapters.check(config.adapter)
    quantization.check(config.quantization, config.adapter)
    memory.check(config)
    datasets.check(config)
    models.check(config.model, config.adapter)
    _check_fit(config)
    for reward in config.algo.scored_by():
        if reward.kind == "model":
            models.refuse_own_code(reward_folder(reward.path or ""), "algo.reward.path")
        if reward.kind == "function":
            reward_sources.source_file(reward.path or "")


def check_machine(config: CanaryConfig) -> None:
    """Raise SetupError for what this machine, or what a batch system grants of it, lacks."""
    devices.check(config.hardware, config.parallel.name)
    config.algo.check_machine(config.hardware)


def check_signer(config: CanaryConfig) -> None:
    """Raise StoreError if the version's rows could not be signed, Refused if the ledger does not know the key: better
    before the training than after it. A server signs by itself."""
    from canary_mlflow.ledger.keys import key_folder, load_signer
    from canary_mlflow.ledger.uris import PREFIX
    from canary_mlflow.registry.acts.keys import check_key
    from canary_mlflow.tracking.stores.store import registry_for, resolve

    registry = registry_for(resolve(config.tracking.uri)) or ""
    if config.register and registry.startswith(PREFIX):
        signer = load_signer(key_folder())
        signer.key.sign(b"whether this key signs")
        check_key(registry, signer)


def check_outputs(folder: str) -> None:
    """Raise CanaryError unless Hydra can make its folder there, which it would try only after the store is made."""
    place = Path(folder.partition("${")[0] or ".")  # the rest is filled in from the time, or from the job
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryDirectory(prefix=".canary-", dir=place):  # /proc claims to be writable, but is not
            pass
    except OSError as error:
        raise CanaryError(
            f"{folder}: no folder for the runs' scratch files can be made in {place} ({error.strerror}); expected a "
            "writable place; set hydra.run.dir (with --multirun: hydra.sweep.dir)"
        ) from error


def _check_fit(config: CanaryConfig) -> None:
    """Raise SetupError for what is asked of the model but, by its files, missing."""
    layers = models.layer_names(config.model) if config.adapter.name != "full" else None
    if layers is not None:
        adapters.check_modules(config.adapter, layers)
    longest = models.positions(config.model)
    for key, length in config.algo.positions(config.train).items():
        if longest is not None and length > longest:
            raise SetupError(f"{key} is {length} tokens; expected at most {longest}, the positions of the model")
