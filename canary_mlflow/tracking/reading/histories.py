"""Reads runs with their series from MLflow, in bulk: straight from the database if there is one, else from the
server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.store.db.db_types import DATABASE_ENGINES
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.rest_utils import http_request

from canary_mlflow import tags
from canary_mlflow.errors import NoSuchModel, NoSuchVersion, StoreError, one_line
from canary_mlflow.gates.model.records import Run, Version
from canary_mlflow.tracking.describing.schema import mlflow_key
from canary_mlflow.tracking.reading.records import Points, run_from
from canary_mlflow.tracking.stores.places import without_password
from canary_mlflow.tracking.stores.session import child_runs, children_of, get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

ROLES = ("run", "baseline")
STEPS_KEY = mlflow_key("step_time")
RUNS_AT_ONCE = 100  # the server's limit for one bulk request
POINTS_AT_ONCE = 25_000  # the server's silent limit for one bulk answer


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
    try:
        client.get_registered_model(model)
    except MlflowException:
        return NoSuchModel(f"model {model!r}: not in the registry; expected a registered model")
    return NoSuchVersion(f"version {version!r} of {model!r}: not in the registry; expected a version of it")


def _read(runs: Sequence[MlflowRun], client: MlflowClient, metrics: Iterable[str] | None) -> tuple[Run, ...]:
    wanted = None if metrics is None else {mlflow_key(name) for name in metrics}
    keys = {run.info.run_id: [key for key in run.data.metrics if wanted is None or key in wanted] for run in runs}
    points = read_points(client, keys)
    return tuple(run_from(run.info.run_id, run.data.tags, run.data.params, points[run.info.run_id]) for run in runs)


def read_points(client: MlflowClient, keys: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Points]]:
    """Every point of the requested series, by run and MLflow key, in whatever order the store gives them."""
    scheme = urlsplit(client.tracking_uri).scheme
    if not any(keys.values()):
        return {run_id: {} for run_id in keys}
    if scheme.partition("+")[0] in DATABASE_ENGINES:
        return _from_database(client.tracking_uri, keys)
    found: dict[tuple[str, str], list[tuple[int, int, float]]] = defaultdict(list)
    source = _from_server(client, keys) if scheme in ("http", "https") else _one_by_one(client, keys)
    for run_id, key, step, timestamp, value in source:
        found[run_id, key].append((step, timestamp, value))
    return {
        run_id: {key: np.array(found[run_id, key], dtype=np.float64).reshape(-1, 3) for key in names}
        for run_id, names in keys.items()
    }


def _from_database(uri: str, keys: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Points]]:
    """The same from the database at `uri`, over a separate connection."""
    import sqlalchemy as sa

    from canary_mlflow.tracking.reading.database import points_over

    engine = sa.create_engine(uri, poolclass=sa.pool.NullPool)
    try:
        with engine.connect() as connection:
            return points_over(connection, keys)
    except sa.exc.SQLAlchemyError as error:
        raise StoreError(f"{without_password(uri)}: {one_line(error)}; expected MLflow's table of metrics") from error


def _from_server(client: MlflowClient, keys: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str, int, int, float]]:
    """One request per metric and 100 runs, through the route of MLflow's own UI; if its answer is cut short, one series
    at a time."""
    by_key: dict[str, list[str]] = defaultdict(list)
    for run_id, names in keys.items():
        for key in names:
            by_key[key].append(run_id)
    for key, run_ids in by_key.items():
        for start in range(0, len(run_ids), RUNS_AT_ONCE):
            some = run_ids[start : start + RUNS_AT_ONCE]
            found = _bulk(client.tracking_uri, some, key)
            if found is None:
                yield from _one_by_one(client, {run_id: [key] for run_id in some})
                continue
            for item in found:
                value = float(item["value"])  # "NaN" and "Infinity" come as text
                yield item["run_id"], key, int(item["step"]), int(item["timestamp"]), value


def _bulk(uri: str, run_ids: Sequence[str], key: str) -> list[dict[str, Any]] | None:
    """The answer of get-history-bulk; None if the server does not have that route, or cuts the answer short."""
    import requests

    try:
        response = http_request(
            get_default_host_creds(uri),
            "/ajax-api/2.0/mlflow/metrics/get-history-bulk",
            "GET",
            params={"run_id": list(run_ids), "metric_key": key, "max_results": POINTS_AT_ONCE},
            max_retries=2,
        )
        if response.status_code != 200:
            return None
        found: list[dict[str, Any]] = response.json()["metrics"]
    except (MlflowException, requests.RequestException, ValueError, KeyError):
        return None  # the public call below says what is wrong, or works
    return found if len(found) < POINTS_AT_ONCE else None


def _one_by_one(client: MlflowClient, keys: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str, int, int, float]]:
    """MLflow's public call: one series at a time, in pages."""
    for run_id, names in keys.items():
        for key in names:
            try:
                history = client.get_metric_history(run_id, key)
            except MlflowException as error:
                raise StoreError(f"run {run_id}: cannot read {key!r}: {one_line(error)}") from error
            for point in history:
                yield run_id, key, point.step, point.timestamp, point.value
