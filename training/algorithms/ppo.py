"""Proximal policy optimisation with our own trainer (TRL has none since 1.13)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import MISSING

from canary_mlflow.training import values
from canary_mlflow.training.config import CanaryConfig, TrainConfig
from canary_mlflow.training.groups import Drawing

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback

    from canary_mlflow.training.devices import Device
    from canary_mlflow.training.parts import Parts
    from canary_mlflow.training.ppo.settings import PPOConfig

STACK = ("canary_mlflow.training.ppo.trainer", "canary_mlflow.training.rewards")
WORK = ("ppo_epochs", "num_minibatches", "max_new_tokens", "max_prompt_length", "value_head")


@dataclass
class Settings(Drawing):
    """Proximal policy optimisation (training.ppo), with the settings under their usual names."""

    ppo_epochs: int = MISSING
    num_minibatches: int = MISSING
    init_kl_coef: float = MISSING
    target_kl: float = MISSING  # nats per sequence
    kl_horizon: int = MISSING  # sequences over which the KL coefficient may double
    cliprange: float = MISSING
    cliprange_value: float = MISSING
    vf_coef: float = MISSING
    gamma: float = MISSING
    lam: float = MISSING
    whiten_rewards: bool = MISSING
    missing_eos_penalty: float = MISSING
    value_head: str = MISSING  # shared | separate

    def check(self, train: TrainConfig) -> None:
        super().check(train)
        for key in ("ppo_epochs", "num_minibatches", "kl_horizon"):
            values.at_least(f"algo.{key}", getattr(self, key), 1)
        for key in ("cliprange", "cliprange_value", "target_kl"):
            values.positive(f"algo.{key}", getattr(self, key))
        for key in ("gamma", "lam"):
            values.share(f"algo.{key}", getattr(self, key))
        for key in ("init_kl_coef", "vf_coef", "missing_eos_penalty"):
            values.at_least(f"algo.{key}", getattr(self, key), 0)
        values.divides("algo.num_minibatches", self.num_minibatches, "train.batch_size", train.batch_size)
        values.one_of("algo.value_head", self.value_head, ("shared", "separate"))

    def work(self) -> dict[str, str]:
        return {key: str(getattr(self, key)) for key in WORK}

    def updates(self) -> int:
        return self.ppo_epochs * self.num_minibatches


def build(
    config: CanaryConfig, parts: Parts, device: Device, output_dir: Path, callbacks: list[TrainerCallback]
) -> Trainer:
    """A PPOTrainer on the prompts of the preference data.

    train.max_steps counts PPO iterations and train.batch_size the answers of one iteration per
    device; warm-up counts optimizer steps: ppo_epochs x num_minibatches per iteration.
    """
    from canary_mlflow.training.ppo.trainer import PPOTrainer
    from canary_mlflow.training.rewards import prompts_of, rewards_of, sum_of

    return PPOTrainer(
        model=parts.model,
        args=arguments(config, output_dir, device),
        tokenizer=parts.tokenizer,
        train_prompts=prompts_of(config, parts.train_dataset).to_list(),
        eval_prompts=prompts_of(config, parts.eval_dataset).to_list(),
        reward=sum_of([*rewards_of(config.algo.scored_by(), parts.tokenizer, device.kind).values()]),
        peft_config=parts.peft_config,
        callbacks=callbacks,
    )


def arguments(config: CanaryConfig, output_dir: Path, device: Device) -> PPOConfig:
    """The configuration as a PPOConfig."""
    from canary_mlflow.training.arguments import trainer_arguments
    from canary_mlflow.training.ppo.settings import PPOConfig

    knobs = {item.name: getattr(config.algo, item.name) for item in fields(Settings)}
    del knobs["name"], knobs["reward"], knobs["rewards"]
    sizes = {"iterations": config.train.max_steps, "rollout_batch_size": config.train.batch_size}
    given = trainer_arguments(config, output_dir, device, **knobs, **sizes)
    return PPOConfig(
        **{key: value for key, value in given.items() if key not in ("max_steps", "per_device_train_batch_size")}
    )
