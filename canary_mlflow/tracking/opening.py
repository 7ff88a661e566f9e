"""Which MLflow run a training writes to, how it is described before the first step, and what its rows go to.

Loads no torch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow import tags
from canary_mlflow.errors import StoreError, one_line
from canary_mlflow.policies import load_watch
from canary_mlflow.tracking import joining
from canary_mlflow.tracking.describing.compact import compact
from canary_mlflow.tracking.describing.fact_tags import jsonable
from canary_mlflow.tracking.describing.schema import CONFIG_PREFIX, required
from canary_mlflow.tracking.describing.workload import algorithm_of, at_default, logs_as, workload_of
from canary_mlflow.tracking.ending import Target
from canary_mlflow.tracking.observers import Observer
from canary_mlflow.tracking.sinks import SINKS, USUAL, SinkSetting, check_names
from canary_mlflow.tracking.stores import session
from canary_mlflow.tracking.stores.owner import lease
from canary_mlflow.tracking.stores.places import artifact_folder
from canary_mlflow.tracking.stores.store import prepare_store
from canary_mlflow.tracking.system_metrics import SystemMetrics
from canary_mlflow.tracking.watching import Watching, watching

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("canary_mlflow")
DIGEST = 36  # characters that MLflow keeps of one

WARMUP_STEPS = 5
"""Left out of metrics.json's timings; the first step alone takes 2 to 5 times as long."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user of a callback or a loop asked for; see CanaryCallback."""

    run_id: str | None = None
    tracking_uri: str | None = None
    experiment: str | None = None
    run_name: str | None = None
    workload: Mapping[str, str] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    warmup_steps: int = WARMUP_STEPS
    folder: Path | None = None
    sinks: Sequence[str] = USUAL
    system_metrics: bool = True
    watch: Any = "default"  # a WatchPolicy or None, whatever named it
    champion_runs: Sequence[str] = ()
    fail_fast: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "sinks", check_names(self.sinks))
        object.__setattr__(self, "watch", None if self.watch is None else load_watch(self.watch))


@dataclass(frozen=True, kw_only=True)
class Training:
    """The training that begins, as its trainer or its loop describes it."""

    algo: str
    seed: int
    name: str  # of its run, if its user gave none
    max_steps: int  # planned optimizer steps; 0 if not known
    begun: int = 0  # optimizer steps that a checkpoint brings along
    config: Mapping[str, Any]
    workload: Callable[[], Mapping[str, str]]  # asked where its user did not state it
    hardware: Mapping[str, str]
    environment: Mapping[str, str]
    required: tuple[str, ...] = ()  # series that it must log
    usual: frozenset[str] = frozenset()  # settings at their library's default
    sequences: int | None = None  # of one row, over all ranks
    folder: Path = Path("canary")


def training_of(
    options: Options, args: Any, state: Any, model: Any, trainer: Any, hardware: Mapping[str, str],
    environment: Mapping[str, str],
) -> Training:  # fmt: skip
    """As TrainingArguments, TrainerState and the trainer tell of it; `trainer` None if it is not known."""
    algo = (options.workload or {}).get("algo") or algorithm_of(args, trainer)
    config = options.config or jsonable(args.to_dict())
    return Training(
        algo=algo,
        seed=args.seed,
        name=getattr(args, "run_name", None) or f"{algorithm_of(args)} seed {args.seed}",
        max_steps=state.max_steps,
        begun=state.global_step,
        config=config,
        workload=lambda: workload_of(args, model, trainer, state.max_steps, algo),
        hardware=hardware,
        environment=environment,
        # by arguments and trainer, whatever the work is called: one that is not made from TRL's logs what it likes
        required=required(logs_as(args, trainer), vars(args), environment.get("trl", "")),
        usual=frozenset(at_default(args, config)),
        sequences=sequences_per_step(args, algo),
        folder=Path(args.output_dir) / "canary",
    )


def open_target(options: Options, training: Training) -> Target:
    """Find or start the MLflow run. A wrong run id raises, as the caller's mistake; a dead store does not stop the
    training."""
    target = Target(
        client=None,
        run_id=options.run_id or "",
        owned=False,
        algo=training.algo,
        config=options.config or training.config,
        environment=training.environment,
        warmup_steps=options.warmup_steps,
        folder=options.folder or training.folder,
        required=training.required,
    )
    if "mlflow" not in options.sinks and given_run(options) is None:
        return target
    try:
        client = prepare_store(options.tracking_uri)
        run_id, owned = find_run(client, options, training)
    except StoreError as error:
        log.warning("canary: %s; training goes on, its numbers stay in memory", one_line(error))
        return target
    workload = {**(options.workload or training.workload()), **_resumed(client, run_id, training.begun)}
    target = replace(target, client=client, run_id=run_id, owned=owned, workload=workload)
    describe(client, target, options, training)
    return target


def _resumed(client: MlflowClient, run_id: str, step: int) -> dict[str, str]:
    """Where a checkpoint was taken up by a run that lacks what came before: its evaluation would tell of other code's
    steps. A run that goes on under its own id has them."""
    begun = step and tags.MAX_STEPS in session.get_run(client, run_id).data.tags
    return {"resumed_at": str(step)} if step and not begun else {}


def given_run(options: Options) -> str | None:
    """The id of a run that already exists: named, active, or made by `mlflow run`; None if there is none."""
    import mlflow

    active = mlflow.active_run()
    return options.run_id or (active.info.run_id if active else None) or os.environ.get("MLFLOW_RUN_ID")


def find_run(client: MlflowClient, options: Options, training: Training) -> tuple[str, bool]:
    """(run id, whether it is ours to end)."""
    given = given_run(options)
    parent = None if options.run_id else joining.open_one(client)  # who names the run knows where it belongs
    if parent is not None:
        given = joining.child_for(client, parent, given)
    if given:
        session.get_run(client, given)
        return given, False
    own = {tags.ROLE: "run", tags.RUN_NAME: options.run_name or training.name, **lease()}
    if parent is not None:
        own[tags.PARENT_RUN] = parent.info.run_id
        return session.start_run(client, parent.info.experiment_id, own), True
    home = joining.usual_experiment(client, options.experiment, options.tracking_uri)
    return session.start_run(client, home, own), True


def describe(client: MlflowClient, target: Target, options: Options, training: Training) -> None:
    """Write tags, params and config.yaml before the first step, so that a run that dies early still tells what it
    was."""
    from mlflow.exceptions import MlflowException

    found = {
        tags.ROLE: "run",
        tags.ALGO: target.algo,
        tags.SEED: str(training.seed),
        tags.COMPLETED: "false",
        # Optimizer steps; a workload may count iterations.
        **({tags.MAX_STEPS: str(training.max_steps)} if training.max_steps else {}),
        **{f"{tags.WORKLOAD}{key}": str(value) for key, value in target.workload.items()},
        **{f"{tags.HARDWARE}{key}": value for key, value in training.hardware.items()},
        **{f"{tags.ENV}{key}": value for key, value in target.environment.items()},
        **options.tags,
    }
    try:
        session.log_tags(client, target.run_id, compact("about", found))
        if options.config:
            client.log_dict(target.run_id, jsonable(options.config), "config.yaml")
        if target.owned or options.run_id is None or not options.config:  # a launcher stores its configuration itself
            params = {f"{CONFIG_PREFIX}{key}": value for key, value in target.config.items()}
            usual = {f"{CONFIG_PREFIX}{key}" for key in training.usual}
            session.log_settings(client, target.run_id, params, usual)
        if data := datasets_of(target.workload):
            client.log_inputs(target.run_id, data)
    except (MlflowException, OSError) as error:
        log.warning("canary: run %s: not all of its description was written: %s", target.run_id, one_line(error))


def datasets_of(workload: Mapping[str, str]) -> list[Any]:
    """The data as MLflow lists it beside a run, by the digest that the workload has of it."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    name, digest = workload.get("data", "training data"), workload.get("data_digest") or workload.get("train_data")
    of = {"training": (name, digest), "evaluation": ("held-out data", workload.get("eval_data"))}
    return [
        DatasetInput(Dataset(name[:500], digest[:DIGEST], "canary", "{}"), [InputTag("mlflow.data.context", use)])
        for use, (name, digest) in of.items()
        if digest
    ]


def observers_of(target: Target, options: Options, training: Training) -> tuple[tuple[Observer, ...], Watching | None]:
    """The observers of one run, in the order in which they are told, and the watch among them."""
    artifacts = None if target.client is None else artifact_folder(target.client, target.run_id)
    setting = SinkSetting(
        folder=target.folder / target.run_id,
        artifacts=artifacts,
        algo=target.algo,
        batch_size=training.sequences,
    )
    observers: list[Observer] = [SINKS[name](setting) for name in options.sinks]
    watch = None
    if options.watch is not None:
        watch = watching(options.watch, target, setting, training.max_steps, options.champion_runs)
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
