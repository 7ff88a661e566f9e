"""One row of the ledger: a record, the row before it, a digest over both, and a signature over the digest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from canary_mlflow.ledger.canonical import canonical, text_digest
from canary_mlflow.ledger.keys import PublicKeys, Signer

FIRST = "0" * 64  # what the first row names as the digest of the row before it
COLUMNS = ("seq", "kind", "workspace", "model", "version", "version_created", "alias", "word", "grants", "moves")
PURPOSE = "canary-mlflow ledger row "  # a signature over a digest for another purpose is none over a row


class Kind(StrEnum):
    """What a row records."""

    VERDICT = "verdict"  # the gate has judged
    BOOTSTRAP = "bootstrap"  # first champion of a model, by policy
    BLESS = "bless"  # made champion by hand, with a reason
    OVERRIDE = "override"  # the same over a BLOCK, by somebody who is allowed to
    ROLLBACK = "rollback"  # back to the former champion
    SEAL = "seal"  # what a new version consists of; about no alias
    ADOPT = "adopt"  # held an alias before the ledger knew of it, and still does
    UNINSTALL = "uninstall"  # the triggers were taken away; about no version
    FACTS = "facts"  # facts of a version that differ from the champion's are accepted; about no alias
    PROMOTION = "promotion"  # an alias moved later, on the strength of a verdict recorded before
    POLICY = "policy"  # by what the models of a pattern are judged from here on; about no model
    REQUEST = "request"  # somebody asks for an override that a second person has to carry out; about no alias


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a row says, before it has a place in the chain.

    `version_created`: milliseconds since 1970, the version's own; a version made anew under an old number has another.
    `word`: what the version's tag `canary.verdict` shows. `grants`: the version may hold `alias`. `moves`: from this
    row on, the alias names the version. `facts`: everything else, as plain JSON values.
    """

    kind: Kind
    model: str
    version: int
    version_created: int
    alias: str
    word: str
    grants: bool
    moves: bool
    facts: Mapping[str, Any]
    workspace: str = "default"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row as it is stored. `body` is the canonical JSON that was signed; the columns before it repeat parts of it."""

    seq: int
    kind: str
    workspace: str
    model: str
    version: int
    version_created: int
    alias: str
    word: str
    grants: int
    moves: int
    body: str
    digest: str
    key_id: str
    signature: str

    @property
    def facts(self) -> dict[str, Any]:
        """The body as values; empty where it is no JSON object, which `faults` names."""
        return parsed(self.body) or {}

    @property
    def head(self) -> str:
        """`SEQ:DIGEST`, to be kept elsewhere: a chain that ends before it has lost rows."""
        return f"{self.seq}:{self.digest}"


def parsed(body: str) -> dict[str, Any] | None:
    """The values of a body; None where anybody wrote something else there than a JSON object."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def signed(record: Record, after: Row | None, signer: Signer) -> Row:
    """The record as the row that follows `after` (None: as the first)."""
    place = {"seq": 1 if after is None else after.seq + 1, "previous": FIRST if after is None else after.digest}
    columns: dict[str, Any] = {
        "kind": str(record.kind),
        "workspace": record.workspace,
        "model": record.model,
        "version": record.version,
        "version_created": record.version_created,
        "alias": record.alias,
        "word": record.word,
        "grants": int(record.grants),
        "moves": int(record.moves),
    }
    body = canonical({**record.facts, **columns, **place, "key": signer.key_id})
    found = text_digest(body)
    return Row(
        seq=place["seq"],  # type: ignore[arg-type]  # `place` holds an int and a str
        **columns,
        body=body,
        digest=found,
        key_id=signer.key_id,
        signature=signer.sign(PURPOSE + found),
    )


def faults(row: Row, previous: str | None, keys: PublicKeys) -> Iterator[str]:
    """What is wrong with one row, in words; `previous` is the digest of the row before it (None: not known)."""
    if text_digest(row.body) != row.digest:
        yield "its text does not have the digest that stands beside it"
    if problem := keys.refusal(row.key_id, PURPOSE + row.digest, row.signature):
        yield problem
    facts = parsed(row.body)
    if facts is None:
        yield "its text is no JSON object"
        return
    different = [name for name in COLUMNS if facts.get(name) != getattr(row, name)]
    if facts.get("key") != row.key_id:
        different.append("key_id")
    if different:
        yield f"its columns differ from its signed text: {', '.join(different)}"
    if previous is not None and facts.get("previous") != previous:
        yield "it does not follow the row before it"
