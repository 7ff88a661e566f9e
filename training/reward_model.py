"""The files of the model that scores answers: from a folder, or from the hub; without torch."""

from __future__ import annotations

from pathlib import Path

from training.errors import SetupError
from training.hub import MODEL_PATTERNS, Repository, locate, missing_model_files
from training.models import fingerprint
from training.own_reward import source_digest
from training.reward_config import RewardConfig


def reward_folder(path: str) -> Path:
    """The folder with the classifier's files; files missing from the cache are fetched from the hub. Raises
    SetupError."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
            raise SetupError(f"algo.reward.path={path} holds an adapter only; expected a whole model; merge it first")
        if lacks := missing_model_files(folder):
            raise SetupError(
                f"algo.reward.path={path} lacks {', '.join(lacks)}; expected a sequence classifier's folder"
            )
        return folder
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise SetupError(f"algo.reward.path={path} is not a folder; expected one with a sequence classifier")
    return locate(
        Repository(
            name=path,
            kind="model",
            asked_by="algo.reward.path",
            probe="config.json",
            patterns=MODEL_PATTERNS,
            missing=missing_model_files,
        )
    )


def reward_revision(path: str) -> str:
    """What identifies the reward model on any machine: the hub's commit, or a digest of the local files."""
    folder = reward_folder(path)
    return fingerprint(folder) if Path(path).expanduser().is_dir() else folder.name


def revision_of(reward: RewardConfig) -> str:
    """What identifies a reward: the digest of a model's files or a function's source; "" for a rule on tokens."""
    if reward.kind == "model":
        return reward_revision(reward.path or "")
    return source_digest(reward.path or "") if reward.kind == "function" else ""
