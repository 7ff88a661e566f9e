"""stability.jsonl: one JSON object per optimizer step, written a moment after the step's row is complete."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from canary_mlflow.tracking.delivery.lines import LineFile, to_json, to_line
from canary_mlflow.tracking.delivery.recorder import Recorder
from canary_mlflow.tracking.describing.schema import FOREIGN
from canary_mlflow.tracking.observers import Ending
from canary_mlflow.tracking.sinks import SinkSetting
from canary_mlflow.tracking.sinks.batched import BatchedSink, Dated

NAME = "stability.jsonl"
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
        self._file = LineFile((setting.artifacts or setting.folder) / NAME)
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
