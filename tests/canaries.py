"""Configurations for tests, built in no time: composing one through Hydra takes a second."""

from __future__ import annotations

from pathlib import Path

from canary_mlflow.training.algorithms import dpo, ppo, sft
from canary_mlflow.training.config import (
    AdapterConfig,
    CanaryConfig,
    DataConfig,
    HardwareConfig,
    ModelConfig,
    QuantizationConfig,
    TierConfig,
    TrainConfig,
)

ALGORITHMS = {
    "sft": sft.Settings(name="sft"),
    "dpo": dpo.Settings(name="dpo", beta=0.1, loss_type="sigmoid"),
    "ppo": ppo.Settings(name="ppo", max_prompt_length=32),
}


def tiny_model() -> ModelConfig:
    return ModelConfig(name="tiny-neox", source="embedded", learning_rate={})


def hub_model(path: str = "EleutherAI/pythia-70m") -> ModelConfig:
    return ModelConfig(name="pythia-70m", source="hub", path=path, learning_rate={})


def local_model(folder: Path) -> ModelConfig:
    return ModelConfig(name="local", source="local", path=str(folder), learning_rate={})


def a_config(
    data: str = "embedded",
    path: Path | str | None = None,
    *,
    algo: str = "dpo",
    adapter: str = "full",
    quantization: str = "none",
    model: ModelConfig | None = None,
    train_rows: int = 64,
    eval_rows: int = 16,
) -> CanaryConfig:
    """A small canary on the CPU; only what the tests of models and data read is set."""
    return CanaryConfig(
        algo=ALGORITHMS[algo],
        tier=TierConfig(name="smoke", train_rows=train_rows, eval_rows=eval_rows),
        model=model or tiny_model(),
        data=DataConfig(
            name=data,
            source=data,
            path=None if path is None else str(path),
            label_noise=0.2 if data == "embedded" else 0.0,
        ),
        adapter=AdapterConfig(name=adapter),
        quantization=QuantizationConfig(name=quantization),
        hardware=HardwareConfig(name="cpu", device="cpu", precision="fp32", threads=1),
        train=TrainConfig(max_length=256, batch_size=8),
    )
