"""Who receives a run's rows: the requested sinks, the watch, and the recorder of the machine's own metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from canary_mlflow.tracking.ending import Target
from canary_mlflow.tracking.observers import Observer
from canary_mlflow.tracking.sinks import SINKS, SinkSetting
from canary_mlflow.tracking.stores.places import artifact_folder
from canary_mlflow.tracking.system_metrics import SystemMetrics
from canary_mlflow.tracking.watching import Watching, watching
from gates.watch import WatchPolicy


@dataclass(frozen=True, kw_only=True)
class Audience:
    """What the user of the callback asked for; see CanaryCallback."""

    sinks: tuple[str, ...]
    system_metrics: bool
    watch: WatchPolicy | None
    champion_runs: tuple[str, ...]

    def gather(self, target: Target, args: Any, max_steps: int) -> tuple[tuple[Observer, ...], Watching | None]:
        """The observers of one run, in the order in which they are told, and the watch among them."""
        artifacts = None if target.client is None else artifact_folder(target.client, target.run_id)
        setting = SinkSetting(
            folder=target.folder / target.run_id,
            artifacts=artifacts,
            algo=target.algo,
            batch_size=sequences_per_step(args, target.algo),
        )
        observers: list[Observer] = [SINKS[name](setting) for name in self.sinks]
        watch = None
        if self.watch is not None:
            watch = watching(self.watch, target, setting, max_steps, self.champion_runs)
            observers.append(watch)
        if self.system_metrics:
            observers.append(SystemMetrics(target.run_id))
        return tuple(observers), watch


def sequences_per_step(args: Any, algo: str) -> int:
    """Sequences of one optimizer step over all ranks; PPO: answers of one iteration."""
    sequences = int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)
    if algo == "ppo":
        sequences *= getattr(args, "num_minibatches", getattr(args, "num_mini_batches", 1))  # ours, TRL's
    return sequences
