"""The files of the model that is trained: embedded, from the hub, or from a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from canary_mlflow.training import quantization
from canary_mlflow.training.assets import tiny
from canary_mlflow.training.config import AdapterConfig, ModelConfig
from canary_mlflow.training.errors import SetupError, first_line
from canary_mlflow.training.hub import MODEL_PATTERNS, TOKENIZER_FILES, Repository, locate, missing_model_files


def model_folder(model: ModelConfig) -> Path:
    """Return the folder that holds the model's files, building or fetching them first; imports no torch
    unless the embedded model has to be built. Raises SetupError in one line."""
    if model.source not in SOURCES:
        raise SetupError(f"model.source is {model.source!r}; expected one of {', '.join(SOURCES)}")
    return SOURCES[model.source](model)


def check(model: ModelConfig, adapter: AdapterConfig) -> None:
    """Raise SetupError unless the model can be loaded and trained so; imports no torch, fetches hub files that are
    missing."""
    template_of(model)
    if model.source == "embedded":
        tiny.check_tiny_model()
    else:
        folder = model_folder(model)
        refuse_own_code(folder, f"model={model.name}")
        quantization.check_stored(read_config(folder), adapter, f"model={model.name}")


def template_of(model: ModelConfig) -> str:
    """The text of the chat template that replaces the tokenizer's; "" if none does. Raises SetupError."""
    if not model.chat_template:
        return ""
    try:
        return Path(model.chat_template).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(
            f"model.chat_template={model.chat_template} cannot be read ({first_line(error)}); expected a Jinja file"
        ) from error


def refuse_own_code(folder: Path, asked_by: str) -> None:
    """Raise SetupError for a model that only code in its own folder can load: a canary never runs such code. A kind
    that Transformers knows is loaded as that kind, whatever code lies beside it."""
    config = read_config(folder)
    home = find_spec("transformers")
    kinds = Path(next(iter(home.submodule_search_locations or ()))) / "models" if home else folder
    kind = str(config.get("model_type", ""))
    if config.get("auto_map") and not (kind and (kinds / kind.replace("-", "_")).is_dir()):
        raise SetupError(
            f"{asked_by}: {folder} needs its own code (auto_map in its config.json), and a canary runs no code "
            f"of a model; expected a model_type that Transformers has, found {kind!r}"
        )


def layer_names(model: ModelConfig) -> set[str] | None:
    """The last parts of the names of layers that hold a matrix, for a model that passed `check`; imports no torch.

    None if its weights are not in safetensors files: only torch can read others.
    """
    if model.source == "embedded":
        return set(tiny.LINEAR_LAYERS)
    from safetensors import safe_open

    found: set[str] = set()
    for path in model_folder(model).glob("*.safetensors"):
        with safe_open(path, framework="numpy") as weights:
            for key in weights.keys():  # noqa: SIM118 - not a mapping, despite its methods' names
                layer, _, kind = key.rpartition(".")
                if kind == "weight" and len(weights.get_slice(key).get_shape()) == 2:
                    found.add(layer.rpartition(".")[2])
    return found or None


def positions(model: ModelConfig) -> int | None:
    """The maximum number of tokens that the model takes, or None if its config does not say; imports no torch."""
    if model.source == "embedded":
        return int(tiny.ARCHITECTURE["max_position_embeddings"])
    config = read_config(model_folder(model))
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
        raise SetupError(
            f"model.path={model.path} is not a folder; expected one with config.json, weights and tokenizer"
        )
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise SetupError(f"model.path={model.path} holds an adapter only; expected a whole model; merge it first")
    if lacks := missing_model_files(folder):
        raise SetupError(
            f"model.path={model.path} lacks {', '.join(lacks)}; expected a folder that save_pretrained wrote"
        )
    read_config(folder)
    _check_files(folder)
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """What the folder's config.json says. Raises SetupError unless it is that of a Transformers model."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} is not JSON ({first_line(error)}); expected a Transformers config") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise SetupError(f"{path} has no model_type; expected a Transformers config")
    return config


def _check_files(folder: Path) -> None:
    """Open what can be opened without torch, to find a half-copied file before anything is recorded."""
    from safetensors import SafetensorError, safe_open
    from tokenizers import Tokenizer

    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise SetupError(f"{path} is not a whole safetensors file ({first_line(error)}); copy it again") from error
    if (folder / "tokenizer.json").is_file():
        try:
            Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers has no exception type of its own
            raise SetupError(
                f"{folder / 'tokenizer.json'} is not a tokenizer ({first_line(error)}); expected one that "
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
    return fingerprint(folder)


def fingerprint(folder: Path) -> str:
    """A digest of what a model computes: its config, weights and tokenizer, wherever the folder lies."""
    import hashlib

    sha = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name in ("config.json", *TOKENIZER_FILES) or path.suffix in (".safetensors", ".bin"):
            with path.open("rb") as file:
                sha.update(f"{path.name}:{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return sha.hexdigest()[:16]
