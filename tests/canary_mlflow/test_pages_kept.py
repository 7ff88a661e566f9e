"""What pages keep of long series is what the database says, whatever happens to either."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from cluster import binaries, cluster
from paged import a_run, site, text_of

from canary_mlflow.pages import point_cache as module
from canary_mlflow.pages import series
from canary_mlflow.pages.point_cache import cached_points, root
from canary_mlflow.tracking.reading.database import points_over
from canary_mlflow.tracking.reading.records import Points, in_order
from canary_mlflow.tracking.stores.read_only import engine

WORTH, ROWS = 400, 1000
RUN, KEYS = "a" * 32, ["stability/loss", "stability/kl", "perf/step_time"]
INSERT = sa.text("INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (:k, :v, :t, :r, :s, :n)")
TABLE = """CREATE TABLE metrics (key VARCHAR(250) NOT NULL, value DOUBLE PRECISION NOT NULL, timestamp BIGINT NOT NULL,
run_uuid VARCHAR(32) NOT NULL, step BIGINT NOT NULL, is_nan BOOLEAN NOT NULL)"""  # MLflow's, as far as it is read


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.full)]  # every day: SQLite
)
def database(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sa.Engine]:
    """Three series: one with NaN and infinity, one with two values at a step, one that ends early."""
    monkeypatch.setenv("CANARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "LONG", WORTH)
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


def look(there: sa.Engine, *stretch: int) -> tuple[dict[str, Points], int]:
    """What a page is given, equal to what the database says, and how many rows were read for it."""
    read = 0

    def count(*call: Any, **names: Any) -> Any:
        nonlocal read
        found = points_over(*call, **names)
        read += sum(len(rows) for keys in found.values() for rows in keys.values())
        return found

    with there.connect() as connection, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "points_over", count)
        found = cached_points(connection, {RUN: [*KEYS, "none"]}, *stretch)[RUN]
        plain = points_over(connection, {RUN: [*KEYS, "none"]}, *stretch)[RUN]
    assert found.keys() == plain.keys()
    for one, rows in plain.items():
        assert np.array_equal(in_order(found[one]), in_order(rows), equal_nan=True), one
    return found, read


def files() -> list[Path]:
    return sorted(root().iterdir())


def test_a_second_look_reads_what_is_new_alone(database: sa.Engine) -> None:
    first, read = look(database)
    assert read == sum(map(len, first.values()))
    assert np.isnan(first[KEYS[0]][:, 2]).sum() == 1
    assert len(files()) == 3
    assert look(database)[1] < 500
    with database.begin() as connection:
        add(connection, KEYS[0], [1.0] * 20, ROWS + 1)
    before = [one.read_bytes() for one in files()]
    assert look(database)[1] < 500
    assert [one.read_bytes() for one in files()] == before  # not written anew for so few
    with database.begin() as connection:
        add(connection, KEYS[0], [1.0] * 200, ROWS + 21)
    assert 200 <= look(database)[1] < 700
    assert [one.read_bytes() for one in files()] != before
    assert look(database)[1] < 500


def test_a_stretch_is_given_in_all_detail(database: sa.Engine) -> None:
    look(database)
    found, read = look(database, 100, WORTH + 300)
    assert len(found[KEYS[0]]) == WORTH + 200
    assert read < 500
    look(database, 399, 401)
    look(database, ROWS + 5, ROWS + 9)


@pytest.mark.parametrize(
    "change",
    [
        f"DELETE FROM metrics WHERE key = '{KEYS[0]}' AND step = 500",
        f"DELETE FROM metrics WHERE key = '{KEYS[1]}'",
        f"UPDATE metrics SET value = value + 1 WHERE key = '{KEYS[2]}'",
        f"INSERT INTO metrics SELECT key, 9, timestamp + 7, run_uuid, step, is_nan FROM metrics "
        f"WHERE key = '{KEYS[2]}' AND step = 600",
    ],
)
def test_rows_that_went_came_late_or_changed_are_seen(database: sa.Engine, change: str) -> None:
    look(database)
    with database.begin() as connection:
        connection.execute(sa.text(change))
    look(database)
    assert look(database)[1] < 500


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", b"not an array", None])
def test_a_damaged_or_missing_file_is_made_anew(database: sa.Engine, damage: bytes | None) -> None:
    look(database)
    for file in files():
        file.unlink() if damage is None else file.write_bytes(damage)
    look(database)
    assert look(database)[1] < 500


def test_a_file_of_another_series_or_of_objects_is_not_taken(database: sa.Engine) -> None:
    look(database)
    first, second, third = files()
    second.write_bytes(first.read_bytes())
    np.save(third, np.array([[object()]]), allow_pickle=True)
    look(database)


def test_without_a_folder_the_database_is_read(database: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_CACHE", "/proc/none")
    look(database)
    assert look(database)[1] > ROWS


def test_the_files_have_a_bound(database: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 24 * ROWS * 2)
    look(database)
    assert len(files()) == 2
    assert not list(root().glob("*.part"))


def test_a_page_draws_the_same_from_both(shared: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CANARY_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "LONG", WORTH)
    run = a_run(shared, {"stability/loss": [1.0]})
    with sa.create_engine(engine(shared.uri).url).begin() as connection:
        rows = [{"k": "stability/loss", "v": s % 97, "t": s, "r": run, "s": s, "n": s == 50} for s in range(2, ROWS)]
        connection.execute(INSERT, rows)
    web = site(shared.uri, monkeypatch)
    answers = [text_of(web.get(f"/canary/session.json?id={run}")) for _ in range(2)]
    assert len(files()) == 1
    assert answers[0] == answers[1]
    assert "1 of 999 values are NaN or infinity, the first at step 50." in answers[0]


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
