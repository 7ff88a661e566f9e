"""Reads runs with their series from MLflow, in bulk: straight from the database if there is one, else from the
server."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from canary_mlflow import tags
from canary_mlflow.errors import NoSuchModel, NoSuchVersion, StoreError, one_line
from canary_mlflow.tracking.describing.exceptions import raised_from
from canary_mlflow.tracking.describing.fact_tags import facts_in
from canary_mlflow.tracking.describing.schema import CONFIG_PREFIX, mlflow_key, name_of_key
from canary_mlflow.tracking.reading.numbers import count, whole
from canary_mlflow.tracking.reading.points import Points, read_points
from canary_mlflow.tracking.stores.session import child_runs, children_of, get_run
from gates.facts.purpose import CANARY
from gates.model.records import Run, Series, Version

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

ROLES = ("run", "baseline")
STEPS_KEY = mlflow_key("step_time")


def read_runs(client: MlflowClient, run_ids: Sequence[str], metrics: Iterable[str] | None = None) -> tuple[Run, ...]:
    """The runs, in the given order, with their series sorted by step; the last write of a step counts.

    `metrics` are canonical names; None reads all that a run has. Raises NoSuchRun and StoreError.
    """
    return _read([get_run(client, run_id) for run_id in run_ids], client, metrics)


def read_found(client: MlflowClient, found: Sequence[MlflowRun]) -> tuple[Run, ...]:
    """The same for runs already fetched from MLflow, deleted ones too, with all their series. Raises StoreError."""
    return _read(found, client, None)


def trainings(found: Iterable[MlflowRun]) -> list[MlflowRun]:
    """Those of these runs that recorded a training, whatever role their tags claim. Tags can be removed; the times of
    steps cannot."""
    return [
        run
        for run in found
        if run.data.tags.get(tags.ROLE) in ROLES or tags.COMPLETED in run.data.tags or STEPS_KEY in run.data.metrics
    ]


def by_tags(found: Iterable[MlflowRun]) -> dict[str, str]:
    """Run id → the champion whose code the run says that it repeats."""
    tagged = [run for run in found if run.data.tags.get(tags.ROLE) == "baseline"]
    return {run.info.run_id: run.data.tags.get(tags.BASELINE_OF, "") for run in tagged}


def session_runs(
    client: MlflowClient,
    session_id: str,
    metrics: Iterable[str] | None = None,
    beside: Mapping[str, str] | None = None,
) -> tuple[Run, ...]:
    """The runs of a session, oldest first; for a run that is not a session, just that run. `beside`: as for
    `fresh_runs`; those runs are left out."""
    own = get_run(client, session_id)
    children = trainings(children_of(client, own))
    if not children:
        children = [own] if own.data.tags.get(tags.ROLE) == "run" else []
    known = by_tags(children) if beside is None else beside
    return _read([run for run in children if run.info.run_id not in known], client, metrics)


def fresh_runs(
    client: MlflowClient, session_id: str, champion: str, beside: Mapping[str, str] | None = None
) -> tuple[Run, ...]:
    """The runs of the champion's code that were made beside those of this session, oldest first. `beside`: run id → the
    champion whose code it repeats, as the ledger says; None, without a ledger, takes the runs' own word."""
    children = trainings(child_runs(client, session_id))
    known = by_tags(children) if beside is None else beside
    return _read([run for run in children if known.get(run.info.run_id) == champion], client, None)


def read_version(
    client: MlflowClient,
    model: str,
    version: str,
    metrics: Iterable[str] | None = None,
    beside: Mapping[str, str] | None = None,
) -> Version:
    """A model version with the runs that are its evidence: those of its session, or its source run. `beside`: as for
    `fresh_runs`.

    Raises NoSuchModel, NoSuchVersion, StoreError.
    """
    from mlflow.exceptions import MlflowException

    try:
        found = client.get_model_version(model, version)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise StoreError(f"version {version} of {model!r}: {one_line(error)}") from error
        raise _missing(client, model, version) from error
    evidence = (found.tags or {}).get(tags.SESSION_ID) or found.run_id
    runs = session_runs(client, evidence, metrics, beside) if evidence else ()
    return Version(model=model, version=str(found.version), runs=runs)


def _missing(client: MlflowClient, model: str, version: str) -> NoSuchModel | NoSuchVersion:
    from mlflow.exceptions import MlflowException

    try:
        client.get_registered_model(model)
    except MlflowException:
        return NoSuchModel(f"model {model!r}: not in the registry; expected a registered model")
    return NoSuchVersion(f"version {version!r} of {model!r}: not in the registry; expected a version of it")


def _read(runs: Sequence[MlflowRun], client: MlflowClient, metrics: Iterable[str] | None) -> tuple[Run, ...]:
    if not runs:
        return ()
    wanted = None if metrics is None else {mlflow_key(name) for name in metrics}
    keys = {run.info.run_id: _keys(run, wanted) for run in runs}
    points = read_points(client, keys)
    return tuple(
        run_from(run.info.run_id, run.data.tags, keys[run.info.run_id], points, run.data.params) for run in runs
    )


def _keys(run: MlflowRun, wanted: set[str] | None) -> list[str]:
    return sorted(key for key in run.data.metrics if wanted is None or key in wanted)


def run_from(
    run_id: str,
    said: Mapping[str, str],
    keys: Sequence[str],
    points: Mapping[tuple[str, str], Points],
    params: Mapping[str, str],
) -> Run:
    """A run from its tags, its params and the points of its series."""
    series = {name_of_key(key): series_of(name_of_key(key), points[run_id, key]) for key in keys}
    return Run(
        run_id=run_id,
        seed=whole(said.get(tags.SEED, "")),
        series=series,
        completed=said.get(tags.COMPLETED) == "true",
        failure=said.get(tags.FAILURE, ""),
        failure_reason=said.get(tags.FAILURE_REASON, ""),
        raised=raised_from(said),
        learned={"true": True, "false": False}.get(said.get(tags.LEARNED, "")),
        learned_reason=said.get(tags.LEARNED_REASON, ""),
        invariants=said.get(tags.INVARIANTS, ""),
        critical_held=said.get(tags.WATCH_CRITICAL_HELD),
        not_promotable=said.get(tags.NOT_PROMOTABLE, ""),
        nan_steps=count(said.get(tags.NAN_STEPS, "")),
        inf_steps=count(said.get(tags.INF_STEPS, "")),
        workload=_section(said, tags.WORKLOAD),
        hardware=_section(said, tags.HARDWARE),
        environment=_section(said, tags.ENV),
        configuration=configuration_of(params, said),
        facts=facts_in(said),
        session=said.get(tags.PARENT_RUN, ""),
        note=said.get(tags.NOTE, ""),
        last_step=count(said.get(tags.LAST_STEP, "")),
    )


def configuration_of(params: Mapping[str, str], said: Mapping[str, str]) -> dict[str, str]:
    """What a training was told: the params that we store, and those of the user's own script or project. Params that
    `mlflow run` adds to a canary are left out: they repeat its command line, which ours give in full."""
    ours = _section(params, CONFIG_PREFIX)
    if CANARY in ours and tags.ENTRY_POINT in said:
        return ours
    return {**{key: value for key, value in params.items() if not key.startswith(CONFIG_PREFIX)}, **ours}


def series_of(name: str, points: Points) -> Series:
    """The points sorted by step; of several values at one step, the one written last (at the same moment the largest,
    as a database gives rows in any order). SQL stores write ±Inf as ±1.797e308."""
    rising = (np.diff(points[:, 0]) > 0).all()
    ordered = points if rising else points[np.lexsort((points[:, 2], points[:, 1], points[:, 0]))]
    last = np.append(ordered[1:, 0] != ordered[:-1, 0], True)[: len(ordered)]
    values = ordered[last, 2]
    values = np.where(np.abs(values) >= sys.float_info.max, np.copysign(math.inf, values), values)
    return Series(name=name, steps=ordered[last, 0].astype(np.int64), values=values)


def _section(found: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in sorted(found.items()) if key.startswith(prefix)}
