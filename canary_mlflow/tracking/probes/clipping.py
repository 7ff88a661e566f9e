"""Was this step's gradient clipped?"""

from __future__ import annotations

from canary_mlflow.tracking.probes import Probe, Row, Setting


class Clipping(Probe):
    """`clipped` is 1 if the gradient norm before clipping exceeded `max_grad_norm`, else 0; its mean is the share.

    No series if the trainer was told not to clip, or does not: TRL's PPOTrainer ignores the setting.
    """

    name = "clipping"

    def __init__(self) -> None:
        self._limit = 0.0

    def start(self, setting: Setting) -> None:
        self._limit = float(setting.arguments.get("max_grad_norm") or 0.0)

    def listens(self, event: str) -> bool:
        return self._limit > 0 and super().listens(event)

    def row_closed(self, row: Row) -> None:
        if self._limit > 0 and "grad_norm" in row and "loss" in row:
            row["clipped"] = float(row["grad_norm"] > self._limit)
