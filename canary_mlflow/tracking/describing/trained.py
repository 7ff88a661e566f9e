"""How the weights that a run ended with, and those in a folder, are named and compared. Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from canary_mlflow.tracking.describing.fact_tags import digest

FILE = "trained.json"
"""The run's artifact. Its digest is in the ledger's row about the end of the session."""
TYPES = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}  # how NumPy reads them
VALUES = 8  # of each tensor; all of it speaks through its norm and the model's answer
STEP = 0x9E3779B1  # 2³² / φ: places far from each other, the same in every release


def places(count: int) -> list[int]:
    """Where in a tensor of so many numbers the recorded ones are."""
    return sorted({(at * STEP + STEP // 3) % count for at in range(VALUES)})


def rules_digest(rules: Mapping[str, Any]) -> str:
    """A digest of a tokenizer.json: vocabulary and rules, without padding and truncation, which change with each
    call."""
    return digest(json.dumps({key: rules[key] for key in sorted(rules) if key not in ("padding", "truncation")}))


def saved_name(name: str, adapters: Iterable[str] = ()) -> str:
    """The name of a parameter in a saved file; of an adapter's, in the adapter's own file."""
    name = name.replace("_orig_mod.", "")
    for adapter in adapters:
        name = f"{name}.".replace(f".modules_to_save.{adapter}.", ".").replace(f".{adapter}.", ".")[:-1]
    return name


def merged_name(name: str) -> str:
    """From its `saved_name`, the name of an adapted model's weight once the adapter is merged."""
    return name.replace("base_model.model.", "").replace(".base_layer.", ".")
