"""Keys end: a rotation and a revocation are rows of the ledger, and a thief's rows after them are named."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from guard_doors import Refused, request
from servers import Server
from sqlalchemy.orm import Session

from canary_mlflow.cli import canary
from canary_mlflow.ledger import keys, table
from canary_mlflow.ledger.chain import Kind, Record
from canary_mlflow.ledger.keys import Signer, load_signer, publish
from canary_mlflow.ledger.succession import REVOKED, ROTATED, TRUSTED, key_record
from canary_mlflow.ledger.writing import add
from canary_mlflow.tracking.stores.store import prepare_store


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Ledger:
    """A ledger in a SQLite store, and a folder of keys that is the account's own."""

    uri: str
    folder: Path

    def canary(self, *words: str) -> Result:
        return CliRunner().invoke(canary, list(words), env={"CANARY_KEYS": str(self.folder)})

    def told(self, *words: str) -> Result:
        return self.canary(*words, "--tracking-uri", self.uri)

    def row(self, signer: Signer, record: Record | None = None) -> int:
        """A row as whoever can write the database adds it: nobody asks whether the key may."""
        usual = Record(
            kind=Kind.VERDICT, model="m", version=1, version_created=0, alias="champion", word="BLOCK", grants=False,
            moves=False, facts={"actor": "ann", "reason": "…", "time": now()},
        )  # fmt: skip
        with Session(sa.create_engine(self.uri)) as session, session.begin():
            return add(session, record or usual, signer, table.last(session)).seq

    def about(self, signer: Signer, word: str, subject: str, **facts: Any) -> int:
        return self.row(signer, key_record(word, subject, "eve", "…", {"time": now()}, **facts))

    def mine(self) -> Signer:
        return load_signer(self.folder)

    def trusts(self, folder: Path) -> Signer:
        """Another account's key, whose file is among the trusted ones here."""
        other = load_signer(folder)
        publish(other.key.public_key(), self.folder)
        return other

    def findings(self) -> list[str]:
        done = self.told("audit", "verify")
        assert "Traceback" not in done.output
        assert done.exit_code == (1 if "finding" in done.output else 0), done.output
        return [line for line in done.stdout.splitlines() if done.exit_code]

    def rows(self) -> int:
        with sqlite3.connect(self.uri.removeprefix("sqlite:///")) as base:
            return int(base.execute("SELECT count(*) FROM canary_ledger").fetchone()[0])


@pytest.fixture
def ledger(empty_ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    file = tmp_path / "own" / "mlflow.db"
    file.parent.mkdir()
    file.write_bytes(empty_ledger.read_bytes())
    return Ledger(f"sqlite:///{file}", tmp_path / "keys")


def test_a_rotation_ends_the_old_key(ledger: Ledger) -> None:
    old = ledger.mine()
    ledger.row(old)
    done = ledger.told("keys", "rotate")
    assert "recorded in row 2 of" in done.output
    new = ledger.mine()
    assert new.key_id != old.key_id
    ledger.row(new)
    assert ledger.findings() == []
    stolen = ledger.row(old)
    assert ledger.findings() == [
        f"row {stolen}: it is signed with key {old.key_id!r}, which ended with row 2 (rotated, row 2)"
    ]
    assert "ended with row 2" in ledger.told("keys", "list").output


def test_an_export_is_judged_by_the_same_rows(ledger: Ledger, tmp_path: Path) -> None:
    old = ledger.mine()
    ledger.row(old)
    ledger.told("keys", "rotate")
    ledger.row(old)
    file = tmp_path / "ledger.jsonl"
    file.write_text(ledger.told("audit", "export").output)
    done = ledger.canary("audit", "verify", str(file))
    assert (done.exit_code, "row 3: it is signed with key" in done.output) == (1, True)


def test_whoever_stole_the_old_key_neither_ends_nor_outlives_the_new_one(ledger: Ledger, tmp_path: Path) -> None:
    old = ledger.mine()
    ledger.row(old)
    evil = load_signer(tmp_path / "evil")
    passed = {"from": old.key_id, "to": evil.key_id, "public": evil.public}
    passed["signature"] = old.sign(keys.handover_text(old.key_id, evil.key_id))
    to_evil = ledger.about(evil, ROTATED, old.key_id, handovers=[passed])
    by_evil = ledger.row(evil)
    again = ledger.row(old)  # the rightful holder has noticed nothing yet, and goes on
    ledger.told("keys", "rotate")
    new = ledger.mine()
    against = ledger.about(old, REVOKED, new.key_id, from_row=1)
    itself = ledger.about(new, REVOKED, new.key_id, from_row=1)
    last = ledger.row(new)
    found = ledger.findings()
    named = {int(line.split()[1].rstrip(":")) for line in found}
    assert named == {to_evil, by_evil, against, itself}
    assert not {again, last} & named
    assert all("not among the trusted" in line for line in found[:2])


def test_a_revocation_reaches_back_and_undoes_what_the_thief_had_said(ledger: Ledger, tmp_path: Path) -> None:
    root = ledger.mine()
    ledger.row(root)
    colleague = ledger.trusts(tmp_path / "colleague")
    file = ledger.folder / "public" / f"{colleague.key_id}.pem"
    assert "it may sign: recorded in row 2" in ledger.told("keys", "trust", str(file), "--to-sign").output
    ledger.row(colleague)
    theft = ledger.row(root)
    ledger.about(root, REVOKED, colleague.key_id, from_row=1)
    good = ledger.row(colleague)
    assert len(ledger.findings()) == 2  # the colleague's two rows: the thief holds the key that let the colleague in
    ledger.told("keys", "rotate")
    done = ledger.told("keys", "revoke", root.key_id, "--reason", "stolen on Monday", "--from-row", str(theft))
    assert done.exit_code == 0, done.output
    named = [line.split(":")[0] for line in ledger.findings()]
    assert named == [f"row {theft}", f"row {theft + 1}"]
    assert f"row {good}" not in named
    late = ledger.told("keys", "revoke", root.key_id, "--reason", "x", "--from-row", "99")
    assert (late.exit_code, "the ledger has 8 rows; expected one of them" in late.output) == (2, True)


def test_a_key_ends_those_below_it_and_no_other(ledger: Ledger, tmp_path: Path) -> None:
    root = ledger.mine()
    ledger.row(root)
    other = ledger.trusts(tmp_path / "other")
    file = ledger.folder / "public" / f"{other.key_id}.pem"
    ledger.told("keys", "trust", str(file), "--to-sign")
    below = Ledger(ledger.uri, tmp_path / "other")
    below.trusts(ledger.folder)
    rows = ledger.rows()
    refused = below.told("keys", "revoke", root.key_id, "--reason", "mine now")
    assert (refused.exit_code, "may not end key" in refused.output) == (4, True)
    taken = below.told("keys", "trust", str(ledger.folder / "public" / f"{root.key_id}.pem"), "--to-sign")
    assert (taken.exit_code, "the ledger knows it already" in taken.output) == (4, True)
    assert ledger.rows() == rows
    forced = ledger.about(other, TRUSTED, root.key_id, public=root.public)
    ended = ledger.about(other, REVOKED, root.key_id, from_row=1)
    assert [line.split(":")[0] for line in ledger.findings()] == [f"row {forced}", f"row {ended}"]
    done = ledger.told("keys", "revoke", other.key_id, "--reason", "left the team")
    assert done.exit_code == 0, done.output
    late = ledger.row(other)
    assert f"row {late}: it is signed with key {other.key_id!r}, which ended" in "\n".join(ledger.findings())


def test_once_a_row_is_about_keys_each_key_needs_one(ledger: Ledger, tmp_path: Path) -> None:
    ledger.row(ledger.mine())
    early, late = ledger.trusts(tmp_path / "early"), ledger.trusts(tmp_path / "late")
    ledger.row(early)  # as in ledgers that were written before rows told of keys
    assert ledger.findings() == []
    ledger.told("keys", "rotate")
    ledger.row(early)
    assert ledger.findings() == []
    row = ledger.row(late)
    assert ledger.findings() == [
        f"row {row}: it is signed with key {late.key_id!r}, which no row of the ledger has trusted until then"
    ]


def test_a_key_that_is_lost_is_followed_by_one_that_says_so(ledger: Ledger) -> None:
    ledger.row(ledger.mine())
    (ledger.folder / keys.PRIVATE).unlink()
    assert "recorded in row 2 of" in ledger.told("keys", "rotate").output
    new = ledger.mine()
    ledger.row(new)
    assert ledger.findings() == []
    assert f"row 2: key {new.key_id} admitted itself" in ledger.told("audit", "verify").output


def test_rotation_says_what_it_could_not_record(ledger: Ledger, tmp_path: Path) -> None:
    nowhere = ledger.canary("keys", "rotate")
    assert "recorded nowhere: no ledger is at hand" in nowhere.output
    ledger.row(ledger.mine())
    gone = f"sqlite:///{tmp_path}/gone.db"
    words = ("--tracking-uri", ledger.uri, "--tracking-uri", gone, "--tracking-uri", "http://127.0.0.1:1")
    done = ledger.canary("keys", "rotate", *words)
    assert done.exit_code == 0
    assert [line.split(" of sqlite")[0].split(" in ")[0] for line in done.output.splitlines()[1:]] == [
        "  recorded", "  not recorded", "  not recorded",
    ]  # fmt: skip
    assert "on the server's own machine" in done.output
    assert ledger.findings() == []


@pytest.fixture
def two(ledger: Ledger, shared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Ledger, Any]:
    """A store with a version to be champion, made with the account's own key."""
    from dataclasses import replace

    monkeypatch.setenv("CANARY_KEYS", str(ledger.folder))
    client = prepare_store(ledger.uri)
    experiment = client.create_experiment("two", artifact_location=str(tmp_path / "mlruns"))
    return ledger, replace(shared, client=client, uri=ledger.uri, experiment=experiment, model="two", seed=0)


def test_a_key_that_the_ledger_does_not_know_is_refused_before_it_writes(two: tuple[Ledger, Any]) -> None:
    ledger, recorded = two
    recorded.version(runs=1)  # sealed with the account's key
    stranger = Ledger(ledger.uri, ledger.folder.parent / "stranger")
    before = ledger.rows()
    refused = stranger.told("override", "two", "1", "--reason", "mine", "--without-weights")
    assert (refused.exit_code, ledger.rows()) == (4, before)
    assert "it has signed no row of the ledger that this account can check (it does not trust" in refused.stderr
    assert "to let this key sign, run as one that does: canary keys trust" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert "champion" not in recorded.client.get_registered_model("two").aliases
    file = stranger.folder / "public" / f"{stranger.mine().key_id}.pem"
    assert ledger.told("keys", "trust", str(file), "--to-sign").exit_code == 0
    stranger.trusts(ledger.folder)
    done = stranger.told("override", "two", "1", "--reason", "mine", "--without-weights")
    assert done.exit_code == 0, done.output
    assert ledger.findings() == []


def test_a_rotation_that_a_ledger_has_missed_comes_before_the_next_row(two: tuple[Ledger, Any]) -> None:
    ledger, recorded = two
    recorded.version(runs=1)
    old = ledger.mine()
    for _ in range(2):  # twice, and the key between has signed nothing here
        assert "recorded nowhere" in ledger.canary("keys", "rotate").output
    assert ledger.told("override", "two", "1", "--reason", "x", "--without-weights").exit_code == 0
    rows = [json.loads(line) for line in ledger.told("audit", "export").output.splitlines()]
    assert [(row["kind"], row["word"]) for row in rows[-2:]] == [("key", "rotated"), ("override", "override")]
    assert ledger.findings() == []
    stolen = ledger.row(old)
    assert ledger.findings()[0].startswith(f"row {stolen}: ")


@pytest.mark.full
def test_of_two_servers_with_two_keys_only_the_known_one_signs(two: tuple[Ledger, Any], tmp_path: Path) -> None:
    ledger, recorded = two
    for _ in range(2):
        recorded.version()
    stranger = Ledger(ledger.uri, tmp_path / "stranger")
    stranger.mine()
    stranger.trusts(ledger.folder)  # else it takes the seals for a forger's, and says so first
    homes = {name: tmp_path / name for name in ("one", "other")}
    for home in homes.values():
        home.mkdir()

    def server(name: str, keys: Path) -> Server:
        registry = f"canary+{ledger.uri}"
        return Server(ledger.uri, homes[name], registry=registry, app="canary", environment={"CANARY_KEYS": str(keys)})

    with server("one", ledger.folder) as one, server("other", stranger.folder) as other:
        before = ledger.rows()
        with pytest.raises(Refused, match="it has signed no row of the ledger") as refused:
            request(f"{other.uri}/api/2.0/canary/verdicts", "POST", {"model": "two", "version": "1"})
        assert (refused.value.status, ledger.rows()) == (403, before)
        request(f"{one.uri}/api/2.0/canary/verdicts", "POST", {"model": "two", "version": "1"})
        file = stranger.folder / "public" / f"{stranger.mine().key_id}.pem"
        assert ledger.told("keys", "trust", str(file), "--to-sign").exit_code == 0
        answer = request(f"{other.uri}/api/2.0/canary/verdicts", "POST", {"model": "two", "version": "2"})
        assert answer["decision"]["decision"] == "PASS"
    assert ledger.findings() == []
