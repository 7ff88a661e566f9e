"""The model that is trained and its tokenizer: embedded, from the hub, or from a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.assets import tiny
from training.config import CanaryConfig, ModelConfig
from training.errors import SetupError
from training.hub import MODEL_PATTERNS, Repository, locate, missing_model_files
from training.quantization import quantization_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from training.devices import Device


def model_folder(model: ModelConfig) -> Path:
    """Return the folder that holds the model's files, building or fetching them first; imports no torch
    unless the embedded model has to be built. Raises SetupError in one line."""
    if model.source not in SOURCES:
        raise SetupError(f"model.source is {model.source!r}; expected one of {', '.join(SOURCES)}")
    return SOURCES[model.source](model)


def check(model: ModelConfig) -> None:
    """Raise SetupError unless the model can be loaded; imports no torch, fetches hub files that are missing."""
    if model.source == "embedded":
        tiny.check_tiny_model()
    else:
        model_folder(model)


def layer_names(model: ModelConfig) -> set[str] | None:
    """The last names of the layers that hold a matrix, for a model that `check` has passed; imports no torch.

    None when its weights are not in safetensors files: only torch reads the others.
    """
    if model.source == "embedded":
        return set(tiny.LINEAR_LAYERS)
    from safetensors import safe_open

    found: set[str] = set()
    for path in model_folder(model).glob("*.safetensors"):
        with safe_open(path, framework="numpy") as weights:
            for key in weights.keys():  # noqa: SIM118 - no mapping, whatever its methods are called
                layer, _, kind = key.rpartition(".")
                if kind == "weight" and len(weights.get_slice(key).get_shape()) == 2:
                    found.add(layer.rpartition(".")[2])
    return found or None


def positions(model: ModelConfig) -> int | None:
    """How many tokens the model takes at most, where its config says so; imports no torch."""
    if model.source == "embedded":
        return int(tiny.ARCHITECTURE["max_position_embeddings"])
    config = json.loads((model_folder(model) / "config.json").read_text(encoding="utf-8"))
    found = config.get("max_position_embeddings", config.get("n_positions"))
    return found if isinstance(found, int) else None


def _embedded(model: ModelConfig) -> Path:
    return tiny.tiny_model_folder()


def _from_hub(model: ModelConfig) -> Path:
    if not model.path:
        raise SetupError(f"model={model.name} names no repository; expected model.path=OWNER/NAME")
    return locate(
        Repository(
            name=model.path,
            kind="model",
            asked_by=f"model={model.name}",
            probe="config.json",
            patterns=MODEL_PATTERNS,
            missing=missing_model_files,
            revision=model.revision,
        )
    )


def _from_folder(model: ModelConfig) -> Path:
    if not model.path:
        raise SetupError(f"model={model.name} names no folder; expected model.path=FOLDER with a Transformers model")
    folder = Path(model.path).expanduser()
    if not folder.is_dir():
        raise SetupError(f"model.path={model.path} is no folder; expected one with config.json, weights and tokenizer")
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise SetupError(f"model.path={model.path} holds an adapter only; expected a whole model; merge it first")
    if lacks := missing_model_files(folder):
        raise SetupError(
            f"model.path={model.path} lacks {', '.join(lacks)}; expected a folder that save_pretrained wrote"
        )
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise SetupError(f"{folder / 'config.json'} is no JSON ({error}); expected a Transformers config") from error
    if "model_type" not in config:
        raise SetupError(f"{folder / 'config.json'} has no model_type; expected a Transformers config")
    _check_files(folder)
    return folder


def _check_files(folder: Path) -> None:
    """Open what can be opened without torch: a half-copied file is better found before anything is recorded."""
    from safetensors import SafetensorError, safe_open
    from tokenizers import Tokenizer

    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise SetupError(f"{path} is no whole safetensors file ({_first_line(error)}); copy it again") from error
    if (folder / "tokenizer.json").is_file():
        try:
            Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises no type of its own
            raise SetupError(
                f"{folder / 'tokenizer.json'} is no tokenizer ({_first_line(error)}); expected one that "
                "save_pretrained wrote"
            ) from error


SOURCES: dict[str, Callable[[ModelConfig], Path]] = {
    "embedded": _embedded,
    "hub": _from_hub,
    "local": _from_folder,
}


def revision_of(model: ModelConfig, folder: Path) -> str:
    """Return what identifies the weights: the recipe's digest, the hub's commit, or a digest of the local files."""
    if model.source == "embedded":
        return tiny.tiny_model_digest()
    if model.source == "hub":
        return folder.name  # the hub's cache names snapshots by commit
    return _fingerprint(folder)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer, with a padding token and padding on the left (as generation needs it)."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:
        raise SetupError(
            f"{folder} has no tokenizer that transformers {version('transformers')} can load: {_first_line(error)}"
        ) from error
    if tokenizer.eos_token is None:
        raise SetupError(f"the tokenizer in {folder} has no end-of-text token; expected eos_token in its config")
    if tokenizer.pad_token is None:
        # Pythia has a padding token without naming it as such; falling back to end-of-text is TRL's habit.
        padding = "<|padding|>"
        tokenizer.pad_token = padding if padding in tokenizer.get_vocab() else tokenizer.eos_token
    tokenizer.padding_side = "left"
    return tokenizer


def load_model(config: CanaryConfig, folder: Path, tokenizer: Any, device: Device) -> PreTrainedModel:
    """Load the weights in the precision in which they are trained or frozen.

    Weights that are trained stay float32 (mixed precision is the trainer's), frozen ones under LoRA take the
    run's precision. Raises SetupError when weights are missing, or the tokenizer has more tokens than they.
    """
    import torch
    from transformers import AutoModelForCausalLM

    run_dtype = torch.bfloat16 if device.precision == "bf16" else torch.float32
    options: dict[str, Any] = {"dtype": torch.float32 if config.adapter.name == "full" else run_dtype}
    quantization = quantization_config(config.quantization, run_dtype)
    if quantization is not None:
        options |= {
            "quantization_config": quantization,
            "device_map": {"": 0 if device.kind == "cuda" else "cpu"},
        }
    try:
        with torch.random.fork_rng(devices=[]):
            model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    except Exception as error:
        raise SetupError(f"{folder} holds no causal language model that can be loaded: {_first_line(error)}") from error
    if absent := sorted(info["missing_keys"]):
        raise SetupError(
            f"{folder} lacks {len(absent)} weights (first: {absent[0]}); expected a whole causal language model"
        )
    places = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > places:
        raise SetupError(
            f"the tokenizer in {folder} has {len(tokenizer)} tokens, the model {places}; "
            "expected one made for the other"
        )
    model.config.pad_token_id = tokenizer.pad_token_id
    if model.generation_config is not None:
        model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def _fingerprint(folder: Path) -> str:
    import hashlib

    sha = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name == "config.json" or path.suffix in (".safetensors", ".bin"):
            with path.open("rb") as file:
                sha.update(f"{path.name}:{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return sha.hexdigest()[:16]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
