"""Ledger rows that a test writes itself, signed with the account's own key."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from canary_mlflow.ledger import chain, table
from canary_mlflow.ledger.chain import Kind, Record, signed
from canary_mlflow.ledger.keys import key_folder, load_signer


def nightlies(uri: str, model: str, count: int) -> None:
    """So many more verdicts on a model, a day apart, like its last one in the ledger; each tenth is a BLOCK whose
    numbers are a third worse."""
    engine = sa.create_engine(uri)
    with engine.begin() as connection:
        last = table.last(connection)
        known = [row for row in table.read(connection, model) if row.kind == Kind.VERDICT][-1]
        begun, signer = datetime.now(UTC) - timedelta(days=count), load_signer(key_folder())
        for number in range(1, count + 1):
            word = "BLOCK" if number % 10 == 0 else "PASS"
            facts = json.loads(known.body)
            facts.pop(chain.COLUMNS_FIRST)
            facts |= {"changed": f"trl {number}", "time": (begun + timedelta(days=number)).isoformat()}
            facts["verdict"] |= {"outcome": word, "reason": f"night {number}"}
            for check in facts["verdict"]["checks"]:
                if (check.get("evidence") or {}).get("candidate") is not None:
                    check["outcome"] = word
                    check["evidence"]["candidate"] *= 1.0 + (number % 10 == 0) / 3 + number % 7 / 500
            record = Record(
                kind=Kind.VERDICT, model=model, version=known.version + number, version_created=number,
                alias="champion", word=word, grants=word == "PASS", moves=word == "PASS", facts=facts,
            )  # fmt: skip
            last = signed(record, last, signer)
            table.append(connection, last)
    engine.dispose()


def note(uri: str, model: str) -> None:
    """A row about a name and no version of it, as what has only begun leaves."""
    engine = sa.create_engine(uri)
    with engine.begin() as connection:
        last = table.last(connection)
        record = Record(
            kind=Kind.SEAL, model=model, version=0, version_created=0, alias="", word="begun", grants=False,
            moves=False, facts=chain.stamp(last),
        )  # fmt: skip
        table.append(connection, signed(record, last, load_signer(key_folder())))
    engine.dispose()
