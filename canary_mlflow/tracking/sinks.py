"""The sinks, which keep a run's rows: observers that write them in a thread, a few times a second."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from canary_mlflow.errors import StoreError, UsageError, one_line
from canary_mlflow.tracking.delivery.lines import LineFile, to_json, to_line
from canary_mlflow.tracking.delivery.recorder import Recorder
from canary_mlflow.tracking.delivery.thread_clock import ThreadClock
from canary_mlflow.tracking.describing.schema import FOREIGN, mlflow_key
from canary_mlflow.tracking.observers import Ending, Observer

GATHER = 0.2  # seconds of rows that are written at once; a killed process loses no more than that
PATIENCE = 30.0  # seconds that a disk may take at the end
USUAL = ("mlflow", "jsonl")
STABILITY = "stability.jsonl"
# Field → canonical name, in the order of the dashboards that read such files.
FIELDS = {
    "kl": "kl",
    "kl_target_err": "kl_target_error",
    "entropy": "entropy",
    "reward_mean": "reward_mean",
    "reward_std": "reward_std",
    "advantage_mean": "advantage_mean",
    "advantage_std": "advantage_std",
    "grad_norm": "grad_norm",
    "ppo_clip_fraction": "clip_fraction",
    "tokens_per_second": "tokens_per_second",
    "batch_size": "",
    "policy_loss": "policy_loss",
    "learning_rate": "learning_rate",
}
_RENAMED = frozenset(FIELDS.values())

Dated = tuple[float, int, Mapping[str, float]]  # when a row closed (seconds since the epoch), its step, the row


@dataclass(frozen=True, kw_only=True)
class SinkSetting:
    """What a sink receives about the run that it will keep."""

    folder: Path  # the run's own, for files that MLflow does not hold; not made yet
    artifacts: Path | None  # where MLflow keeps the run's artifacts, if that is a folder of this machine
    algo: str
    batch_size: int | None  # sequences per optimizer step, over all ranks; PPO: answers per iteration


class BatchedSink(Observer):
    """Takes rows in 1 µs; a thread calls `write` with some of them at a time, in order, and `close` once at the end.

    The thread polls: waking it would cost a step 20 µs and more, and up to 5 ms if it takes the interpreter at once.
    Rows for which `write` raised are counted; `finish` raises StoreError with their number.
    """

    def __init__(self) -> None:
        self._rows: deque[Dated] = deque()
        self._clock = ThreadClock()
        self._end = threading.Event()
        # A daemon, because a disk that hangs must not keep a finished training from exiting.
        self._thread = threading.Thread(target=self._work, name=f"canary-{self.name}", daemon=True)
        self._lost = 0
        self._why = ""

    def write(self, rows: Sequence[Dated]) -> None:
        """Keep all rows, or raise and keep none."""

    def close(self) -> None:
        """No more rows."""

    def begin(self, recorder: Recorder | None) -> None:
        self._thread.start()

    def row_closed(self, step: int, row: Mapping[str, float]) -> None:
        self._rows.append((time.time(), step, row))

    def finish(self, ending: Ending) -> Mapping[str, str]:
        if not self._thread.ident:  # `begin` failed, which is already reported
            return {}
        self._end.set()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            raise StoreError(f"not written to its end within {PATIENCE:.0f} s")
        if self._lost:
            raise StoreError(f"{self._lost} rows were not kept: {self._why}")
        return {}

    def _work(self) -> None:
        ended = False
        while not ended:
            ended = self._end.wait(GATHER)
            rows = [self._rows.popleft() for _ in range(len(self._rows))]
            if rows:
                with self._clock.working():
                    self._keep(rows)
        try:
            self.close()
        except Exception as error:  # noqa: BLE001 - as below
            self._why = self._why or one_line(error)

    def _keep(self, rows: Sequence[Dated]) -> None:
        """Write all rows at once; if that fails, as on a disk that is nearly full, one after the other."""
        try:
            self.write(rows)
        except Exception as error:  # noqa: BLE001 - whatever a writer raises; counted here, said at the end
            self._why = self._why or one_line(error)
            if len(rows) == 1:
                self._lost += 1
                return
            for row in rows:
                self._keep([row])


class MlflowSink(BatchedSink):
    """Puts each row into the run's outbox, which the recorder sends when that suits the training and the store."""

    name = "mlflow"

    def __init__(self, setting: SinkSetting) -> None:
        super().__init__()
        self._recorder: Recorder | None = None

    def begin(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        super().begin(recorder)

    def write(self, rows: Sequence[Dated]) -> None:
        if self._recorder is not None and (held := [row for row in rows if row[2]]):
            self._recorder.put_all(held)

    def late(self, step: int, row: Mapping[str, float]) -> None:
        if self._recorder is not None:
            self._recorder.put(step, row)


class StabilityLog(BatchedSink):
    """Writes timestamp, step and FIELDS, null where nothing was measured, then the row's other canonical series.

    For PPO, one object per iteration, as only iterations have a KL, and one for each step that holds NaN or infinity.
    Its tokens per second count prompts and answers over the whole iteration. NaN and infinities are the texts "NaN",
    "Infinity" and "-Infinity", as JSON has no such numbers.

    The file grows among the run's artifacts if MLflow keeps them on this machine, else in the run's folder, from which
    it moves to the artifacts at the end.
    """

    name = "jsonl"

    def __init__(self, setting: SinkSetting) -> None:
        super().__init__()
        self._file = LineFile((setting.artifacts or setting.folder) / STABILITY)
        self._in_place = setting.artifacts is not None
        self._iterates = setting.algo == "ppo"
        self._batch_size = setting.batch_size
        self._recorder: Recorder | None = None

    def begin(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        super().begin(recorder)

    def write(self, rows: Sequence[Dated]) -> None:
        if lines := [to_line(self._object(*row)) for row in rows if self._is_kept(*row[1:])]:
            self._file.append("\n".join(lines))

    def close(self) -> None:
        self._file.close()

    def finish(self, ending: Ending) -> Mapping[str, str]:
        try:
            return super().finish(ending)
        finally:
            if self._recorder is not None and not self._in_place and self._file.path.exists():
                self._recorder.move(self._file.path)

    def _is_kept(self, step: int, row: Mapping[str, float]) -> bool:
        iterated = not self._iterates or "iteration_time" in row
        return step > 0 and (iterated or not all(map(math.isfinite, row.values())))  # 0: logged before training

    def _object(self, when: float, step: int, row: Mapping[str, float]) -> dict[str, Any]:
        timestamp = datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds")
        content: dict[str, Any] = {"timestamp": timestamp, "step": step}
        for field, name in FIELDS.items():
            content[field] = to_json(row[name]) if name in row else None
        content["batch_size"] = self._batch_size
        if self._iterates and "tokens_response" in row and row.get("iteration_time"):
            # The row's own number covers only the last update.
            tokens = row["tokens_response"] + row.get("tokens_prompt", 0.0)
            content["tokens_per_second"] = to_json(tokens / row["iteration_time"])
        for name, value in row.items():
            if name not in _RENAMED and not name.startswith(FOREIGN):
                content[name] = to_json(value)
        return content


class TensorBoard(BatchedSink):
    """One scalar per metric and step, under the names that the metrics have in MLflow.

    Writes one event per row; `add_scalar` would write one per metric, and warn about each NaN. `begin` raises
    UsageError if no writer is installed.
    """

    name = "tensorboard"

    def __init__(self, setting: SinkSetting) -> None:
        super().__init__()
        self._folder = setting.folder / "tensorboard"
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
        self._writer.flush()

    def late(self, step: int, row: Mapping[str, float]) -> None:
        if self._summary is not None:
            self._open()
            self.write([(time.time(), step, row)])
            self.close()

    def close(self) -> None:
        self._writer.close()

    def _open(self) -> None:
        # A unique suffix: a file is named after the second, so another from the same second would overwrite it.
        self._writer = self._writer_class(str(self._folder), filename_suffix=f".{self._files}")
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


SINKS: dict[str, Callable[[SinkSetting], Observer]] = {
    "mlflow": MlflowSink,
    "jsonl": StabilityLog,
    "tensorboard": TensorBoard,
}


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names as a tuple. Raises UsageError for a name that is not a sink's."""
    wanted = tuple(names)
    for name in wanted:
        if name not in SINKS:
            raise UsageError(f"sink {name!r}: no such sink; expected {', '.join(SINKS)}; fix the name")
    return wanted
