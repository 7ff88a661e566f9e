"""What a run does to fit into its device's memory: conf/memory."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import UsageError
from canary_mlflow.training import values
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.errors import SetupError

if TYPE_CHECKING:
    from canary_mlflow.training.devices import Device

WEIGHTS = ("auto", "fp32", "bf16")
ATTENTIONS = ("auto", "eager", "sdpa", "flash_attention_2")
OF_BITSANDBYTES = ("8bit", "paged", "lion")  # in the names of optimizers
ADVICE = (
    "; expected a run that fits: memory=saving, a smaller train.batch_size or train.max_length, or adapter=lora take "
    "less memory"
)


def check_values(config: CanaryConfig) -> None:
    """Raise UsageError for an unknown value, or for values that exclude each other."""
    memory = config.memory
    values.one_of("memory.weights", memory.weights, WEIGHTS)
    values.one_of("memory.attention", memory.attention, ATTENTIONS)
    if memory.attention == "flash_attention_2" and config.hardware.device == "cpu":
        raise UsageError(
            "memory.attention is flash_attention_2, and hardware.device is cpu; expected a GPU; use "
            "memory.attention=sdpa"
        )


def check(config: CanaryConfig) -> None:
    """Raise SetupError for a missing package; imports none."""
    if any(word in config.train.optimizer for word in OF_BITSANDBYTES) and find_spec("bitsandbytes") is None:
        raise SetupError(
            f"train.optimizer={config.train.optimizer} needs the package bitsandbytes, which is not installed; "
            "pip install bitsandbytes, or use train.optimizer=adamw_torch"
        )
    if config.memory.attention == "flash_attention_2" and find_spec("flash_attn") is None:
        raise SetupError(
            "memory.attention=flash_attention_2 needs the package flash-attn, which is not installed; "
            "pip install flash-attn, or use memory.attention=sdpa"
        )


def loading_options(config: CanaryConfig, device: Device) -> dict[str, Any]:
    """Arguments for from_pretrained: the attention, and the dtype in which the files are read, with no other in
    between.

    Trained weights are float32 unless asked otherwise (mixed precision is the trainer's), frozen ones take the run's
    precision.
    """
    import torch

    wanted = config.memory.weights
    if wanted == "auto":
        wanted = "fp32" if config.adapter.name == "full" else device.precision
    options: dict[str, Any] = {"dtype": torch.bfloat16 if wanted == "bf16" else torch.float32}
    if config.memory.attention != "auto":
        options["attn_implementation"] = config.memory.attention
    return options


def work(config: CanaryConfig) -> dict[str, str]:
    """The memory settings that two runs must share to be compared: the precision of the weights. The others affect time
    and memory, which the gate judges."""
    return {} if config.memory.weights == "auto" else {"weights": config.memory.weights}


def rounding(config: CanaryConfig, device: Device) -> str:
    """The precision in which a run computes: on a quantized base, adapters are bfloat16 whatever was requested."""
    coarse = config.quantization.name != "none" or config.memory.weights == "bf16"
    return "bf16" if coarse else device.precision
