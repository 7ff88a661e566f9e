"""The ledger without MLflow: rows, chain, keys. Whatever is changed is named."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from workplace import ROOT

from canary_mlflow.errors import StoreError, UsageError
from canary_mlflow.ledger import keys, table
from canary_mlflow.ledger.chain import Kind, Record, Row, canonical, damages, from_lines, signed, to_line

DATA = ROOT / "tests" / "data"


def record(version: int, **changed: Any) -> Record:
    values: dict[str, Any] = {
        "kind": Kind.VERDICT,
        "model": "mödel/x",
        "version": version,
        "version_created": 1_700_000_000_000 + version,
        "alias": "champion",
        "word": "PASS",
        "grants": True,
        "moves": True,
        "facts": {"actor": "ann", "reason": "no worse", "time": "2026-11-21T10:00:00.000+00:00", "p": 0.1 + 0.2},
    }
    return Record(**{**values, **changed})


@pytest.fixture
def signer(tmp_path: Path) -> keys.Signer:
    return keys.load_signer(tmp_path)


@pytest.fixture
def public(tmp_path: Path, signer: keys.Signer) -> keys.PublicKeys:
    return keys.load_public(keys.public_files(tmp_path))


@pytest.fixture
def rows(signer: keys.Signer) -> list[Row]:
    found: list[Row] = []
    for version in range(1, 5):
        found.append(signed(record(version), found[-1] if found else None, signer))
    return found


def named(rows: list[Row], public: keys.PublicKeys, head: str | None = None) -> list[str]:
    return [str(one) for one in damages(rows, public, head)]


def test_a_ledger_as_written_holds(rows: list[Row], public: keys.PublicKeys) -> None:
    assert named(rows, public, head=rows[-1].head) == []
    assert named(rows, public, head=rows[1].head) == []  # an older head is in the chain


def bytewise(row: Row) -> Iterator[tuple[str, Row]]:
    """The row with each character of each text changed, and each number raised."""
    for field in fields(Row):
        value = getattr(row, field.name)
        if isinstance(value, int):
            yield field.name, replace(row, **{field.name: value + 1})
            continue
        for place in range(len(value)):
            other = "x" if value[place] != "x" else "y"
            yield f"{field.name}[{place}]", replace(row, **{field.name: value[:place] + other + value[place + 1 :]})
        yield f"{field.name}+", replace(row, **{field.name: value + " "})
        yield f"{field.name}-", replace(row, **{field.name: value[:-1]})


def test_every_changed_character_of_a_row_is_named(rows: list[Row], public: keys.PublicKeys) -> None:
    unseen = [
        what
        for what, changed in bytewise(rows[1])
        if not any(text.startswith(("row 2:", "row 3:")) for text in named([rows[0], changed, *rows[2:]], public))
    ]
    assert unseen == []


def test_capitals_in_a_signature_are_named(rows: list[Row], public: keys.PublicKeys) -> None:
    loud = replace(rows[1], signature=rows[1].signature.upper())
    assert named([rows[0], loud, *rows[2:]], public) == ["row 2: its signature is not spelled as it was written"]


def test_swapped_dropped_and_doubled_rows_are_named(rows: list[Row], public: keys.PublicKeys) -> None:
    first, second, third, fourth = rows
    swapped = [first, replace(third, seq=2), replace(second, seq=3), fourth]
    assert any("row 2: its columns differ" in text for text in named(swapped, public))
    assert named([first, third, fourth], public)[0] == "row 3: row 2 is missing before it"
    assert any(text.startswith("row 2:") for text in named([first, second, second, third, fourth], public))


def test_a_removed_last_row_is_named_with_a_saved_head(rows: list[Row], public: keys.PublicKeys) -> None:
    head = rows[-1].head
    assert named(rows[:-1], public) == []  # nothing in the rows themselves can tell
    assert named(rows[:-1], public, head) == ["the ledger ends at row 3; the saved head names row 4"]
    with pytest.raises(UsageError, match="expected SEQ:DIGEST"):
        named(rows, public, "12")


def test_a_rewritten_end_is_named_with_a_saved_head(
    rows: list[Row], public: keys.PublicKeys, signer: keys.Signer
) -> None:
    rewritten = [*rows[:3], signed(record(9), rows[2], signer)]
    assert named(rewritten, public) == []
    assert named(rewritten, public, rows[-1].head) == ["row 4: it is not the row that the saved head names"]


def test_another_key_signs_nothing_here(rows: list[Row], public: keys.PublicKeys, tmp_path: Path) -> None:
    forger = keys.load_signer(tmp_path / "forger")
    forged = signed(record(5), rows[-1], forger)
    assert "not among the trusted ones" in named([*rows, forged], public)[0]
    posing = replace(forged, key_id=rows[0].key_id)
    assert "row 5: its signature is not that of its key" in named([*rows, posing], public)


def test_two_trusted_keys_and_a_rotation(rows: list[Row], tmp_path: Path) -> None:
    fresh = keys.rotate(tmp_path)
    colleague = keys.load_signer(tmp_path / "colleague")
    rows.append(signed(record(5), rows[-1], fresh))
    rows.append(signed(record(6), rows[-1], colleague))
    assert len(keys.public_files(tmp_path)) == 2
    assert [text.split(",")[0] for text in named(rows, keys.load_public(keys.public_files(tmp_path)))] == [
        f"row 6: it is signed with key {colleague.key_id!r}"
    ]
    keys.publish(colleague.key.public_key(), tmp_path)
    assert named(rows, keys.load_public(keys.public_files(tmp_path))) == []


def test_the_private_key_is_for_its_owner_only(tmp_path: Path, signer: keys.Signer) -> None:
    file = tmp_path / keys.PRIVATE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    with pytest.raises(StoreError, match="mode 644 lets others read it; expected 600"):
        keys.load_signer(tmp_path)


def test_a_lost_key_is_not_replaced_in_silence(tmp_path: Path, signer: keys.Signer) -> None:
    (tmp_path / keys.PRIVATE).unlink()
    with pytest.raises(StoreError, match="put it back, or begin with a new one: canary keys rotate"):
        keys.load_signer(tmp_path)
    assert keys.rotate(tmp_path).key_id != signer.key_id


@pytest.mark.parametrize("text", [b"", b"no key", b"rsa"])
def test_what_is_no_key_is_said_in_one_line(tmp_path: Path, text: bytes) -> None:
    if text == b"rsa":
        rsa = generate_private_key(public_exponent=65537, key_size=2048)
        text = rsa.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file = tmp_path / keys.PRIVATE
    file.write_bytes(text)
    file.chmod(0o600)
    with pytest.raises(StoreError, match="expected an ed25519 private key"):
        keys.load_signer(tmp_path)
    with pytest.raises(UsageError, match="no public key in PEM"):
        keys.load_public([file])


def test_processes_that_begin_at_once_share_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = {signer.key_id for signer in pool.map(keys.load_signer, [tmp_path] * 8)}
    assert len(found) == 1


def test_keys_are_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CANARY_KEYS")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert keys.key_folder() == tmp_path / "canary-mlflow" / "keys"
    monkeypatch.setenv("CANARY_KEYS", os.fspath(tmp_path / "here"))
    assert keys.key_folder() == tmp_path / "here"


def test_an_export_reads_back(rows: list[Row]) -> None:
    assert list(from_lines(map(to_line, rows), "it")) == rows
    for line in ("{", "[]", '{"seq": "1"}', to_line(rows[0]).replace('"seq": 1', '"seq": true')):
        with pytest.raises(UsageError, match="it, line 1: no row of a ledger"):
            list(from_lines([line], "it"))


def test_a_ledger_that_was_written_before_rows_told_of_keys_still_holds(tmp_path: Path) -> None:
    """Six rows by three keys: one that was rotated away, its successor, and a colleague's; each is still checked."""
    known = keys.load_public(sorted((DATA / "ledger-before-key-rows").glob("*.pem")))
    with (DATA / "ledger-before-key-rows.jsonl").open(encoding="utf-8") as lines:
        old = list(from_lines(lines, "it"))
    assert len({row.key_id for row in old}) == 3
    assert named(old, known, head=old[-1].head) == []
    assert old[0].facts["model"] == "mödel/x"
    for field in ("word", "alias", "key_id", "digest"):
        assert named([old[0], replace(old[1], **{field: "x"}), *old[2:]], known), field


def test_a_column_is_compared_with_the_row_s_own_text_and_not_with_what_that_quotes(
    rows: list[Row], public: keys.PublicKeys, signer: keys.Signer
) -> None:
    quoting = record(5, facts={"reason": 'it says "word":"BLOCK"', "verdict": {"word": "BLOCK", "": {"word": "BLOCK"}}})
    last = signed(quoting, rows[-1], signer)
    assert named([*rows, last], public) == []
    posing = replace(last, word="BLOCK")
    assert named([*rows, posing], public) == ["row 5: its columns differ from its signed text: word"]


def test_rows_survive_the_database(rows: list[Row]) -> None:
    engine = sa.create_engine("sqlite://")
    table.METADATA.create_all(engine)
    with engine.begin() as connection:
        for row in rows:
            table.append(connection, row)
        assert list(table.read(connection)) == rows
        assert table.last(connection) == rows[-1]
        assert table.latest_move(connection, "default", "mödel/x", "champion") == rows[3]


def test_what_bears_on_a_version_is_found_among_other_versions_models_aliases_and_workspaces(
    signer: keys.Signer,
) -> None:
    """One question, of which each answer is another row; the last of all is about none of it."""
    nothing = {"model": "", "version_created": 0, "alias": "", "grants": False, "moves": False}
    ours = {"model": "m", "version_created": 7}
    said = [
        record(0, **nothing, kind=Kind.KEY, workspace=""),
        record(0, **nothing, kind=Kind.POLICY),
        record(0, **nothing, kind=Kind.POLICY, workspace="elsewhere"),
        record(2, **ours, moves=True),
        record(2, **ours, moves=False),
        record(2, model="m", version_created=6, moves=False),  # an earlier version of the same number
        record(2, **ours, alias="anchor", moves=True),
        record(2, model="n", version_created=7, moves=True),
        record(2, **ours, workspace="elsewhere", moves=True),
        record(3, **ours, moves=False),
    ]
    rows: list[Row] = []
    for one in said:
        rows.append(signed(one, rows[-1] if rows else None, signer))
    engine = sa.create_engine("sqlite://")
    table.METADATA.create_all(engine)
    with engine.begin() as connection:
        for row in rows:
            table.append(connection, row)
        bearing = sa.select(table.LEDGER).where(table.bears_on(sa.literal(7))).order_by(table.LEDGER.c.seq)
        found, other = (
            table.bearing(connection.execute(bearing, about).all(), **about, version_created=7)
            for model in ("m", "never seen")
            for about in ({"workspace": "default", "model": model, "version": 2, "alias": "champion"},)
        )
    assert found == table.Bearing(last=rows[9], keys=[rows[0]], policies=[rows[1]], newest=rows[4], move=rows[3])
    assert other == table.Bearing(last=rows[9], keys=[rows[0]], policies=[rows[1]], newest=None, move=None)


def test_canonical_text_is_one_spelling() -> None:
    assert canonical({"b": 1, "a": {"ü": 0.1}}) == canonical({"a": {"ü": 0.1}, "b": 1}) == '{"a":{"\\u00fc":0.1},"b":1}'
    with pytest.raises(ValueError):
        canonical({"a": float("nan")})


def test_a_row_holds_all_that_it_was_given(rows: list[Row]) -> None:
    assert rows[0].facts["actor"] == "ann"
    assert {key: asdict(rows[0])[key] for key in ("kind", "model", "grants")} == {
        "kind": "verdict",
        "model": "mödel/x",
        "grants": 1,
    }
