"""The number of bits of frozen weights: as trained, or 4 or 8 through bitsandbytes (which also runs on a CPU)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from canary_mlflow.training.config import AdapterConfig, QuantizationConfig
from canary_mlflow.training.errors import SetupError

if TYPE_CHECKING:
    import torch
    from transformers import BitsAndBytesConfig, PreTrainedModel


def check(quantization: QuantizationConfig, adapter: AdapterConfig) -> None:
    """Raise SetupError for an unknown kind, a missing package, or full fine-tuning; imports no torch."""
    name = quantization.name
    if name not in QUANTIZATIONS:
        raise SetupError(f"quantization.name is {name!r}; expected one of {', '.join(QUANTIZATIONS)}")
    if name == "none":
        return
    if adapter.name == "full":
        raise SetupError(
            f"quantization={name} with adapter=full cannot be trained: quantized weights take no gradient; "
            "use adapter=lora"
        )
    if find_spec("bitsandbytes") is None:
        raise SetupError(
            f"quantization={name} needs the package bitsandbytes, which is not installed; pip install bitsandbytes"
        )


def stored(settings: Mapping[str, Any]) -> str:
    """How a model's own files keep its weights, by its config.json: as one of QUANTIZATIONS, or the method's name."""
    own = settings.get("quantization_config") or {}
    if own.get("load_in_8bit"):
        return "int8"
    return "nf4" if own.get("load_in_4bit") else str(own.get("quant_method") or "none")


def check_stored(settings: Mapping[str, Any], adapter: AdapterConfig, asked_by: str) -> None:
    """Raise SetupError if all of the weights are to be trained that bitsandbytes has quantized."""
    kept = stored(settings)
    if adapter.name == "full" and kept in QUANTIZATIONS and kept != "none":
        raise SetupError(
            f"{asked_by}: its files hold weights quantized to {kept}, which take no gradient; expected adapter=lora"
        )


def quantization_config(quantization: QuantizationConfig, compute: torch.dtype) -> BitsAndBytesConfig | None:
    """Return what from_pretrained needs to quantize on loading, or None. `compute`: the dtype of matmuls."""
    return QUANTIZATIONS[quantization.name](compute)


def keep_trainable(model: PreTrainedModel) -> None:
    """Keep bitsandbytes from repacking 4-bit weights for inference.

    On a CPU with AVX512-BF16, a layer's forward pass in eval() mode repacks them for good, and rounds their scales to
    bfloat16: the next training step then fails in autograd (layers with a bias) or silently has wrong gradients (layers
    without one). Every rollout and evaluation is such a pass.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def _none(compute: torch.dtype) -> None:
    return None


def _nf4(compute: torch.dtype) -> BitsAndBytesConfig:
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
    )


def _int8(compute: torch.dtype) -> BitsAndBytesConfig:
    from transformers import BitsAndBytesConfig

    # bitsandbytes warns at every matmul that it casts to float16, which is how LLM.int8 works.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    return BitsAndBytesConfig(load_in_8bit=True)


QUANTIZATIONS: dict[str, Callable[[torch.dtype], BitsAndBytesConfig | None]] = {
    "none": _none,
    "nf4": _nf4,
    "int8": _int8,
}
