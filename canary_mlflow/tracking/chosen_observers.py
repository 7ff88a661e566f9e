"""Which observers a run's rows go to: the requested sinks, the watch, and the recorder of the machine's own metrics."""

from __future__ import annotations

from typing import Any

from canary_mlflow.tracking.ending import Target
from canary_mlflow.tracking.observers import Observer
from canary_mlflow.tracking.opening import CallbackOptions
from canary_mlflow.tracking.sinks import SINKS, SinkSetting
from canary_mlflow.tracking.stores.places import artifact_folder
from canary_mlflow.tracking.system_metrics import SystemMetrics
from canary_mlflow.tracking.watching import Watching, watching


def observers_of(
    target: Target, options: CallbackOptions, args: Any, max_steps: int
) -> tuple[tuple[Observer, ...], Watching | None]:
    """The observers of one run, in the order in which they are told, and the watch among them."""
    artifacts = None if target.client is None else artifact_folder(target.client, target.run_id)
    setting = SinkSetting(
        folder=target.folder / target.run_id,
        artifacts=artifacts,
        algo=target.algo,
        batch_size=sequences_per_step(args, target.algo),
    )
    observers: list[Observer] = [SINKS[name](setting) for name in options.sinks]
    watch = None
    if options.watch is not None:
        watch = watching(options.watch, target, setting, max_steps, options.champion_runs)
        observers.append(watch)
    if options.system_metrics:
        observers.append(SystemMetrics(target.run_id))
    return tuple(observers), watch


def sequences_per_step(args: Any, algo: str) -> int:
    """Sequences of one optimizer step over all ranks; PPO: answers of one iteration."""
    sequences = int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)
    if algo == "ppo":
        sequences *= getattr(args, "num_minibatches", getattr(args, "num_mini_batches", 1))  # ours, TRL's
    return sequences
