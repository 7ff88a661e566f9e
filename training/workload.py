"""What two runs must share to be compared at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from training.config import CanaryConfig, DPOAlgo, PPOAlgo, RewardConfig

if TYPE_CHECKING:
    from training.devices import Device
    from training.parts import Inputs


def describe(config: CanaryConfig, inputs: Inputs, device: Device) -> dict[str, str]:
    """The comparability key: the work done, without seed, versions and hyper-parameters.

    Learning rate, beta and the like are left out on purpose: changing them is a change that a
    team wants judged. Changing the amount of work (steps, batch, lengths), or what its result is
    measured by (the reward, the kind of loss), is another canary.
    """
    train = config.train
    return {
        "algo": config.algo.name,
        "model": config.model.name,
        "model_revision": inputs.model_revision,
        "data": config.data.name,
        "data_digest": inputs.data.digest,
        "adapter": config.adapter.name,
        "quantization": config.quantization.name,
        "precision": device.precision,
        "max_steps": str(train.max_steps),
        "batch_size": str(train.batch_size),
        "gradient_accumulation_steps": str(train.gradient_accumulation_steps),
        "max_length": str(train.max_length),
        **_algorithm_work(config, inputs),
    }


def digest_of(workload: Mapping[str, str]) -> str:
    """A short name of one workload."""
    return hashlib.sha256(json.dumps(workload, sort_keys=True).encode()).hexdigest()[:8]


def _algorithm_work(config: CanaryConfig, inputs: Inputs) -> dict[str, str]:
    algo = config.algo
    if isinstance(algo, DPOAlgo):
        return {"loss_type": algo.loss_type}
    if isinstance(algo, PPOAlgo):
        keys = ("ppo_epochs", "num_minibatches", "max_new_tokens", "max_prompt_length", "value_head")
        return {**{key: str(getattr(algo, key)) for key in keys}, **_reward(algo.reward, inputs)}
    return {}


def _reward(reward: RewardConfig, inputs: Inputs) -> dict[str, str]:
    """What a score means: fields that the kind does not use make no difference, nor does where a model's files lie."""
    own = {
        "length": {"reward_target": str(reward.target)},
        "token_share": {
            "reward_tokens": ",".join(sorted(reward.tokens)),
            "reward_min_tokens": str(reward.min_tokens),
        },
        "model": {"reward_revision": inputs.reward_revision},
    }
    return {"reward": reward.kind, "reward_scale": str(float(reward.scale)), **own[reward.kind]}
