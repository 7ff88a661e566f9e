"""What two runs must share to be compared at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from canary_mlflow.training import memory
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.models import template_of
from canary_mlflow.training.reward_config import work_of_rewards

if TYPE_CHECKING:
    from canary_mlflow.training.devices import Device
    from canary_mlflow.training.parts import Inputs


def describe(config: CanaryConfig, inputs: Inputs, device: Device) -> dict[str, str]:
    """The work that a run does, without seed, versions and hyper-parameters.

    Learning rate, beta and the like are left out on purpose: changing them is a change that a team
    wants judged. Another amount of work (steps, batch, lengths), or another measure of its result
    (the reward, the kind of loss), makes another canary.
    """
    train = config.train
    return {
        "algo": config.algo.name,
        "model": config.model.name,
        "model_revision": inputs.model_revision,
        **({"chat_template": _digest(template)} if (template := template_of(config.model)) else {}),
        "data": config.data.name,
        "data_digest": inputs.data.digest,
        "adapter": config.adapter.name,
        "quantization": config.quantization.name,
        "precision": device.precision,
        **memory.work(config),
        **({"deterministic": "true"} if config.hardware.deterministic else {}),
        **({"ranks": str(device.ranks)} if device.ranks > 1 else {}),
        **({"parallel": config.parallel.name} if config.parallel.name != "ddp" else {}),
        "max_steps": str(train.max_steps),
        "batch_size": str(train.batch_size),
        "gradient_accumulation_steps": str(train.gradient_accumulation_steps),
        "max_length": str(train.max_length),
        **config.algo.work(),
        **work_of_rewards(config.algo.scored_by(), inputs.reward_revisions),
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of(workload: Mapping[str, str]) -> str:
    """A short digest of one workload."""
    return hashlib.sha256(json.dumps(workload, sort_keys=True).encode()).hexdigest()[:8]
