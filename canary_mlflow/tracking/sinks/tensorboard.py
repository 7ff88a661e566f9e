"""The rows as TensorBoard event files."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.tracking.delivery.recorder import Recorder
from canary_mlflow.tracking.describing.schema import mlflow_key
from canary_mlflow.tracking.sinks.batched import BatchedSink, Dated

FLUSH = 10  # seconds after which a row is on disk at the latest


class TensorBoard(BatchedSink):
    """One scalar per metric and step, under the names that the metrics have in MLflow.

    Writes one event per row; `add_scalar` would write one per metric, and warn about each NaN. `begin` raises
    UsageError if no writer is installed.
    """

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._files = 0
        self._writer: Any = None
        self._writer_class: Any = None
        self._summary: Any = None

    def begin(self, recorder: Recorder | None) -> None:
        self._writer_class, self._summary = classes()
        self._open()
        super().begin(recorder)

    def write(self, rows: Sequence[Dated]) -> None:
        for when, step, row in rows:
            values = [self._summary.Value(tag=mlflow_key(name), simple_value=value) for name, value in row.items()]
            self._writer.file_writer.add_summary(self._summary(value=values), step, when)

    def late(self, step: int, row: Mapping[str, float]) -> None:
        if self._summary is not None:
            self._open()
            self.write([(time.time(), step, row)])
            self.close()

    def close(self) -> None:
        self._writer.close()

    def _open(self) -> None:
        # A unique suffix: a file is named after the second, so another from the same second would overwrite it.
        self._writer = self._writer_class(str(self._folder), flush_secs=FLUSH, filename_suffix=f".{self._files}")
        self._files += 1


def classes() -> tuple[Any, Any]:
    """SummaryWriter and Summary, found as Transformers does: torch's, which needs tensorboard, or tensorboardX's."""
    try:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        try:
            from tensorboardX import SummaryWriter
            from tensorboardX.proto.summary_pb2 import Summary
        except ImportError as error:
            raise UsageError(
                "TensorBoard sink: neither tensorboard nor tensorboardX is installed; expected one of them; "
                "pip install tensorboardX, or switch the sink off"
            ) from error
    return SummaryWriter, Summary
