"""The sinks, which keep a run's rows: one per file, all of them observers, and the dict that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from canary_mlflow.errors import UsageError
from canary_mlflow.tracking.observers import Observer


@dataclass(frozen=True, kw_only=True)
class SinkSetting:
    """What a sink receives about the run that it will keep."""

    folder: Path  # the run's own, for files that MLflow does not hold; not made yet
    artifacts: Path | None  # where MLflow keeps the run's artifacts, if that is a folder of this machine
    algo: str
    batch_size: int  # sequences per optimizer step, over all ranks; PPO: answers per iteration


def mlflow_sink(setting: SinkSetting) -> Observer:
    from canary_mlflow.tracking.sinks.batched import MlflowSink

    return MlflowSink()


def jsonl_sink(setting: SinkSetting) -> Observer:
    from canary_mlflow.tracking.sinks.jsonl import StabilityLog

    return StabilityLog(setting)


def tensorboard_sink(setting: SinkSetting) -> Observer:
    from canary_mlflow.tracking.sinks.tensorboard import TensorBoard

    return TensorBoard(setting.folder / "tensorboard")


SINKS: dict[str, Callable[[SinkSetting], Observer]] = {
    "mlflow": mlflow_sink,
    "jsonl": jsonl_sink,
    "tensorboard": tensorboard_sink,
}
USUAL = ("mlflow", "jsonl")


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names as a tuple. Raises UsageError for a name that is not a sink's."""
    wanted = tuple(names)
    for name in wanted:
        if name not in SINKS:
            raise UsageError(f"sink {name!r}: no such sink; expected {', '.join(SINKS)}; fix the name")
    return wanted
