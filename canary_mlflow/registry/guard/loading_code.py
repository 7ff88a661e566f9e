"""What code loading a version's files can run. Sound weights say nothing of a pickle, an `auto_map` or a module that
lies beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from canary_mlflow.files.documents import read_json

LOADING, RESUMING = "loading", "resuming"  # keys of a seal's row
# A loader unpickles these if it is given the folder (from_pretrained where safetensors are not preferred, MLflow's
# python_function), or finds a module among them by its name.
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill")
MODULES = (".py", ".pyc", ".so")
CONFIG = "config.json"  # also tokenizer_config.json, preprocessor_config.json, adapter_config.json …
NAMING = ("auto_map", "custom_pipelines")  # keys of it that name code of the folder or of any repository of a hub
# Every save of a Trainer, of Accelerate and of DeepSpeed has some of these; nothing but a resumed training reads them.
RESUMED = re.compile(
    r"training_args\.bin|(optimizer|scheduler|scaler|sampler)(_\d+)?\.(pt|bin)|rng_state(_\d+)?\.pth"
    r"|random_states_\d+\.pkl|\w+_(optim|model)_states\.pt"
)


def code_in(place: Path, names: Iterable[str]) -> dict[str, list[str]]:
    """What among a version's files is code, or names some: what loading can run, and what only resuming reads."""
    found: dict[str, list[str]] = {LOADING: [], RESUMING: []}
    for name in sorted(names):
        if said := _said(place / name, name):
            found[RESUMING if RESUMED.fullmatch(name.lower().rpartition("/")[2]) else LOADING].append(said)
    return found


def _said(file: Path, name: str) -> str:
    plain = name.lower()
    if plain.endswith(PICKLES):
        return f"{name} (pickle)"
    if plain.endswith(MODULES):
        return name
    if not plain.endswith(CONFIG):
        return ""
    try:
        body = read_json(file)
    except (OSError, ValueError):
        return f"{name} (cannot be read)"
    keys = [key for key in NAMING if isinstance(body, dict) and body.get(key)]
    return f"{name} ({', '.join(keys)})" if keys else ""
