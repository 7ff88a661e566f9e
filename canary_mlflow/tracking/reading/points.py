"""Reads the points of many series from a store, in bulk: from its database if there is one, else from its server."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from canary_mlflow.errors import StoreError, one_line
from canary_mlflow.tracking.stores.places import without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

Points = NDArray[np.float64]
"""One series, shape (n, 3): step, timestamp in ms, value. All exact as floats."""

RUNS_AT_ONCE = 100  # the server's limit for one bulk request
POINTS_AT_ONCE = 25_000  # the server's silent limit for one bulk answer
ROWS_AT_ONCE = 100_000  # as Python objects, which are ten times as large as the arrays that are kept
KEYS_AT_ONCE = 500  # older SQLite takes 999 values in one statement
NONE: Points = np.empty((0, 3))
KEY = itemgetter(0)


def read_points(client: MlflowClient, keys: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Points]:
    """Every point of the requested series, in whatever order the store gives them."""
    scheme = urlsplit(client.tracking_uri).scheme
    if scheme.partition("+")[0] in ("sqlite", "postgresql", "mysql", "mssql"):
        return _from_database(client.tracking_uri, keys)
    found: dict[tuple[str, str], list[tuple[int, int, float]]] = defaultdict(list)
    source = _from_server(client, keys) if scheme in ("http", "https") else _one_by_one(client, keys)
    for run_id, key, step, timestamp, value in source:
        found[run_id, key].append((step, timestamp, value))
    wanted = ((run_id, key) for run_id in keys for key in keys[run_id])
    return {series: np.array(found[series], dtype=np.float64).reshape(-1, 3) for series in wanted}


def _from_database(uri: str, keys: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Points]:
    """The same from the database at `uri`, over a separate connection."""
    import sqlalchemy as sa

    engine = sa.create_engine(uri, poolclass=sa.pool.NullPool)
    try:
        with engine.connect() as connection:
            return points_over(connection, keys)
    except sa.exc.SQLAlchemyError as error:
        raise StoreError(f"{without_password(uri)}: {one_line(error)}; expected MLflow's table of metrics") from error


def points_over(
    connection: Any,
    keys: Mapping[str, Sequence[str]],
    after: int | None = None,
    until: int | None = None,
    at: Sequence[int] | None = None,
) -> dict[tuple[str, str], Points]:
    """The points of the runs' series by step, with one SELECT per run and without an object per point.

    `after`: only later steps. `until`: no later steps than this. `at`: only these steps. The ORDER BY makes SQLite use
    MLflow's index over run, key and step: by itself it uses the primary key, which begins with the metric, and reads
    that metric of every run in the store.
    """
    import sqlalchemy as sa

    table = sa.table("metrics", *map(sa.column, ("run_uuid", "key", "step", "timestamp", "value", "is_nan")))
    columns = (table.c.key, table.c.step, table.c.timestamp, table.c.value, table.c.is_nan)
    mine = (table.c.run_uuid == sa.bindparam("run"), table.c.key.in_(sa.bindparam("keys", expanding=True)))
    query = sa.select(*columns).where(*mine).order_by(table.c.key, table.c.step)
    if after is not None:
        query = query.where(table.c.step > after)
    if until is not None:
        query = query.where(table.c.step <= until)
    if at is not None:
        query = query.where(table.c.step.in_(at))
    found = {(run_id, key): NONE for run_id, names in keys.items() for key in names}
    for run_id, names in keys.items():
        for start in range(0, len(names), KEYS_AT_ONCE):
            values = {"run": run_id, "keys": names[start : start + KEYS_AT_ONCE]}
            parts: dict[str, list[Points]] = defaultdict(list)
            with connection.execute(query, values) as result:
                while rows := result.cursor.fetchmany(ROWS_AT_ONCE):  # SQLAlchemy's Row objects would double the cost
                    for key, points in _by_key(rows):
                        parts[key].append(points)
            found |= {(run_id, key): some[0] if len(some) == 1 else np.concatenate(some) for key, some in parts.items()}
    return found


def _by_key(rows: list[tuple[Any, ...]]) -> Iterator[tuple[str, Points]]:
    """The points of each key, in the order of the rows."""
    rows.sort(key=KEY)  # stable; a database's collation may take two keys for one
    points = np.empty((len(rows), 3))
    for at in range(3):
        points[:, at] = np.fromiter(map(itemgetter(at + 1), rows), np.float64, len(rows))
    points[np.fromiter(map(itemgetter(4), rows), np.bool_, len(rows)), 2] = math.nan
    end = 0
    for key, count in Counter(map(KEY, rows)).items():
        start, end = end, end + count
        yield key, points[start:end]


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
    from mlflow.exceptions import MlflowException
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

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
    from mlflow.exceptions import MlflowException

    for run_id, names in keys.items():
        for key in names:
            try:
                history = client.get_metric_history(run_id, key)
            except MlflowException as error:
                raise StoreError(f"run {run_id}: cannot read {key!r}: {one_line(error)}") from error
            for point in history:
                yield run_id, key, point.step, point.timestamp, point.value
