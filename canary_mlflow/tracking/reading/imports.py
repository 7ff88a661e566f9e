"""Imports finished trainings from files into MLflow, with the same series, tags and end that a recorded run has."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.utils.validation import MAX_METRICS_PER_BATCH

from canary_mlflow import tags
from canary_mlflow.errors import StoreError, one_line
from canary_mlflow.files.events import event_files
from canary_mlflow.files.reading import read_history
from canary_mlflow.files.runs import broken_down, run_of
from canary_mlflow.files.watched import critical_held
from canary_mlflow.gates.model.paradigm import paradigm_of
from canary_mlflow.gates.model.records import Run
from canary_mlflow.tracking.describing.compact import compact
from canary_mlflow.tracking.describing.learning import IMPROVES, learned
from canary_mlflow.tracking.describing.schema import CONFIG_PREFIX, is_fault, mlflow_key
from canary_mlflow.tracking.stores.session import get_run, log_params, log_tags, start_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What the user states about files that do not tell it themselves; an empty string or mapping means unknown."""

    algo: str = ""
    seed: int | None = None
    workload: Mapping[str, str]
    hardware: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A file that was read and is ready to be written; `algo` is empty if unknown."""

    path: Path
    kind: str
    digest: str
    algo: str
    run: Run
    notes: tuple[str, ...]


def read_import(path: Path, stated: Stated) -> Imported:
    """Read a file and find out how its run ended. Raises UsageError, one line, for what cannot be judged."""
    history = read_history(path)
    run, notes = run_of(history)
    digest = digest_of(path)
    algo = stated.algo or run.workload.get("algo", "")
    workload = {**run.workload, **stated.workload, **({"algo": algo} if algo else {})}
    hardware = {**run.hardware, **stated.hardware}
    # Unknown equals nothing, not even another unknown: such runs are not comparable.
    unknown = {"imported": f"not stated (file {digest[:12]})"}
    run = replace(
        run if run.failure else broken_down(run),
        seed=run.seed if stated.seed is None else stated.seed,
        workload=workload if set(workload) - {"algo"} else {**workload, **unknown},
        hardware=hardware or unknown,
        critical_held=critical_held(history, algo) if stated.algo else run.critical_held,
    )
    run = _counted(_learned(run, algo))
    if run.completed and history.max_steps is None:
        notes = (*notes, f"says nowhere how long the run was to be: taken as finished at step {run.last_step}")
    return Imported(path=path, kind=history.kind, digest=digest, algo=algo, run=run, notes=notes)


def find_import(client: MlflowClient, digest: str, session: str | None = None) -> str:
    """The id of the run that already holds this file; '' if there is none. With `session`, one that a session of this
    name has: a training that repeats bit for bit is a run of each side."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments, tags.where(tags.IMPORT_DIGEST, digest)) if experiments else []
    return next((str(run.info.run_id) for run in found if session is None or _session_of(client, run) == session), "")


def _session_of(client: MlflowClient, run: MlflowRun) -> str:
    """The name of the session that a run belongs to; '' for none."""
    parent = run.data.tags.get(tags.PARENT_RUN)
    return str(get_run(client, parent).data.tags.get(tags.RUN_NAME, "")) if parent else ""


def write_import(client: MlflowClient, experiment: str, item: Imported, parent: str) -> str:
    """Write a new run and return its id; nothing is left of a run that could not be written whole. Raises
    StoreError."""
    own = {tags.ROLE: "run", tags.RUN_NAME: item.path.name, **({tags.PARENT_RUN: parent} if parent else {})}
    run_id = start_run(client, experiment, own)
    try:
        for batch in _batches(item.run):
            client.log_batch(run_id, metrics=batch)
        log_tags(client, run_id, compact("found", tags_of(item)))
        log_params(client, run_id, {f"{CONFIG_PREFIX}{key}": value for key, value in item.run.configuration.items()})
        client.set_terminated(run_id, "FINISHED" if item.run.completed else "FAILED")
    except BaseException as error:
        client.delete_run(run_id)
        if isinstance(error, (MlflowException, OSError)):
            raise StoreError(f"{item.path}: not imported: {one_line(error)}") from error
        raise
    return run_id


def tags_of(item: Imported) -> dict[str, str]:
    """The tags that a recorded run has, as far as the file tells them; a missing tag means unknown."""
    run = item.run
    found = {
        tags.COMPLETED: "true" if run.completed else "false",
        tags.LAST_STEP: str(run.last_step),
        tags.FAILURE: run.failure,
        tags.FAILURE_REASON: run.failure_reason,
        tags.NAN_STEPS: str(run.nan_steps),
        tags.INF_STEPS: str(run.inf_steps),
        tags.FINITE: "false" if run.nan_steps or run.inf_steps else "true",
        tags.LEARNED: {True: "true", False: "false", None: "unknown"}[run.learned],
        tags.LEARNED_REASON: run.learned_reason,
        tags.IMPORT_FILE: item.path.name,
        tags.IMPORT_KIND: item.kind,
        tags.IMPORT_NOTES: "; ".join(item.notes),
        **{f"{tags.WORKLOAD}{key}": value for key, value in run.workload.items()},
        **{f"{tags.HARDWARE}{key}": value for key, value in run.hardware.items()},
        **{f"{tags.ENV}{key}": value for key, value in run.environment.items()},
        tags.IMPORT_DIGEST: item.digest,
    }
    known = {tags.ALGO: item.algo or None, tags.SEED: run.seed, tags.WATCH_CRITICAL_HELD: run.critical_held}
    return found | {key: str(value) for key, value in known.items() if value is not None}


def digest_of(path: Path) -> str:
    """SHA-256 of the file, or of the event files of a folder."""
    sha = hashlib.sha256()
    for file in event_files(path) or [path]:
        with file.open("rb") as raw:
            while chunk := raw.read(1 << 20):
                sha.update(chunk)
    return sha.hexdigest()


def _learned(run: Run, algo: str) -> Run:
    """The run with `learned` filled in if the file does not state it: by the reward in reinforcement learning, else by
    the loss, as for any run."""
    if run.learned is not None:
        return run
    watched = [name for name, _ in IMPROVES[paradigm_of(algo, run.series)] if name in run.series]
    if not watched:
        return run
    told = [name for name in (watched[0], "eval_loss") if name in run.series]
    rows = [{name: value} for name in told for value in run.series[name].values.tolist()]
    verdict, reason = learned(rows, algo, None)
    return replace(run, learned=verdict, learned_reason=reason)


def _counted(run: Run) -> Run:
    """The run with the number of steps at which a metric that must be finite was NaN or infinite."""
    steps: dict[bool, set[int]] = {True: set(), False: set()}
    for name, series in run.series.items():
        bad = ~series.finite
        for step, value in zip(series.steps[bad].tolist(), series.values[bad].tolist(), strict=True):
            if is_fault(name, value):
                steps[math.isnan(value)].add(step)
    return replace(run, nan_steps=len(steps[True]), inf_steps=len(steps[False]))


def _batches(run: Run) -> Iterator[Sequence[Metric]]:
    now = time.time_ns() // 1_000_000
    batch: list[Metric] = []
    for name, series in run.series.items():
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            batch.append(Metric(mlflow_key(name), value, now, step))
            if len(batch) == MAX_METRICS_PER_BATCH:
                yield batch
                batch = []
    if batch:
        yield batch
