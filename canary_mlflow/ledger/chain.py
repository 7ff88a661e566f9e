"""The rows of the ledger, and the checks that they are what was written, and when. Needs only rows and public keys.

A row is a record, a pointer to the row before it, a digest over both, and a signature over the digest. Time in rows
never goes back: a row has its `time`, never earlier than that of the previous row, whatever the writer's clock says. If
the clock was behind, the row has the previous row's time, and the clock's own as `clock`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any

from pydantic_core import from_json

from canary_mlflow.errors import CanaryError, UsageError
from canary_mlflow.files.documents import parse_json
from canary_mlflow.ledger.keys import STRANGER, PublicKeys, Signer


def canonical(value: Mapping[str, Any]) -> str:
    """JSON with sorted keys, no spaces, ASCII only. Raises ValueError for NaN and infinity, which JSON does not
    have."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: Mapping[str, Any]) -> str:
    """sha256 of the canonical spelling, in hex."""
    return text_digest(canonical(value))


def text_digest(text: str) -> str:
    """sha256 of a text as UTF-8, in hex; a lone surrogate, which no canonical text holds, still gets a digest."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


FIRST = "0" * 64  # what the first row has as the digest of the previous row
COLUMNS = ("seq", "kind", "workspace", "model", "version", "version_created", "alias", "word", "grants", "moves")
COLUMNS_FIRST = ""  # the key under which a body repeats the columns; it sorts first, so they are checked unparsed
PURPOSE = "canary-mlflow ledger row "  # so that a signature made for another purpose is not one over a row


class Kind(StrEnum):
    """What a row records."""

    VERDICT = "verdict"  # the gate has judged
    BOOTSTRAP = "bootstrap"  # first champion of a model, by policy
    BLESS = "bless"  # made champion by hand, with a reason
    OVERRIDE = "override"  # the same over a BLOCK, by somebody who is allowed to
    ROLLBACK = "rollback"  # back to the former champion
    SESSION = "session"  # runs begin, have ended, or were added; about no version, its alias is the session's id
    SEAL = "seal"  # what a new version consists of; about no alias
    ADOPT = "adopt"  # held an alias before the ledger knew of it, and still does
    UNINSTALL = "uninstall"  # the triggers were removed; about no version
    FACTS = "facts"  # facts of a version that differ from the champion's are accepted; about no alias
    PRUNE = "prune"  # the files of a version are given up to free their space; about no alias
    PROMOTION = "promotion"  # an alias moved later, on the strength of a verdict recorded before
    EVALS = "evals"  # an evaluation of a version, or that it was withdrawn; about no alias
    POLICY = "policy"  # the policy for the models that match a pattern, from here on; about no model
    REQUEST = "request"  # somebody asks for an override that a second person must carry out; about no alias
    KEY = "key"  # which keys may sign from here on; about no model


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a row says, before it has a place in the chain.

    `version_created`: the version's creation time, milliseconds since 1970; a new version under an old number differs.
    `word`: what the version's tag `canary.verdict` shows. `grants`: the version may hold `alias`. `moves`: from this
    row on, the alias names the version. `facts`: everything else, as plain JSON values. A row of a session
    has version 0 and, as `alias`, the session's id.
    """

    kind: Kind
    word: str
    facts: Mapping[str, Any]
    workspace: str = "default"
    model: str = ""
    version: int = 0
    version_created: int = 0
    alias: str = ""
    grants: bool = False
    moves: bool = False


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
        """The body as values; empty if it is not a JSON object, which `faults` reports."""
        return facts_of(self) or {}

    @cached_property
    def moments(self) -> tuple[Any, Any] | None:
        """The body's `time` and `clock`, with None for a missing one; None for an unreadable body. Cached, as an audit
        asks twice, and reading a body is half of a row's cost."""
        facts = self.facts
        return (facts.get("time"), facts.get("clock")) if facts else None

    @property
    def head(self) -> str:
        """`SEQ:DIGEST`, to be kept elsewhere: a chain that ends before it has lost rows."""
        return f"{self.seq}:{self.digest}"


def signed(record: Record, after: Row | None, signer: Signer) -> Row:
    """The record as a signed row that follows `after` (None: as the first row)."""
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
    body = canonical({**record.facts, COLUMNS_FIRST: {**columns, **place, "key": signer.key_id}})
    found = text_digest(body)
    return Row(
        seq=place["seq"],  # type: ignore[arg-type]  # `place` holds an int and a str
        **columns,
        body=body,
        digest=found,
        key_id=signer.key_id,
        signature=signer.sign(PURPOSE + found),
    )


def facts_of(row: Row) -> dict[str, Any] | None:
    """The body as values; None if it is not a JSON object. Uses pydantic's parser, which comes with MLflow and takes
    half the time of Python's own."""
    try:
        try:
            found = from_json(row.body)
        except ValueError:  # pydantic refuses a lone surrogate, which a name may contain
            found = json.loads(row.body)
    except (ValueError, RecursionError):
        return None
    return flat(found) if isinstance(found, dict) else None


def flat(body: dict[str, Any]) -> dict[str, Any]:
    """Everything that a body says, in one mapping. Old bodies, from before the columns came first, are already flat."""
    columns = body.pop(COLUMNS_FIRST, None)
    return {**body, **columns} if isinstance(columns, dict) else body


def faults(row: Row, previous: str | None, keys: PublicKeys) -> Iterator[str]:
    """What is wrong with one row, in words. `previous`: the digest of the previous row (None: not known)."""
    whole = text_digest(row.body) == row.digest
    if not whole:
        yield "its text does not match the digest stored with it"
    signature = PURPOSE + row.digest, row.signature
    if problem := keys.refusal(row.key_id, *signature) or keys.out_of_time(row.key_id, row.seq):
        yield problem
    columns = {name: getattr(row, name) for name in COLUMNS}
    if (
        whole
        and previous is not None
        and row.body.startswith(beginning({**columns, "previous": previous, "key": row.key_id}))
    ):
        return  # true for most rows, whose text need not be parsed
    facts = facts_of(row)
    if facts is None:
        yield "its text is not a JSON object"
        return
    different = [name for name in COLUMNS if facts.get(name) != columns[name]]
    if facts.get("key") != row.key_id:
        different.append("key_id")
    if different:
        yield f"its columns differ from its signed text: {', '.join(different)}"
    if previous is not None and facts.get("previous") != previous:
        yield "it does not follow the row before it"


@dataclass(frozen=True, kw_only=True)
class ReadRow:
    """A row with what is wrong with it, by the keys that this machine trusts."""

    row: Row
    problems: Sequence[str]

    @property
    def stranger(self) -> bool:
        """Whether the only problem is that this machine does not know the key."""
        return len(self.problems) == 1 and STRANGER in self.problems[0]


def checked(rows: Iterable[tuple[Row, str | None]], keys: Callable[[], PublicKeys]) -> list[ReadRow]:
    """Each row checked by the keys and the digest of the row before it; None where that is not known here."""
    try:
        known = keys()
    except (CanaryError, OSError) as error:
        said = [f"the trusted keys cannot be read: {error}"]
        return [ReadRow(row=row, problems=said) for row, _ in rows]
    return [ReadRow(row=row, problems=list(faults(row, before, known))) for row, before in rows]


def holds(row: Row, keys: PublicKeys) -> bool:
    """Whether a trusted key signed the row, whatever comes before it."""
    return next(faults(row, None, keys), None) is None


def refuse_broken(row: Row, keys: PublicKeys, what: str) -> None:
    """Raise UsageError for a row that no trusted key signed, or that was changed. `what`: it is, with a comma."""
    for fault in faults(row, None, keys):
        raise UsageError(
            f"{what} row {row.seq} of the ledger: {fault}; expected a row that holds; see: canary audit verify"
        )


def beginning(columns: Mapping[str, Any]) -> str:
    """The beginning of a row's text: the empty name sorts before all others."""
    return f'{{"{COLUMNS_FIRST}":{canonical(columns)}'


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One thing that is wrong; `seq` is None for the ledger as a whole."""

    seq: int | None
    what: str

    def __str__(self) -> str:
        return self.what if self.seq is None else f"row {self.seq}: {self.what}"


def damages(rows: Iterable[Row], keys: PublicKeys, head: str | None = None) -> Iterator[Damage]:
    """Everything that is wrong with a whole ledger, in order. `head`: a `SEQ:DIGEST` saved earlier, or None."""
    previous, expected = FIRST, 1
    saved, saved_digest = parse_head(head) if head else (None, "")
    for row in rows:
        if row.seq != expected:
            yield Damage(seq=row.seq, what=f"row {expected} is missing before it")
        follows = previous if row.seq == expected else None
        yield from (Damage(seq=row.seq, what=what) for what in faults(row, follows, keys))
        if row.seq == saved and row.digest != saved_digest:
            yield Damage(seq=row.seq, what="it is not the row that the saved head names")
        previous, expected = row.digest, row.seq + 1
    if saved is not None and saved >= expected:
        yield Damage(seq=None, what=f"the ledger ends at row {expected - 1}; the saved head names row {saved}")


def parse_head(text: str) -> tuple[int, str]:
    """`SEQ:DIGEST` as `canary audit verify` prints it. Raises UsageError."""
    seq, _, found = text.strip().partition(":")
    if not seq.isdecimal() or len(found) != 64:
        raise UsageError(f"--head {text[:80]!r}: expected SEQ:DIGEST as `canary audit verify` prints it")
    return int(seq), found


def to_line(row: Row) -> str:
    """One line of an export."""
    return json.dumps(asdict(row), ensure_ascii=True)


def from_lines(lines: Iterable[str], source: str) -> Iterator[Row]:
    """The rows of an export. Raises UsageError for a line that is not a row."""
    kinds = {field.name: int if field.type == "int" else str for field in fields(Row)}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found: Any = parse_json(line)
        except ValueError:
            found = None
        if not isinstance(found, dict) or {name: type(found.get(name)) for name in kinds} != kinds:
            raise UsageError(f"{source}, line {number}: no row of a ledger; expected what `canary audit export` writes")
        yield Row(**{name: found[name] for name in kinds})


TOLERANCE = timedelta(minutes=1)  # how far clocks of hosts that write to one ledger may differ without a report
NEVER = datetime.min.replace(tzinfo=UTC)


def stamp(after: Row | None) -> dict[str, str]:
    """The facts on time of the row that follows `after`: ISO 8601, UTC, milliseconds."""
    now = datetime.fromtimestamp(time.time(), UTC)
    before = moment(time_of(after)) if after is not None else None
    if before is None or now >= before:
        return {"time": spelled(now)}
    return {"time": spelled(before), "clock": spelled(now)}


def time_of(row: Row) -> Any:
    """A row's `time` as stored; None if it has none."""
    return row.moments[0] if row.moments else None


def moment(text: Any) -> datetime | None:
    """A row's `time` or `clock` as a moment; None if it cannot be read."""
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def settled(rows: Iterable[Row]) -> Iterator[tuple[Row, datetime]]:
    """Each row with the time from which it counts: its own, or an earlier row's if that is later."""
    latest = NEVER
    for row in rows:
        latest = max(latest, moment(time_of(row)) or latest)
        yield row, latest


def jumps(rows: Iterable[Row]) -> tuple[list[Damage], list[str]]:
    """Where time went back: rows that are earlier than a previous one without saying so, as no row of ours is; and, in
    words, where a writer's clock was behind that of the previous row's writer."""
    damages: list[Damage] = []
    notes: list[str] = []
    latest, by = NEVER, 0
    before: datetime | None = None
    for row in rows:
        own, clock = (moment(text) for text in row.moments or (None, None))
        if own is None:
            continue  # the check of the chain reports it
        if latest - own > TOLERANCE:
            damages.append(Damage(seq=row.seq, what=f"its time is {shortly(latest - own)} before that of row {by}"))
        if own >= latest:
            latest, by = own, row.seq
        if clock and before and before - clock > TOLERANCE:
            notes.append(
                f"row {row.seq}: the clock of its writer was {shortly(before - clock)} behind that of the row "
                "before; it has the time of that row"
            )
        before = clock or own
    return damages, notes


def shortly(gap: timedelta) -> str:
    """A span of time without fractions of a second."""
    return str(timedelta(seconds=int(gap.total_seconds())))


def spelled(when: datetime) -> str:
    """A moment as it is written in a row."""
    return when.isoformat(timespec="milliseconds")
