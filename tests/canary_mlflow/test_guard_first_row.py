"""When a model becomes guarded, and that all others stay plain MLflow."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ledger_rows import note
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from canary_mlflow.cli import canary
from canary_mlflow.tracking.stores.store import prepare_store


def run(uri: str, *words: str) -> Result:
    return CliRunner().invoke(canary, [*words, "--tracking-uri", uri])


@pytest.fixture(scope="module")
def registry(shared: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A store of its own, with models of other teams."""
    folder = tmp_path_factory.mktemp("registry")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = prepare_store(uri)
    experiment = client.create_experiment("theirs", artifact_location=str(folder / "mlruns"))
    return replace(shared, client=client, uri=uri, experiment=experiment, model="of-the-registry", seed=0)


def stock(registry: Any) -> MlflowClient:
    return MlflowClient(registry.uri, registry_uri=registry.uri)


def assert_holds(registry: Any) -> None:
    verified = run(registry.uri, "audit", "verify")
    assert verified.exit_code == 0, verified.output


def theirs(client: MlflowClient, model: str, versions: int = 2) -> None:
    """A model as another team makes it, with the champion alias on its first version."""
    client.create_registered_model(model)
    for _ in range(versions):
        client.create_model_version(model, "/nowhere")
    client.set_registered_model_alias(model, "champion", "1")


@pytest.mark.parametrize("door", ["guarded", "stock"])
def test_a_model_without_a_row_is_mlflows_own(registry: Any, door: str) -> None:
    client = registry.client if door == "guarded" else stock(registry)
    theirs(client, f"team-{door}")
    client.set_registered_model_alias(f"team-{door}", "champion", "2")
    client.transition_model_version_stage(f"team-{door}", "1", "Production")
    client.delete_registered_model_alias(f"team-{door}", "champion")
    client.set_registered_model_alias(f"team-{door}", "anchor", "1")
    client.rename_registered_model(f"team-{door}", f"team-{door}-2")
    client.delete_model_version(f"team-{door}-2", "1")
    client.delete_registered_model(f"team-{door}-2")
    client.create_registered_model(f"team-{door}")
    assert_holds(registry)


def test_the_seal_of_the_first_version_guards_it_before_any_verdict(registry: Any) -> None:
    mine = replace(registry, model="sealed-only")
    version = mine.register(mine.session(runs=1))
    for client in (mine.client, stock(mine)):
        for alias in ("champion", "Champion", "anchor"):
            with pytest.raises(MlflowException, match="canary guard: "):
                client.set_registered_model_alias(mine.model, alias, version)
    mine.client.set_registered_model_alias(mine.model, "their-own", version)
    assert_holds(mine)


def test_a_row_about_a_name_guards_it_before_the_model_is_there(registry: Any) -> None:
    """As a session leaves it that has begun: no version yet."""
    note(registry.uri, "under-way")
    for number, client in enumerate((registry.client, stock(registry)), 1):
        if number == 1:
            client.create_registered_model("under-way")
        client.create_model_version("under-way", "/nowhere")
        with pytest.raises(MlflowException, match="canary guard: "):
            client.set_registered_model_alias("under-way", "champion", str(number))


def test_without_its_triggers_the_guard_asks_for_rows_itself(registry: Any, tmp_path: Path) -> None:
    theirs(registry.client, "unseen")
    copy = tmp_path / "mlflow.db"
    with sqlite3.connect(registry.uri.removeprefix("sqlite:///")) as whole, sqlite3.connect(copy) as made:
        whole.backup(made)
        made.execute("DROP TRIGGER canary_alias_update")
    uri = f"sqlite:///{copy}"
    client = prepare_store(uri)
    client.set_registered_model_alias("unseen", "champion", "2")
    note(uri, "unseen")  # by another process: the store was opened before
    with pytest.raises(MlflowException, match="there is no verdict"):
        client.set_registered_model_alias("unseen", "champion", "1")


def test_a_champion_from_before_is_adopted_and_stays_where_it_is(registry: Any) -> None:
    client = stock(registry)
    client.create_registered_model("theirs")
    mine = replace(registry, model="theirs")
    client.create_model_version("theirs", "/nowhere")
    client.set_registered_model_alias("theirs", "champion", "1")
    done = run(mine.uri, "adopt", "theirs", "--reason", "in use since spring")
    assert done.exit_code == 0, done.output
    assert "Version 1 of theirs is champion as before: adopted by" in done.output
    assert mine.champion() == "1"
    log = run(mine.uri, "audit", "log", "theirs").output
    assert "adopt     adopted" in log
    assert "theirs version 1, champion as it was, by" in log
    for other in (mine.client, client):
        other.create_model_version("theirs", "/nowhere")
        with pytest.raises(MlflowException, match="canary guard: "):
            other.set_registered_model_alias("theirs", "champion", "2")
    assert_holds(mine)
    assert "version 1" in run(mine.uri, "audit", "blame", "theirs").output
    over = run(mine.uri, "override", "theirs", "2", "--reason", "newer", "--without-weights")
    assert (over.exit_code, mine.champion()) == (0, "2"), over.output
    back = run(mine.uri, "rollback", "theirs", "--reason", "older was right")
    assert (back.exit_code, mine.champion()) == (0, "1"), back.output
    assert_holds(mine)


def test_what_cannot_be_adopted_is_refused_in_one_line(registry: Any) -> None:
    client = stock(registry)
    theirs(client, "adoptable")
    client.create_registered_model("without-champion")
    for words, says in (
        (("adopt", "without-champion", "--reason", "x"), "it names no version; expected one to adopt"),
        (("adopt", "nobody", "--reason", "x"), "not in the registry"),
        (("adopt", "adoptable", "--reason", " "), "--reason: found an empty text"),
        (("adopt", "adoptable", "--reason", "x", "--alias", "shadow"), "nobody guards it; expected one of anchor, "),
        (("adopt", "adoptable", "--reason", "x", "--alias", "anchor"), "it names no version"),
    ):
        refused = run(registry.uri, *words)
        assert (refused.exit_code, refused.output.count("\n")) == (2, 1), refused.output
        assert says in refused.output
    misspelt = run(registry.uri, "override", "adoptable", "1", "--reason", "x", "--alias", "chmpion")
    assert (misspelt.exit_code, "nobody guards it; expected one of anchor, champion" in misspelt.output) == (2, True)
    assert run(registry.uri, "adopt", "adoptable", "--reason", "x").exit_code == 0
    again = run(registry.uri, "adopt", "adoptable", "--reason", "x")
    assert (again.exit_code, "of the ledger made it version 1" in again.output) == (2, True)


def test_an_alias_moved_behind_the_ledger_is_not_adopted(registry: Any, tmp_path: Path) -> None:
    copy = tmp_path / "mlflow.db"
    theirs(stock(registry), "moved-behind")
    assert run(registry.uri, "adopt", "moved-behind", "--reason", "x").exit_code == 0
    with sqlite3.connect(registry.uri.removeprefix("sqlite:///")) as whole, sqlite3.connect(copy) as made:
        whole.backup(made)
        made.execute("DROP TRIGGER canary_alias_update")
        made.execute("UPDATE registered_model_aliases SET version = 2 WHERE name = 'moved-behind'")
    refused = run(f"sqlite:///{copy}", "adopt", "moved-behind", "--reason", "x")
    assert (refused.exit_code, "of the ledger made it version 1" in refused.output) == (2, True)


def test_a_champion_without_a_row_of_a_guarded_name_is_told_how_to_get_one(registry: Any) -> None:
    """Set while the name was free; the first row about the model came later, by a session."""
    client = stock(registry)
    theirs(client, "half-known")
    mine = replace(registry, model="half-known")
    mine.register(mine.session(runs=1))
    found = run(mine.uri, "audit", "verify")
    assert found.exit_code == 1
    assert "champion of 'half-known' is version 1; the ledger has no row that made it so; canary adopt" in found.output
    assert run(mine.uri, "adopt", "half-known", "--reason", "theirs from before").exit_code == 0
    assert_holds(mine)


def test_what_a_database_guards_already_stays_as_it_was_written(registry: Any, tmp_path: Path) -> None:
    copy = tmp_path / "mlflow.db"
    with sqlite3.connect(registry.uri.removeprefix("sqlite:///")) as whole, sqlite3.connect(copy) as made:
        whole.backup(made)
        made.execute("DROP TRIGGER canary_guarded_delete")
        made.execute("DROP TRIGGER canary_guarded_insert")
        made.execute("DELETE FROM canary_guarded")
        made.execute("INSERT INTO canary_guarded VALUES ('champion', '*', '%')")
    uri = f"sqlite:///{copy}"
    done = run(uri, "db", "install")
    assert "guarded    champion of *\n" in done.output
    assert "every model that the ledger" not in done.output
    client = prepare_store(uri)
    client.create_registered_model("anything")
    client.create_model_version("anything", "/nowhere")
    with pytest.raises(MlflowException, match="there is no verdict"):
        client.set_registered_model_alias("anything", "champion", "1")
    changed = run(uri, "db", "install", "--guard", "champion=prod-*", "--guard", "shadow")
    assert [line.strip() for line in changed.output.splitlines()[1:5]] == [
        "guarded    anchor of every model that the ledger has a row about",
        "guarded    champion of every model that the ledger has a row about",
        "guarded    champion of prod-*",
        "guarded    shadow of every model that the ledger has a row about",
    ]
