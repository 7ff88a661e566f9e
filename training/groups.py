"""What algorithms that draw answers share, and GRPO and RLOO besides: groups of answers to one prompt, each judged
relative to the others. Without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import ClassVar

from omegaconf import MISSING

from canary_mlflow.training import values
from canary_mlflow.training.config import Algo, HardwareConfig, TrainConfig
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.reward_config import RewardConfig

WORK = ("num_generations", "num_iterations", "max_new_tokens", "max_prompt_length", "temperature")


@dataclass
class Drawing(Algo):
    """The settings of an algorithm that draws answers to prompts and learns from their rewards."""

    reads: ClassVar[str] = "prompt"
    max_new_tokens: int = MISSING
    max_prompt_length: int = MISSING
    temperature: float = MISSING
    reward: RewardConfig = field(default_factory=RewardConfig)
    rewards: list[RewardConfig] = field(default_factory=list)  # replaces `reward` by the sum of these

    def check(self, train: TrainConfig) -> None:
        for key in ("max_new_tokens", "max_prompt_length"):
            values.at_least(f"algo.{key}", getattr(self, key), 1)
        values.positive("algo.temperature", self.temperature)
        if not self.rewards:
            self.reward.check()
        for at, one in enumerate(self.rewards):
            one.check(f"algo.rewards[{at}]")

    def positions(self, train: TrainConfig) -> dict[str, int]:
        return {"algo.max_prompt_length + algo.max_new_tokens": self.max_prompt_length + self.max_new_tokens}

    def scored_by(self) -> tuple[RewardConfig, ...]:
        return tuple(self.rewards) or (self.reward,)


@dataclass
class GroupSettings(Drawing):
    """The settings of both, under TRL's names, except the lengths, which are named as in PPO."""

    like: str = MISSING  # the algorithm whose steps and learning rate apply if tier and model have none for this one
    num_generations: int = MISSING  # answers to each prompt
    num_iterations: int = MISSING  # passes over each batch of answers
    beta: float = MISSING  # weight of the KL
    epsilon: float = MISSING  # clipping range of the probability ratio
    generation: str = MISSING  # hf | vllm: what draws the answers

    def check(self, train: TrainConfig) -> None:
        super().check(train)
        values.at_least("algo.num_iterations", self.num_iterations, 1)
        values.at_least("algo.num_generations", self.num_generations, 2)  # one alone compares with nothing
        values.divides("algo.num_generations", self.num_generations, "train.batch_size", train.batch_size)
        values.at_least("algo.beta", self.beta, 0)
        values.positive("algo.epsilon", self.epsilon)
        values.one_of("algo.generation", self.generation, ("hf", "vllm"))

    def check_machine(self, hardware: HardwareConfig) -> None:
        if self.generation != "vllm":
            return
        if hardware.device == "cpu":
            raise SetupError(
                "algo.generation is vllm, and hardware.device is cpu; expected a GPU; use algo.generation=hf"
            )
        if find_spec("vllm") is None:
            raise SetupError(
                "algo.generation=vllm needs the package vllm, which is not installed; pip install vllm, or use "
                "algo.generation=hf"
            )

    def work(self) -> dict[str, str]:
        engine = {} if self.generation == "hf" else {"generation": self.generation}
        return {key: str(getattr(self, key)) for key in WORK} | engine
