"""Writes what a run trained as a folder that MLflow loads: `MLmodel`, weights, tokenizer; a LoRA adapter with its base.

Written through `mlflow.models.Model`, because `mlflow.transformers.save_model` asks the hub for a card and a licence by
the model's name, records the hub's newest commit for a base instead of the one trained on, keeps this machine's path as
the model's name, and saves a base from inside its adapter.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow.training.assets.cache import SEAL
from canary_mlflow.training.config import CanaryConfig, ModelConfig
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.hub import MODEL_PATTERNS
from canary_mlflow.training.models import model_folder
from canary_mlflow.training.peers import leads

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer

    from canary_mlflow.training.devices import Device
    from canary_mlflow.training.parts import Parts

# Folder names that MLflow's flavour `transformers` expects.
MODEL = "model"
ADAPTER = "peft"
TOKENIZER = "components/tokenizer"
# Written by Trainer and PEFT beside the weights: a pickle of the settings and a model card, both with local paths.
NOT_KEPT = ("training_args.bin", "README.md")
PACKAGES = ("transformers", "torch", "accelerate")
PIPELINES = {
    "language": ("text-generation", "TextGenerationPipeline"),
    "score": ("text-classification", "TextClassificationPipeline"),
}


def write_model(trainer: Trainer, parts: Parts, config: CanaryConfig, folder: Path, run_id: str) -> None:
    """Write the trained model to `folder`. No file names a path of this machine.

    Full weights are in `model/`, a LoRA adapter in `peft/`. The adapter's base is named by hub id and commit; the files
    of an embedded or local base, which nobody else has, are in `model/`. PPO's value head is beside the policy.
    """
    weights = folder / (MODEL if parts.peft_config is None else ADAPTER)
    with router_silent(policy_of(trainer)):  # what is saved is there to answer
        trainer.save_model(str(weights))  # on every rank: each has a part of sharded weights
    if not leads():
        return
    for name in NOT_KEPT:
        (weights / name).unlink(missing_ok=True)
    parts.tokenizer.save_pretrained(folder / TOKENIZER)
    if parts.peft_config is not None:
        _name_base(weights / "adapter_config.json", config.model, parts.model_revision)
        if config.model.source != "hub":
            _copy_base(model_folder(config.model), folder / MODEL)
    _write_mlmodel(policy_of(trainer), parts, config, folder, run_id)


def evidence_only(folder: Path) -> None:
    """Write the note that replaces weights that are kept elsewhere, or nowhere (`tracking.weights=none`)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "EVIDENCE_ONLY.txt").write_text("Evidence only: no weights to load.\n")


def read_model(config: CanaryConfig, tokenizer: Any, device: Device, folder: Path) -> PreTrainedModel:
    """Load what `write_model` wrote from disk, in the run's precision and quantization. Raises SetupError, also for
    another tokenizer than the one that was trained with."""
    from transformers import AutoTokenizer

    from canary_mlflow.training.loading import load_model

    saved = AutoTokenizer.from_pretrained(folder / TOKENIZER)
    if saved.get_vocab() != tokenizer.get_vocab() or saved.chat_template != tokenizer.chat_template:
        raise SetupError(f"{TOKENIZER}: another tokenizer than in training; expected the same tokens and template")
    if config.adapter.name == "full":
        return load_model(config, folder / MODEL, tokenizer, device, inspect_only=True)
    from peft import PeftModel

    base = model_folder(config.model) if config.model.source == "hub" else folder / MODEL
    found: PreTrainedModel = PeftModel.from_pretrained(
        load_model(config, base, tokenizer, device, inspect_only=True), str(folder / ADAPTER)
    )
    return found


def policy_of(trainer: Trainer) -> Any:
    """The language model that a trainer trains; in PPO it is wrapped together with a value head."""
    return getattr(trainer.model, "policy", trainer.model)


def base_name(model: ModelConfig, revision: str) -> str:
    """The name under which an adapter's configuration keeps its base: the hub id, or a name with the digest of the
    files that are kept with it."""
    return str(model.path) if model.source == "hub" else f"{model.name}@{revision}"


def _name_base(file: Path, model: ModelConfig, revision: str) -> None:
    """Write the base's name into the adapter's file, not into PEFT's settings: PEFT looks up their name on saving."""
    adapter = json.loads(file.read_text(encoding="utf-8"))
    adapter["base_model_name_or_path"] = base_name(model, revision)
    adapter["revision"] = revision if model.source == "hub" else None
    file.write_text(json.dumps(adapter, indent=2), encoding="utf-8")


def _copy_base(base: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    patterns = MODEL_PATTERNS if any(base.glob("*.safetensors")) else (*MODEL_PATTERNS, "*.bin")
    for path in {path for pattern in patterns for path in base.glob(pattern) if path.name != SEAL}:
        shutil.copyfile(path, folder / path.name)


def _write_mlmodel(policy: Any, parts: Parts, config: CanaryConfig, folder: Path, run_id: str) -> None:
    import transformers
    from mlflow import pyfunc
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, DataType, Schema

    text = Schema([ColSpec(DataType.string)])
    score = Schema([ColSpec(DataType.string, "label"), ColSpec(DataType.double, "score")])
    model = Model(
        run_id=run_id,
        signature=ModelSignature(inputs=text, outputs=text if config.algo.head == "language" else score),
        model_size_bytes=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        metadata=_metadata(parts, config),
    )
    model.add_flavor("transformers", transformers_version=transformers.__version__, **_flavour(policy, parts, config))
    pyfunc.add_to_model(
        model, loader_module="mlflow.transformers", conda_env="conda.yaml", python_env="python_env.yaml"
    )
    model.save(str(folder / "MLmodel"))
    _write_environment(folder, adapted=parts.peft_config is not None)


def _flavour(policy: Any, parts: Parts, config: CanaryConfig) -> dict[str, Any]:
    """The attributes of MLflow's flavour `transformers` (mlflow/transformers/flavor_config.py)."""
    model = policy if parts.peft_config is None else policy.get_base_model()
    found: dict[str, Any] = {
        "task": PIPELINES[config.algo.head][0],
        "instance_type": PIPELINES[config.algo.head][1],
        "torch_dtype": str(model.dtype),
        "pipeline_model_type": type(model).__name__,
        "source_model_name": base_name(config.model, parts.model_revision),
        "components": ["tokenizer"],
        "tokenizer_type": type(parts.tokenizer).__name__,
    }
    if parts.peft_config is None:
        return {**found, "model_binary": MODEL}
    found["peft_adaptor"] = ADAPTER
    if config.model.source != "hub":
        return {**found, "model_binary": MODEL}
    hub = {"name": config.model.path, "revision": parts.model_revision}
    return {**found, "source_model_revision": hub["revision"], **{f"tokenizer_{key}": hub[key] for key in hub}}


def _metadata(parts: Parts, config: CanaryConfig) -> dict[str, str]:
    """Metadata on what was trained from what. A quantized base is loaded unquantized, unless the loader quantizes
    it."""
    return {
        "algo": config.algo.name,
        "adapter": config.adapter.name,
        "quantization": config.quantization.name,
        "base_source": config.model.source,
        "base": base_name(config.model, parts.model_revision),
        "base_revision": parts.model_revision,
    }


def _write_environment(folder: Path, *, adapted: bool) -> None:
    """Write the environment that `mlflow models serve` installs: the versions that trained."""
    import yaml
    from mlflow import pyfunc

    conda = pyfunc.get_default_conda_env()
    pip = next(item["pip"] for item in conda["dependencies"] if isinstance(item, dict))
    # Without the local version (`+cpu`), which no package index has.
    pip += [f"{name}=={version(name).partition('+')[0]}" for name in (*PACKAGES, *(("peft",) if adapted else ()))]
    python = next(item.removeprefix("python=") for item in conda["dependencies"] if str(item).startswith("python="))
    plain = {"python": python, "build_dependencies": ["pip", "setuptools", "wheel"]}
    (folder / "conda.yaml").write_text(yaml.safe_dump(conda, sort_keys=False))
    (folder / "requirements.txt").write_text("\n".join(pip) + "\n")
    (folder / "python_env.yaml").write_text(
        yaml.safe_dump({**plain, "dependencies": ["-r requirements.txt"]}, sort_keys=False)
    )


@contextmanager
def router_silent(model: Any) -> Iterator[None]:
    """Have the model return no router logits for a while; TRL switches them on for the loss that balances experts.

    While answers are drawn they break Transformers' generation: the balance is computed over the attention mask, which
    is longer than the tokens that are not in the cache yet. Any other model stays as it is.
    """
    settings = model.config.get_text_config()
    before = getattr(settings, "output_router_logits", None)
    if not before:
        yield
        return
    settings.output_router_logits = False
    try:
        yield
    finally:
        settings.output_router_logits = before
