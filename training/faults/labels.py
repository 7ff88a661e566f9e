"""A fault of the data: better and worse answers change places."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from canary_mlflow.training.config import FaultConfig
from canary_mlflow.training.datasets.rows import draw
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.faults.fault import SHARE, Fault

if TYPE_CHECKING:
    from canary_mlflow.training.parts import Parts

DRAWS = 2**64


class FlippedLabels(Fault):
    """The answers of a share `strength` of the training pairs are swapped; the held-out pairs stay as they are.

    The pairs are drawn at random: the embedded data flip every fifth pair, and a regular choice would flip those back.
    """

    strengths = SHARE

    def prepare(self, parts: Parts, fault: FaultConfig) -> Parts:
        assert fault.strength is not None
        limit = fault.strength * DRAWS

        def swap(row: dict[str, Any], position: int) -> dict[str, Any]:
            if not row["rejected"]:
                raise SetupError(f"fault={fault.name}: the data hold one answer per prompt; expected pairs to flip")
            if draw("flipped_labels", position) >= limit:
                return row
            return {**row, "chosen": row["rejected"], "rejected": row["chosen"]}

        return replace(parts, train_dataset=parts.train_dataset.map(swap, with_indices=True))
