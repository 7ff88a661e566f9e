"""A first look at a long series has some of its points, whatever their number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from cluster import binaries, cluster
from paged import a_run, site

from canary_mlflow.pages import series

ROWS = 1000
RUN, KEYS = "a" * 32, ["stability/loss", "stability/kl", "perf/step_time"]
INSERT = sa.text("INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (:k, :v, :t, :r, :s, :n)")
TABLE = """CREATE TABLE metrics (key VARCHAR(250) NOT NULL, value DOUBLE PRECISION NOT NULL, timestamp BIGINT NOT NULL,
run_uuid VARCHAR(32) NOT NULL, step BIGINT NOT NULL, is_nan BOOLEAN NOT NULL)"""  # MLflow's, as far as it is read


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.full)]  # every day: SQLite
)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    """Three series: one with NaN and infinity, one with two values at a step, one that ends early."""
    if request.param == "sqlite":
        yield filled(sa.create_engine(f"sqlite:///{tmp_path}/some.db"))
        return
    if binaries() is None:
        pytest.skip("no initdb on this machine")
    with cluster() as made:
        there = sa.create_engine(made.uri("postgres"), poolclass=sa.pool.NullPool)
        yield filled(there)


def filled(there: sa.Engine) -> sa.Engine:
    values = np.random.default_rng(0).normal(size=ROWS).tolist()
    with there.begin() as connection:
        connection.execute(sa.text(TABLE))
        connection.execute(sa.text("CREATE INDEX mine ON metrics (run_uuid, key, step)"))
        for number, key in enumerate(KEYS):
            add(connection, key, values[: ROWS - 100 * number], 1)
        add(connection, KEYS[0], [math.nan], 77, later=1)
        add(connection, KEYS[0], [1.7976931348623157e308], 78, later=1)
        add(connection, KEYS[1], [5.0], 400, later=1)
    return there


def add(connection: sa.Connection, key: str, values: list[float], first: int, later: int = 0) -> None:
    connection.execute(
        INSERT,
        [
            {"k": key, "v": 0.0 if math.isnan(v) else v, "t": s + later, "r": RUN, "s": s, "n": math.isnan(v)}
            for s, v in enumerate(values, first)
        ],
    )


def test_a_first_look_walks_over_a_series_however_often_it_was_logged(database: sa.Engine) -> None:
    with database.begin() as connection:
        for step in range(3, ROWS, 7):
            add(connection, "seldom", [0.5], step)
        assert series.steps_apart(connection, RUN, KEYS[0], 10) == list(range(1, ROWS, 10))
        assert series.steps_apart(connection, RUN, "seldom", 10) == list(range(3, ROWS, 14))
        assert series.steps_apart(connection, RUN, "none", 10) == []


def test_a_first_look_has_some_points_of_what_is_long_and_all_of_the_rest(
    shared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "LONG", 100)
    monkeypatch.setattr(series, "BAND", 20)
    long, short = [float(step) for step in range(200)], [1.0] * 90
    run = a_run(shared, {"stability/loss": long, "stability/kl": short})
    web = site(shared.uri, monkeypatch)
    of_run = web.get(f"/canary/run.json?id={run}&rough=1").json
    of_session = web.get(f"/canary/session.json?id={run}&rough=1").json
    for found, lines in ((of_run, of_run["series"]), (of_session, of_session["runs"][0]["series"])):
        assert (found["rough"], found["whole"]) == (True, True)
        assert lines["loss"]["steps"] == list(range(1, 200, 10))
        assert lines["loss"]["values"] == long[::10]
        assert len(lines["kl"]["steps"]) == 90
    monkeypatch.setattr(series, "LONG", 200)
    assert web.get(f"/canary/run.json?id={run}&rough=1").json == web.get(f"/canary/run.json?id={run}").json
