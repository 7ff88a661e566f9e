"""Several held-out sets of one training, each evaluated under its own name: what they say together. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from canary_mlflow.tracking.schema import as_number, canonical

PREFIX = "eval_"


class Evaluations:
    """Transformers evaluates `eval_dataset={"docs": …, "code": …}` set by set and logs eval_docs_loss, then
    eval_code_loss, but no eval_loss, which is what decides."""

    def __init__(self, trainer: Any) -> None:
        data = getattr(trainer, "eval_dataset", None)
        self._sets = frozenset(map(str, data if isinstance(data, Mapping) and not hasattr(data, "features") else ()))
        self._step = -1
        self._held: dict[str, dict[str, float]] = {}  # canonical name → set → value

    def means(self, step: int, logs: Mapping[str, object]) -> dict[str, float]:
        """Canonical name → mean over the sets, for each metric that the last of the sets has just logged."""
        found: dict[str, float] = {}
        if step != self._step:
            self._step, self._held = step, {}
        for name in self._sets:
            start = f"{PREFIX}{name}_"
            for key, value in logs.items():
                metric, number = canonical(PREFIX + key.removeprefix(start)), as_number(value)
                if not key.startswith(start) or metric is None or number is None:
                    continue
                held = self._held.setdefault(metric, {})
                held[name] = number
                if held.keys() == self._sets:
                    found[metric] = sum(held.values()) / len(held)
                    del self._held[metric]
        return found
