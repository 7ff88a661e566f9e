"""Finds what must fail before torch is loaded and anything is recorded."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from canary_mlflow.errors import CanaryError
from canary_mlflow.notify.session import ask
from training import adapters, datasets, devices, memory, models, own_reward, quantization
from training.config import CanaryConfig
from training.errors import SetupError
from training.reward_model import reward_folder


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
            own_reward.source_file(reward.path or "")


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
