"""What a trainer's arguments say about the work, for scripts that do not say it themselves."""

from __future__ import annotations

from typing import Any


def algorithm_of(args: Any) -> str:
    """sft, dpo, … from the class of the arguments (SFTConfig); `trainer` for TrainingArguments."""
    name = type(args).__name__
    return name.removesuffix("Config").lower() if name.endswith("Config") else "trainer"


def workload_of(args: Any, state: Any, model: Any, algo: str) -> dict[str, str]:
    """The comparability key of a run whose script did not give one: from arguments and model."""
    config = getattr(model, "config", None)
    peft = getattr(model, "peft_config", None)
    precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32"
    return {
        "algo": algo,
        "model": str(getattr(config, "_name_or_path", "") or shape_of(model, config)),
        "adapter": "lora" if peft else "full",
        "max_steps": str(state.max_steps),
        "batch_size": str(args.per_device_train_batch_size),
        "gradient_accumulation_steps": str(args.gradient_accumulation_steps),
        "max_length": str(getattr(args, "max_length", None)),
        "precision": precision,
    }


def shape_of(model: Any, config: Any) -> str:
    """What a model that was built and not loaded is known by. Not all of its configuration: that gets new keys with
    each release of Transformers, which is a change to be judged and no other work."""
    sizes = {name: getattr(config, name, None) for name in ("num_hidden_layers", "hidden_size", "vocab_size")}
    known = [f"{name} {size}" for name, size in sizes.items() if isinstance(size, int)]
    return " ".join([type(model).__name__, *known])
