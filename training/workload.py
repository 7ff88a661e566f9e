"""What two runs must share to be compared at all."""

from __future__ import annotations

from training.config import CanaryConfig
from training.devices import Device
from training.parts import Parts


def describe(config: CanaryConfig, parts: Parts, device: Device) -> dict[str, str]:
    """The comparability key: the work done, without seed, versions and hyper-parameters.

    Learning rate, beta and the like are left out on purpose: changing them is a change that a
    team wants judged. Changing the amount of work (steps, batch, lengths) is another canary.
    """
    train = config.train
    return {
        "algo": config.algo.name,
        "model": config.model.name,
        "model_revision": parts.model_revision,
        "data": config.data.name,
        "data_digest": parts.data.digest,
        "adapter": config.adapter.name,
        "quantization": config.quantization.name,
        "precision": device.precision,
        "max_steps": str(train.max_steps),
        "batch_size": str(train.batch_size),
        "gradient_accumulation_steps": str(train.gradient_accumulation_steps),
        "max_length": str(train.max_length),
        **_algorithm_work(config),
    }


def _algorithm_work(config: CanaryConfig) -> dict[str, str]:
    keys = ("ppo_epochs", "num_minibatches", "max_new_tokens", "max_prompt_length", "value_head")
    return {key: str(getattr(config.algo, key)) for key in keys if hasattr(config.algo, key)}
