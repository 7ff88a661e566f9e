"""The sink that sends every row to the run in MLflow."""

from __future__ import annotations

from collections.abc import Mapping

from canary_mlflow.tracking.observers import Observer
from canary_mlflow.tracking.recorder import Recorder


class MlflowSink(Observer):
    """Passes each row to the recorder, which sends it when that suits the training and the store."""

    name = "mlflow"

    def __init__(self) -> None:
        self._recorder: Recorder | None = None

    def begin(self, recorder: Recorder | None) -> None:
        self._recorder = recorder

    def row_closed(self, step: int, row: Mapping[str, float]) -> None:
        if self._recorder is not None and row:
            self._recorder.put(step, row)

    def late(self, step: int, row: Mapping[str, float]) -> None:
        self.row_closed(step, row)
