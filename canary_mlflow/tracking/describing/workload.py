"""The work as told by a trainer's arguments, for scripts that do not state it themselves, and which of these arguments
stand at their class's default. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from canary_mlflow.gates.facts.check import INCIDENTAL
from canary_mlflow.tracking.describing.data_facts import data_of
from canary_mlflow.tracking.describing.fact_tags import as_text

OWN_WORK = ("packing", "num_generations", "max_completion_length")
"""Arguments of some trainers that set the amount of work; left out if a trainer lacks them, or they are off."""


RENAMED = {"ppov2": "ppo"}  # TRL 0.9 to 0.12


def algorithm_of(args: Any, trainer: Any = None) -> str:
    """sft, dpo, … from the class of the arguments (SFTConfig) or the trainer (DPOTrainer); `trainer` if neither is
    TRL's. A script's own class (`class Arguments(SFTConfig)`) is what TRL's nearest class above it is."""
    for value, ending in ((args, "Config"), (trainer, "Trainer")):
        names = [kind.__name__ for kind in type(value).__mro__ if kind.__module__.partition(".")[0] == "trl"]
        if name := next((one for one in names if not one.startswith("_")), ""):
            found = name.removesuffix(ending).lower() if name.endswith(ending) else "trainer"
            return RENAMED.get(found, found)
    name = type(args).__name__
    return name.removesuffix("Config").lower() if name.endswith("Config") else "trainer"


def logs_as(args: Any, trainer: Any) -> str:
    """The algorithm by the class of the arguments, if the trainer is made from TRL's or is ours; else `trainer`."""
    made_from = {kind.__module__.partition(".")[0] for kind in type(trainer).__mro__}
    return algorithm_of(args) if trainer is None or made_from & {"trl", "canary_mlflow"} else "trainer"


def workload_of(args: Any, model: Any, trainer: Any, max_steps: int, algo: str) -> dict[str, str]:
    """The workload of a run whose script did not give one, from arguments, model and data."""
    precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32"
    return {
        "algo": algo,
        "model": model_of(model),
        "adapter": adapter_of(model),
        "max_steps": str(max_steps),
        "batch_size": str(args.per_device_train_batch_size),
        "gradient_accumulation_steps": str(args.gradient_accumulation_steps),
        "max_length": str(getattr(args, "max_length", getattr(args, "max_seq_length", None))),  # SFT's to TRL 0.15
        "precision": precision,
        **{key: str(value) for key in OWN_WORK if (value := getattr(args, key, None))},
        **data_of(trainer),
    }


def adapter_of(model: Any) -> str:
    """`lora` or `full`."""
    return "lora" if getattr(model, "peft_config", None) else "full"


def model_of(model: Any) -> str:
    """The model's name on the hub; for one that was built, or lies in a local folder, its shape."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = getattr(base, "config", None)
    name = str(getattr(config, "_name_or_path", "") or "")
    is_folder = name.startswith((".", "~")) or Path(name).is_absolute() or Path(name).is_dir()
    return shape_of(base, config) if not name or is_folder else name


def shape_of(model: Any, config: Any) -> str:
    """How a model without a name is identified. Not by its whole configuration, which gets new keys with each release
    of Transformers: a change to be judged, but not other work."""
    sizes = {name: getattr(config, name, None) for name in ("num_hidden_layers", "hidden_size", "vocab_size")}
    known = [f"{name} {size}" for name, size in sizes.items() if isinstance(size, int)]
    count = parameter_count(model)
    return " ".join([type(model).__name__, *known, *([f"parameters {count}"] if count else [])])


def parameter_count(model: Any) -> int:
    """The number of parameters without those of LoRA adapters, whose rank is a hyper-parameter; 0 if there are none."""
    named = model.named_parameters() if hasattr(model, "named_parameters") else ()
    # DeepSpeed's third stage leaves each rank an empty tensor, which knows its full size.
    return sum(int(getattr(one, "ds_numel", one.numel())) for name, one in named if "lora_" not in name)


NO_SETTING = frozenset({"_attn_implementation_autoset", "_name_or_path", "architectures", "base_model_name_or_path",
                        "logging_nan_inf_filter", "model_type", "peft_version", "runtime_config",
                        "transformers_version"})  # fmt: skip
"""Keys of arguments and configurations that tell where something comes from, or that we set ourselves."""


def at_default(values: Any, plain_values: Mapping[str, Any]) -> frozenset[str]:
    """The fields of a dataclass that nobody set: at their default, or set by us. `plain_values`: its values, plain."""
    usual = _defaults(values)
    same = {name for name in usual.keys() & plain_values.keys() if _equal(plain_values[name], usual[name])}
    return frozenset(same | NO_SETTING)


def changed_fields(values: Any, plain_values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass that are not at their default, without those that differ from run to run anyway."""
    left_out = at_default(values, plain_values) | INCIDENTAL
    return {name: plain_values[name] for name in sorted(_defaults(values).keys() & plain_values.keys() - left_out)}


def _defaults(values: Any) -> dict[str, Any]:
    if not is_dataclass(values):
        return {}
    return {
        one.name: one.default if one.default_factory is MISSING else one.default_factory() for one in fields(values)
    }


def _equal(value: Any, usual: Any) -> bool:
    return as_text(value) == as_text(getattr(usual, "value", usual))
