"""Commands that only read need a place where nothing can be written, and leave nothing in one where it could."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from read_only import read_only, sealed

from canary_mlflow.cli import canary
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.judging.gatekeeper import gate

READERS = (
    ("audit", "verify"),
    ("audit", "log", "MODEL"),
    ("audit", "blame", "MODEL"),
    ("audit", "export"),
    ("report", "MODEL/2"),
    ("compare", "MODEL/1", "MODEL/2"),
    ("doctor",),
    ("keys", "list"),
)


@pytest.fixture(scope="module")
def judged(shared: Any) -> Any:
    recorded = replace(shared, model="to-be-read", seed=5)
    for _ in range(2):
        gate(recorded.client, recorded.model, recorded.version(), load_policy("smoke"))
    return recorded


def copied(judged: Any, folder: Path) -> str:
    """A copy of the store, as somebody would take it from a backup."""
    file = folder / "mlflow.db"
    with (
        closing(sqlite3.connect(judged.uri.removeprefix("sqlite:///"))) as whole,
        closing(sqlite3.connect(file)) as made,
    ):
        whole.backup(made)
    return f"sqlite:///{file}"


def read(judged: Any, words: tuple[str, ...], uri: str) -> Result:
    named = [word.replace("MODEL", judged.model) for word in words]
    return CliRunner().invoke(canary, [*named, "--tracking-uri", uri])


@pytest.fixture(scope="module")
def backup(judged: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with read_only(tmp_path_factory.mktemp("backup")) as folder:
        uri = copied(judged, folder)
        sealed(folder)
        yield uri


@pytest.mark.parametrize("words", READERS, ids=lambda words: " ".join(words[:2]))
def test_a_copy_that_cannot_be_written_is_read(judged: Any, backup: str, words: tuple[str, ...]) -> None:
    here, there = read(judged, words, judged.uri), read(judged, words, backup)
    assert there.exit_code == here.exit_code, there.output
    assert "not writable" not in there.output
    assert "Read-only file system" not in there.output
    assert "Traceback" not in there.output


def test_nothing_is_left_beside_a_copy_that_could_be_written(judged: Any, tmp_path: Path) -> None:
    uri = copied(judged, tmp_path)
    before = (tmp_path / "mlflow.db").read_bytes()
    for words in READERS:
        read(judged, words, uri)
        assert [file.name for file in tmp_path.iterdir()] == ["mlflow.db"], words
    assert (tmp_path / "mlflow.db").read_bytes() == before


def test_a_copy_with_a_write_ahead_log_s_header_is_read(judged: Any, tmp_path: Path) -> None:
    with read_only(tmp_path) as folder:
        uri = copied(judged, folder)
        with closing(sqlite3.connect(folder / "mlflow.db")) as base:
            base.execute("PRAGMA journal_mode = WAL")
        sealed(folder)
        done = read(judged, ("audit", "log", "MODEL"), uri)
        assert done.exit_code == 0, done.output
