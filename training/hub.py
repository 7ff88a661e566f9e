"""Repositories of the Hugging Face hub as folders on this machine, without torch and without a long wait."""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from canary_mlflow.training.errors import SetupError

REACH_SECONDS = 10.0  # a hub that has not answered by then counts as out of reach
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
MODEL_PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A hub repository. `kind`: model or dataset. `asked_by`: the option that named it."""

    name: str
    kind: str
    asked_by: str
    probe: str  # a file that every copy of the repository has
    patterns: tuple[str, ...]
    missing: Callable[[Path], list[str]]  # what a folder lacks to be used
    revision: str | None = None


def locate(repository: Repository) -> Path:
    """Return the folder of a repository: the cached copy if it is whole, else a fresh download.

    A cached copy is never renewed: a canary compares like with like until its user fetches a new revision.
    Raises SetupError in one line if neither is possible.
    """
    folder = _cached(repository)
    if folder is not None and not repository.missing(folder):
        return folder
    lacks = ", ".join(repository.missing(folder)) if folder is not None else "nothing of it is cached"
    if _is_offline():
        raise SetupError(_unavailable(repository, "HF_HUB_OFFLINE forbids downloads", lacks))
    _ask_hub(repository, lacks)
    return _download(repository)


def missing_model_files(folder: Path) -> list[str]:
    """Return what a folder lacks to be a Transformers model with its tokenizer, in words."""
    found = [] if (folder / "config.json").is_file() else ["config.json"]
    found += _missing_weights(folder)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        found.append(f"the tokenizer ({' or '.join(TOKENIZER_FILES[:2])})")
    return found


def _missing_weights(folder: Path) -> list[str]:
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return []
        index = folder / f"{name}.index.json"
        if index.is_file():
            shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            return [shard for shard in shards if not (folder / shard).is_file()]
    return [f"the weights ({WEIGHT_FILES[0]})"]


def _cached(repository: Repository) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(
            repository.name, repository.probe, revision=repository.revision, repo_type=repository.kind
        )
    except HFValidationError as error:
        raise SetupError(
            f"{repository.asked_by}: {repository.name!r} is not a hub repository; expected OWNER/NAME"
        ) from error
    if not isinstance(found, str):
        return None
    return Path(found).parents[len(Path(repository.probe).parts) - 1]


def _is_offline() -> bool:
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"} for name in names)


def _ask_hub(repository: Repository, lacks: str) -> None:
    """Raise SetupError unless the hub answers in time that it has the repository for us."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    answers: queue.Queue[Exception | None] = queue.Queue()

    def ask() -> None:
        try:
            HfApi().repo_info(
                repository.name,
                repo_type=repository.kind,
                revision=repository.revision,
                timeout=REACH_SECONDS,
            )
            answers.put(None)
        except Exception as error:  # noqa: BLE001 - handed to the caller, which sorts it
            answers.put(error)

    # A thread, because name resolution and proxies do not respect our timeout.
    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=REACH_SECONDS)
    except queue.Empty:
        answer = TimeoutError(f"no answer in {REACH_SECONDS:.0f} s")
    if answer is None:
        return
    if isinstance(answer, GatedRepoError):
        reason = "the hub requires a login with access to it (hf auth login)"
    elif isinstance(answer, RevisionNotFoundError):
        reason = f"the hub has no revision {repository.revision!r} of it"
    elif isinstance(answer, RepositoryNotFoundError):
        reason = "the hub knows no such repository, or hides it from you"
    else:
        reason = f"the hub cannot be reached ({type(answer).__name__})"
    raise SetupError(_unavailable(repository, reason, lacks)) from answer


def _download(repository: Repository) -> Path:
    from huggingface_hub import snapshot_download

    def fetch(patterns: tuple[str, ...]) -> Path:
        return Path(
            snapshot_download(
                repository.name,
                repo_type=repository.kind,
                revision=repository.revision,
                allow_patterns=list(patterns),
            )
        )

    try:
        folder = fetch(repository.patterns)
        if repository.kind == "model" and _missing_weights(folder):
            folder = fetch(("*.bin", "*.bin.index.json"))  # published before safetensors
    except Exception as error:
        raise SetupError(_unavailable(repository, f"the download failed ({type(error).__name__})", "")) from error
    if lacks := repository.missing(folder):
        raise SetupError(f"{repository.asked_by}: {repository.name} on the hub lacks {', '.join(lacks)}")
    return folder


def _unavailable(repository: Repository, reason: str, lacks: str) -> str:
    kind = " --repo-type dataset" if repository.kind == "dataset" else ""
    revision = f" --revision {repository.revision}" if repository.revision else ""
    own = "data.path=FOLDER" if repository.kind == "dataset" else "./FOLDER"
    own = "model=local model.path=FOLDER" if repository.asked_by.startswith("model=") else own
    state = f" and the cache lacks it ({lacks})" if lacks else ""
    return (
        f"{repository.asked_by} needs {repository.name}, but {reason}{state}; where the hub can be reached run "
        f"`hf download {repository.name}{kind}{revision}` and copy that cache here (HF_HOME), or give a folder: {own}"
    )
