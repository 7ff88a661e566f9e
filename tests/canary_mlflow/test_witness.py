"""The head of the ledger goes to a witness after each row, and any difference from what the witness saw is named."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from sqlalchemy.orm import Session

from canary_mlflow.cli import canary
from canary_mlflow.ledger import table, writing
from canary_mlflow.ledger.chain import Kind, Record, Row
from canary_mlflow.ledger.keys import load_signer
from canary_mlflow.ledger.writing import add, let_sign


@pytest.fixture
def database(empty_ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CANARY_KEYS", str(tmp_path / "keys"))
    return Path(shutil.copy(empty_ledger, tmp_path / "mlflow.db"))


def row(database: Path, reason: str = "…", *, fails: bool = False) -> Row:
    """A row through the door that all rows go through; `fails`: its transaction does not come to its end."""
    record = Record(
        kind=Kind.VERDICT, model="m", version=1, version_created=0, alias="champion", word="BLOCK", grants=False,
        moves=False, facts={"actor": "ann", "reason": reason, "time": "2026-11-21T10:00:00.000+00:00"},
    )  # fmt: skip
    signer = load_signer(writing.key_folder())
    with Session(sa.create_engine(f"sqlite:///{database}")) as session, session.begin():
        table.lock(session)
        found = add(session, record, signer, let_sign(session, signer, "ann"))
        if fails:
            raise ZeroDivisionError
    return found


def verify(database: Path, place: str) -> Result:
    uri = f"sqlite:///{database}"
    done = CliRunner().invoke(canary, ["audit", "verify", "--witness", place, "--tracking-uri", uri])
    assert "Traceback" not in done.output
    return done


def cut(database: Path, after: int) -> None:
    """As the file's owner can."""
    with sqlite3.connect(database) as base:
        base.execute("DROP TRIGGER canary_ledger_delete")
        base.execute("DELETE FROM canary_ledger WHERE seq > ?", (after,))
        base.execute("DROP TRIGGER canary_ledger_insert")
    CliRunner().invoke(canary, ["db", "install", "--tracking-uri", f"sqlite:///{database}"])


def until(found: Callable[[], bool]) -> None:
    """The sender is a thread of its own."""
    for _ in range(200):
        if found():
            return
        time.sleep(0.02)
    raise AssertionError("the witness has seen nothing")


def heads(file: Path) -> list[str]:
    return [json.loads(line)["head"] for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CANARY_WITNESS", str(tmp_path / "elsewhere.jsonl"))
    return tmp_path / "elsewhere.jsonl"


def test_without_a_witness_nothing_is_kept_or_sent(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANARY_WITNESS", raising=False)
    row(database)
    assert not (writing.key_folder() / "witness").exists()


def test_an_end_that_was_cut_and_one_that_was_written_anew_are_named(database: Path, place: Path) -> None:
    written = [row(database), row(database), row(database)]
    until(lambda: heads(place) == [one.head for one in written])
    held = verify(database, str(place))
    assert held.exit_code == 0, held.output
    cut(database, after=1)
    found = verify(database, str(place))
    assert (found.exit_code, found.stdout) == (1, "the ledger ends at row 1; the witness saw row 3\n")
    row(database, "another, signed with the same key")  # the thief has it
    until(lambda: len(heads(place)) == 4)
    anew = verify(database, str(place))
    assert anew.exit_code == 1
    assert "row 2: it is not the row that the witness saw" in anew.stdout
    assert "the ledger ends at row 2; the witness saw row 3" in anew.stdout


def test_a_database_that_was_restored_from_an_older_copy_is_named(database: Path, place: Path) -> None:
    row(database)
    older = database.read_bytes()
    row(database)
    until(lambda: len(heads(place)) == 2)
    database.write_bytes(older)
    assert "the ledger ends at row 1; the witness saw row 2" in verify(database, str(place)).stdout


def test_what_is_rolled_back_was_never_seen(database: Path, place: Path) -> None:
    row(database)
    with pytest.raises(ZeroDivisionError):
        row(database, "never", fails=True)
    row(database)
    until(lambda: len(heads(place)) == 2)
    assert verify(database, str(place)).exit_code == 0


class Receiver(BaseHTTPRequestHandler):
    """What a witness over HTTP is: lines are posted, and given back."""

    kept: list[str]
    status = 204

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.status == 204:
            self.kept.append(text)
        self.answer(self.status, "")

    def do_GET(self) -> None:
        self.answer(200, "".join(self.kept))

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *words: Any) -> None:
        pass


@contextmanager
def receiver() -> Iterator[tuple[str, type[Receiver]]]:
    class Own(Receiver):
        pass

    Own.kept = []
    server = HTTPServer(("127.0.0.1", 0), Own)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/heads", Own
    finally:
        server.shutdown()
        server.server_close()


def test_a_witness_over_http_that_was_down_hears_of_the_rows_it_missed(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiver() as (address, own):
        monkeypatch.setenv("CANARY_WITNESS", address)
        own.status = 503
        missed = [row(database), row(database)]
        waiting = writing.waiting(address)
        until(lambda: not any(one.is_alive() for one in writing._senders))
        assert own.kept == []
        own.status = 204
        last = row(database)
        until(lambda: len("".join(own.kept).splitlines()) == 3)
        assert [json.loads(line)["head"] for line in "".join(own.kept).splitlines()] == [
            one.head for one in (*missed, last)
        ]
        until(lambda: [file.name for file in waiting.iterdir()] == [".lock"])
        assert verify(database, address).exit_code == 0
        cut(database, after=2)
        assert "the witness saw row 3" in verify(database, address).stdout
    gone = verify(database, address)
    assert gone.exit_code == 4
    assert gone.stderr.count("\n") == 1


def test_a_witness_that_never_answers_keeps_nobody_waiting(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection and says nothing: the rows are there while the sender still waits for it."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("CANARY_WITNESS", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        for _ in range(3):
            row(database)
        assert any(one.is_alive() for one in writing._senders)
        with sqlite3.connect(database) as base:
            assert base.execute("SELECT count(*) FROM canary_ledger").fetchone() == (3,)


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("", 2, "no head in it; expected one per line"),
        ("nonsense\n", 2, "line 1: 'nonsense'; expected a head, SEQ:DIGEST"),
        ("1:{digest}\n", 0, "rows hold"),  # kept by hand
        ('{{"head": "1:{digest}", "ledger": "{digest}"}}', 0, "rows hold"),  # the server's own route
        ('{{"head": "1:{digest}", "ledger": "other"}}', 1, "has seen no row of this ledger"),
        ("1:" + "0" * 64, 1, "row 1: it is not the row that the witness saw"),
    ],
)
def test_what_a_witness_may_hold(database: Path, tmp_path: Path, text: str, code: int, says: str) -> None:
    file = tmp_path / "heads"
    digest = row(database).digest
    file.write_text(text.format(digest=digest))
    done = verify(database, str(file))
    assert (done.exit_code, says in done.output) == (code, True), done.output
