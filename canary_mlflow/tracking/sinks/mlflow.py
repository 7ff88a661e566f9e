"""The sink that sends every row to the run in MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from canary_mlflow.tracking.delivery.recorder import Recorder
from canary_mlflow.tracking.sinks.batched import BatchedSink, Dated


class MlflowSink(BatchedSink):
    """Passes each row to the recorder, which sends it when that suits the training and the store."""

    name = "mlflow"

    def begin(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        super().begin(recorder)

    def write(self, rows: Sequence[Dated]) -> None:
        for when, step, row in rows:
            if self._recorder is not None and row:
                self._recorder.put(step, row, when)

    def late(self, step: int, row: Mapping[str, float]) -> None:
        if self._recorder is not None:
            self._recorder.put(step, row)
