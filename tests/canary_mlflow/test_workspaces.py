"""One database, several workspaces, the same name in each: whose ledger rows, whose champion, whose findings."""

from __future__ import annotations

import sqlite3
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from cluster import database
from guard_doors import request
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from servers import Server

from canary_mlflow.cli import canary
from canary_mlflow.registry.acts.by_hand import bless
from canary_mlflow.tracking.stores.store import prepare_store

PLACES = ("default", "red", "blue")


@pytest.fixture(scope="module")
def store(recorder: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Model `m` in three workspaces: `blue` has a second champion, so `m` is at version 2 there."""
    folder = tmp_path_factory.mktemp("places")
    uri = f"sqlite:///{folder}/mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # where MLflow keeps the artifacts: with workspaces no experiment may say another place
        patch.setenv("MLFLOW_ENABLE_WORKSPACES", "true")
        for place in PLACES:
            patch.setenv("MLFLOW_WORKSPACE", "default")
            prepare_store(uri)
            if place != "default":
                MlflowClient(tracking_uri=uri).create_workspace(place)
            patch.setenv("MLFLOW_WORKSPACE", place)
            client = prepare_store(uri)
            experiment = client.create_experiment("e")
            recorded = recorder(client=client, uri=uri, experiment=experiment, model="m")
            for reason in ("first", "second")[: 2 if place == "blue" else 1]:
                bless(client, "m", recorded.version(runs=1), f"{reason} of {place}")
        yield uri


def run(*words: str, uri: str, place: str | None = None) -> Result:
    """As somebody at the database, who has set nothing unless told so."""
    env = {"MLFLOW_ENABLE_WORKSPACES": None, "MLFLOW_WORKSPACE": place}
    return CliRunner().invoke(canary, [*words, "--tracking-uri", uri], env=env)


def test_verify_walks_every_workspace(store: str, tmp_path: Path) -> None:
    for place in (None, "red"):
        held = run("audit", "verify", uri=store, place=place)
        assert held.exit_code == 0, held.output
    file = tmp_path / "copy.db"
    with sqlite3.connect(store.removeprefix("sqlite:///")) as whole, sqlite3.connect(file) as base:
        whole.backup(base)
        for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            base.execute(f"DROP TRIGGER {name}")
        move = "UPDATE registered_model_aliases SET version = 1 WHERE workspace = 'blue' AND alias = 'champion'"
        assert base.execute(move).rowcount == 1
    found = run("audit", "verify", uri=f"sqlite:///{file}")
    assert found.exit_code == 1
    assert "champion of 'm' in workspace 'blue' is version 1; the ledger says version 2" in found.output
    assert "'red'" not in found.output


def test_log_and_blame_say_the_workspace_where_there_is_more_than_one(store: str) -> None:
    log = run("audit", "log", "m", uri=store).output
    assert [place for place in PLACES if f" {place}/m version 1" in log] == list(PLACES)
    one = run("audit", "log", "m", "--workspace", "red", uri=store).output
    assert "first of red" in one
    assert "of blue" not in one
    assert "red/m" not in one  # there is no other to be told from
    blamed = run("audit", "blame", "m", uri=store).output.splitlines()
    assert [" ".join(line.split()[4:7]).rstrip(",") for line in blamed] == [
        "default/m version 1", "red/m version 1", "blue/m version 2",
    ]  # fmt: skip
    assert "second of blue" in run("audit", "blame", "m", uri=store, place="blue").output
    nobody = run("audit", "log", "m", "--workspace", "green", uri=store)
    assert (nobody.exit_code, "'m' in workspace 'green': no row" in nobody.output) == (2, True)


@pytest.mark.full
def test_a_server_answers_rows_of_the_workspace_that_was_asked_for(store: str, tmp_path: Path) -> None:
    enabled = {"MLFLOW_ENABLE_WORKSPACES": "true"}
    with Server(store, tmp_path, registry=f"canary+{store}", app="canary", environment=enabled) as server:
        for place in PLACES:
            assert reasons(server.uri, place) == [f"first of {place}", *(["second of blue"] * (place == "blue"))]
        assert reasons(server.uri, None) == ["first of default"]


def reasons(uri: str, place: str | None) -> list[str]:
    import json

    headers = {} if place is None else {"X-MLFLOW-WORKSPACE": place}
    answer = request(f"{uri}/api/2.0/canary/ledger?{urllib.parse.urlencode({'model': 'm'})}", "GET", headers=headers)
    assert {row["workspace"] for row in answer["rows"]} == {place or "default"}
    return [json.loads(row["body"])["reason"] for row in answer["rows"] if row["kind"] == "bless"]


def test_the_routes_of_one_workspace_know_nothing_of_another(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without a server of its own: what guards the former test every day."""
    from flask import Flask

    from canary_mlflow.pages.blueprint import add_pages
    from canary_mlflow.server.routes import add_routes

    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", store)
    monkeypatch.setenv("_MLFLOW_SERVER_REGISTRY_STORE", f"canary+{store}")
    monkeypatch.setenv("MLFLOW_ENABLE_WORKSPACES", "true")
    app = Flask("places")
    add_routes(app, authenticated=False)
    add_pages(app)
    web = app.test_client()
    for place in PLACES:
        monkeypatch.setenv("MLFLOW_WORKSPACE", place)
        rows = web.get("/api/2.0/canary/ledger?model=m").get_json()["rows"]
        assert {row["workspace"] for row in rows} == {place}
        page = web.get("/canary/model?name=m").get_data(as_text=True)
        assert f"first of {place}" in page
        assert all(f"first of {other}" not in page for other in PLACES if other != place)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
def test_a_workspace_takes_no_champion_along_and_brings_none(
    kind: str, recorder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow deletes a workspace with all that is in it, or moves that into the one that every registry has."""
    with database(kind, tmp_path) as uri:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("MLFLOW_ENABLE_WORKSPACES", "true")
        root = at(uri, "default", monkeypatch)
        for place in ("red", "blue"):
            root.create_workspace(place)
        for place, model in (("red", "m"), ("default", "gone")):
            client = at(uri, place, monkeypatch)
            recorded = recorder(
                client=client, uri=uri, experiment=client.create_experiment(f"e of {place}"), model=model
            )
            version = recorded.version(runs=1)
            if place == "red":
                bless(client, model, version, "a champion")
        client.delete_registered_model("gone")
        other = at(uri, "blue", monkeypatch)
        other.create_registered_model("gone")  # a name that the other workspace's ledger rows are about
        other.create_model_version("gone", "s3://elsewhere/weights")
        other.set_registered_model_alias("gone", "champion", "1")
        before = holders(uri)
        root = at(uri, "default", monkeypatch)
        for place, mode in (("red", "CASCADE"), ("red", "SET_DEFAULT"), ("blue", "SET_DEFAULT")):
            with pytest.raises(MlflowException, match="canary guard: "):
                root.delete_workspace(place, mode=mode)
            assert holders(uri) == before
        held = run("audit", "verify", uri=uri)
        assert held.exit_code == 0, held.output


def at(uri: str, place: str, patch: pytest.MonkeyPatch) -> MlflowClient:
    """A client of the guarded registry that looks at one workspace."""
    patch.setenv("MLFLOW_WORKSPACE", place)
    prepare_store(uri)
    return MlflowClient(tracking_uri=uri, registry_uri=f"canary+{uri}")


def holders(uri: str) -> list[tuple[Any, ...]]:
    with sa.create_engine(uri).connect() as connection:
        found = connection.execute(sa.text("SELECT workspace, name, alias, version FROM registered_model_aliases"))
        return sorted(tuple(one) for one in found)
