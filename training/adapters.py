"""Which weights are trained: all of them, or a LoRA adapter on frozen ones."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from canary_mlflow.training.config import AdapterConfig
from canary_mlflow.training.errors import SetupError

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel


def check(adapter: AdapterConfig) -> None:
    """Raise SetupError for an unknown adapter, impossible LoRA sizes, or a missing package; imports no torch."""
    if adapter.name not in ADAPTERS:
        raise SetupError(f"adapter.name is {adapter.name!r}; expected one of {', '.join(ADAPTERS)}")
    if adapter.name == "full":
        return
    if find_spec("peft") is None:
        raise SetupError(f"adapter={adapter.name} needs the package peft, which is not installed; pip install peft")
    if adapter.r < 1:
        raise SetupError(f"adapter.r is {adapter.r}; expected a rank of at least 1")
    if not adapter.alpha > 0:
        raise SetupError(f"adapter.alpha is {adapter.alpha}; expected more than 0")
    if not 0 <= adapter.dropout < 1:
        raise SetupError(f"adapter.dropout is {adapter.dropout}; expected 0 or more, below 1")
    if not _modules(adapter.target_modules):
        raise SetupError("adapter.target_modules is empty; expected all-linear, or module names joined by commas")


def check_modules(adapter: AdapterConfig, present: set[str]) -> None:
    """Raise SetupError for modules that the model does not have. `present`: the last parts of its layers' names."""
    wanted = _modules(adapter.target_modules)
    if adapter.name == "full" or wanted == ["all-linear"]:
        return
    if unknown := sorted(set(wanted) - present):
        raise SetupError(
            f"adapter.target_modules names {', '.join(unknown)}; the model has {', '.join(sorted(present))}; "
            "name some of these, or all-linear"
        )


def peft_config(adapter: AdapterConfig, model: PreTrainedModel, head: str = "language") -> PeftConfig | None:
    """Return what PEFT needs to wrap the model, or None for full fine-tuning.

    Raises SetupError for any module that the model does not have; PEFT accepts a list of which it has just one.
    """
    check(adapter)
    check_modules(adapter, _linear_modules(model))
    return ADAPTERS[adapter.name](adapter, head)


def _full(adapter: AdapterConfig, head: str) -> None:
    return None


def _lora(adapter: AdapterConfig, head: str) -> PeftConfig:
    from peft import LoraConfig

    names = _modules(adapter.target_modules)
    return LoraConfig(
        task_type="CAUSAL_LM" if head == "language" else "SEQ_CLS",  # the latter also trains the new head
        r=adapter.r,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=names[0] if names == ["all-linear"] else names,
    )


def _linear_modules(model: PreTrainedModel) -> set[str]:
    """Return the last parts of the names of the model's linear layers, including quantized ones."""
    import torch

    return {name.rsplit(".", 1)[-1] for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}


def _modules(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


ADAPTERS: dict[str, Callable[[AdapterConfig, str], PeftConfig | None]] = {"full": _full, "lora": _lora}
