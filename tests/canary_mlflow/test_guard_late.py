"""What a running server answers when only its database knows that something is guarded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from guard_doors import Http, Refused
from guard_modes import Mode, opened

from canary_mlflow.cli import canary

WAYS: dict[str, Callable[[Http], Any]] = {
    "take the alias away": lambda it: it.unalias("late", "champion"),
    "rename": lambda it: it.rename("late", "later"),
    "rename to a guarded name": lambda it: it.rename("free", "later"),
    "delete the model": lambda it: it.delete_model("late"),
    "delete the version": lambda it: it.delete_version("late", "1"),
    "stage": lambda it: it.stage("late", "2", "Production"),
    "alias": lambda it: it.alias("late", "champion", "2"),
    "alias again": lambda it: it.alias("late", "champion", "2"),
}


@pytest.fixture(params=["server, SQLite", "server, PostgreSQL"])
def mode(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mode]:
    with opened(request.param, tmp_path_factory.mktemp("late")) as found:
        yield found


def test_what_is_guarded_since_the_server_began_is_refused_as_ever(mode: Mode) -> None:
    """The worker has read what is guarded when it opened the store, and learns of more by the triggers' refusals."""
    rest = Http(f"{mode.front}/api/2.0")
    for model in ("late", "free"):
        rest.create_model(model, {})
        for _ in range(2):
            rest.create_version(model, "s3://team/weights", "", {})
        rest.alias(model, "champion" if model == "late" else "ours", "1")
    words = ("db", "install", "--tracking-uri", mode.owner, "--guard", "champion=lat*", "--guard", "ours=later")
    done = CliRunner().invoke(canary, words)
    assert done.exit_code == 0, done.output
    said = {}
    for name, way in WAYS.items():
        with pytest.raises(Refused) as refused:
            way(rest)
        said[name] = refused.value
    for name, refusal in said.items():
        assert refusal.status == 403, (name, refusal.message)
        assert refusal.message.startswith("canary guard: "), (name, refusal.message)
        assert not {"SQL", "INSERT", "sqlite3", "psycopg", "\n"} & {*refusal.message.split(), *refusal.message}, name
    assert said["alias"].message == (
        "canary guard: alias 'champion' of 'late', version 2: there is no verdict for it in the ledger; "
        "run canary gate late 2"
    )
    assert mode.client().get_registered_model("late").aliases == {"champion": "1"}
