"""Adds rows to the end of the chain, by a key that the ledger knows, and publishes the head after each to a witness.

A rotation that the ledger has not heard of comes first. A chain cannot show that its end was cut off, that an older
copy was restored, or that it was rewritten with a stolen key. Whoever keeps heads elsewhere can. CANARY_WITNESS names
the place, a file or an address that others keep; without it nothing is published. One line per head:

    {"head": "12:ab…", "ledger": "<digest of row 1>", "time": "…"}

Lines are appended to a file, or posted to an http(s) address, which must return them on GET.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from canary_mlflow.errors import Refused, StoreError, UsageError, one_line
from canary_mlflow.ledger import table
from canary_mlflow.ledger.chain import Damage, Record, Row, parse_head, signed, stamp
from canary_mlflow.ledger.keys import PublicKeys, Signer, handovers, key_folder, public_files, trusted
from canary_mlflow.ledger.succession import ROTATED, entitled, key_record, with_rows
from canary_mlflow.tracking.stores.places import without_password

PLACE = "CANARY_WITNESS"
SECONDS = (2.0, 3.0)  # to connect, and to answer; nobody waits for it but the end of a command
AT_END = 4.0  # seconds that a process which ends waits for its last head
MOST_WAITING = 10_000  # heads kept for a witness that is down; the newest vouches for all before it

log = logging.getLogger(__name__)
_senders: list[threading.Thread] = []
_lock = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Head:
    """A row that a witness has seen. `ledger`: the digest of row 1; empty in heads that somebody kept by hand."""

    seq: int
    digest: str
    ledger: str = ""


def after_commit(session: Any, row: Row) -> None:
    """Publish the row's head once the session's transaction is there to stay; where CANARY_WITNESS names nobody, do
    nothing."""
    import sqlalchemy as sa

    if place := os.environ.get(PLACE, "").strip():
        first = row if row.seq == 1 else table.row_at(session, 1)
        moment = datetime.now(UTC).isoformat(timespec="seconds")
        line = json.dumps({"head": row.head, "ledger": first.digest if first else "", "time": moment})
        sa.event.listen(session, "after_commit", lambda _session: publish(place, row, line), once=True)


def publish(place: str, row: Row, line: str) -> None:
    """Keep the line, and send it with all that still wait while nobody waits for that. Never raises: what is recorded
    is recorded."""
    try:
        folder = waiting(place)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".", delete=False) as made:
            made.write(f"{line}\n")
        os.replace(made.name, folder / f"{row.seq:012d}-{row.digest[:16]}")
    except OSError as error:
        log.warning("canary: witness: a head cannot be kept for it: %s", one_line(error))
        return
    sender = threading.Thread(target=send, args=(place,), daemon=True, name="canary-witness")
    sender.start()
    with _lock:
        if not _senders:
            atexit.register(wait)
        _senders[:] = [*(one for one in _senders if one.is_alive()), sender]


def wait() -> None:
    """At the end of a process: what was recorded last is worth a few seconds, and no more."""
    until = time.monotonic() + AT_END
    for sender in _senders:
        sender.join(max(0.0, until - time.monotonic()))


def waiting(place: str) -> Path:
    """Where heads wait for their witness, a file for each: beside the keys, one folder for each place."""
    folder = key_folder() / "witness" / hashlib.sha256(place.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def send(place: str) -> None:
    """Everything that waits, in the order of the rows; it goes on waiting where nobody takes it."""
    try:
        folder = waiting(place)
        with FileLock(folder / ".lock", timeout=2 * AT_END):
            files = sorted(one for one in folder.iterdir() if not one.name.startswith("."))
            for old in files[:-MOST_WAITING]:
                old.unlink()
            if files := files[-MOST_WAITING:]:
                deliver(place, "".join(one.read_text(encoding="utf-8") for one in files))
            for sent in files:
                sent.unlink()
    except (OSError, Timeout, StoreError) as error:
        log.warning(
            "canary: witness %s: %s; what it has not seen goes with the next row",
            without_password(place), one_line(error),
        )  # fmt: skip


def deliver(place: str, text: str) -> None:
    """Append to a file in one write, or post. Raises OSError, StoreError."""
    if not is_address(place):
        number = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)
        try:
            os.write(number, text.encode())
        finally:
            os.close(number)
        return
    import requests

    try:
        answer = requests.post(
            place, data=text.encode(), headers={"Content-Type": "application/x-ndjson"}, timeout=SECONDS,
            allow_redirects=False,
        )  # fmt: skip
    except requests.RequestException as error:
        raise StoreError(one_line(error)) from error
    if not 200 <= answer.status_code < 300:
        raise StoreError(f"HTTP {answer.status_code}; expected 2xx")


def is_address(place: str) -> bool:
    """Whether the witness is asked over HTTP."""
    return place.startswith(("http://", "https://"))


def read_heads(place: str) -> list[Head]:
    """What the witness holds. Raises StoreError where it does not answer, UsageError where it holds no heads."""
    shown = without_password(place)
    found = list(heads_in(fetched(place), shown))
    if not found:
        raise UsageError(f"--witness {shown}: no head in it; expected one per line, such as SEQ:DIGEST")
    return found


def fetched(place: str) -> str:
    """The text of a file or an address. Raises StoreError."""
    shown = without_password(place)
    try:
        if not is_address(place):
            return Path(place).read_text(encoding="utf-8", errors="replace")
        import requests

        answer = requests.get(place, timeout=10 * SECONDS[1])
        answer.raise_for_status()
        return answer.text
    except (OSError, ValueError) as error:  # requests' own errors are OSErrors
        raise StoreError(f"--witness {shown}: {one_line(error)}; expected the heads that it was sent") from error


def heads_in(text: str, shown: str) -> Iterator[Head]:
    """A head from each line, or from a text that is one JSON object, as the server's own route answers."""
    for number, line in enumerate([text] if whole(text) else text.splitlines(), 1):
        if not line.strip():
            continue
        found = whole(line) or {"head": line.strip()}
        try:
            seq, digest = parse_head(str(found.get("head")))
        except UsageError as error:
            raise UsageError(f"--witness {shown}, line {number}: {line[:60]!r}; expected a head, SEQ:DIGEST") from error
        yield Head(seq=seq, digest=digest, ledger=str(found.get("ledger") or ""))


def whole(text: str) -> Mapping[str, Any] | None:
    """The JSON object that a text is, or None."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def against_witness(rows: Sequence[Row], heads: Sequence[Head]) -> Iterator[Damage]:
    """Where the ledger is not what its witness saw: the first row that is another, and an end that is gone."""
    first = rows[0].digest if rows else ""
    mine = [one for one in heads if one.ledger in ("", first)]
    if not mine:
        others = len({one.ledger for one in heads})
        yield Damage(seq=None, what=f"the witness has seen no row of this ledger, but of {others} with another row 1")
        return
    digests = {row.seq: row.digest for row in rows}
    last = rows[-1].seq if rows else 0
    if changed := [one for one in mine if one.seq <= last and digests.get(one.seq) != one.digest]:
        earliest = min(changed, key=lambda one: one.seq)
        more = f", and {len(changed) - 1} later heads differ" if len(changed) > 1 else ""
        yield Damage(seq=earliest.seq, what=f"it is not the row that the witness saw{more}")
    newest = max(mine, key=lambda one: one.seq)
    if newest.seq > last:
        yield Damage(seq=None, what=f"the ledger ends at row {last}; the witness saw row {newest.seq}")


def add(connection: Any, record: Record, signer: Signer, after: Row | None) -> Row:
    """Sign and write one row that follows `after`; under `table.lock`, by a key that `let_sign` has let through."""
    row = signed(record, after, signer)
    table.append(connection, row)
    after_commit(connection, row)
    return row


def let_sign(
    connection: Any, signer: Signer, actor: str, tail: tuple[Row | None, Sequence[Row]] | None = None
) -> Row | None:
    """The row that the next one follows (None: there is none yet); under `table.lock`, before anything is written.
    `tail`: what `table.tail` would say, where it was read under the lock already.

    Raises Refused for a key that the ledger does not know, or that has ended there. One that was rotated in while this
    ledger was out of reach takes over in it first.
    """
    last, rows = table.tail(connection) if tail is None else tail
    problem = objection(connection, signer, last, rows)
    if not problem:
        return last
    if not (passed := handover_from(connection, signer)):
        raise Refused(refusal(connection, signer, problem))
    reason = "rotated before this ledger was at hand"
    record = key_record(ROTATED, passed[0]["from"], actor, reason, stamp(last), handovers=passed)
    row = add(connection, record, signer, last)
    if problem := objection(connection, signer, row, [*rows, row]):
        raise Refused(refusal(connection, signer, problem))
    return row


def check(connection: Any, signer: Signer) -> None:
    """Raise Refused where `let_sign` would, before there is anything to write."""
    if why := refused(connection, signer):
        raise Refused(why)


def refused(connection: Any, signer: Signer) -> str:
    """Why `let_sign` would refuse the key; empty when it would not."""
    problem = objection(connection, signer, *table.tail(connection))
    return refusal(connection, signer, problem) if problem and not handover_from(connection, signer) else ""


def refusal(connection: Any, signer: Signer, problem: str) -> str:
    """What is wrong with a key, and what would fix it."""
    folder = key_folder()
    file = next((one for one in public_files(folder) if one.stem == signer.key_id), folder)
    unknown = sorted(table.first_of_keys(connection).keys() - trusted().keys.keys())
    whose = f" that this account can check (it does not trust {', '.join(unknown[:3])})" if unknown else ""
    return (
        f"key {signer.key_id} of {folder}: {problem}{whose}; expected a key that the ledger knows, so nothing was "
        f"written; to let this key sign, run as one that does: canary keys trust {file} --to-sign"
    )


def keys_in(connection: Any, keys: PublicKeys | None = None, rows: Sequence[Row] | None = None) -> PublicKeys:
    """The keys that this account trusts (or `keys`), with what the ledger's rows say of them. `rows`: those about keys,
    where they were read already."""
    known = trusted() if keys is None else keys
    about_keys = table.key_rows(connection) if rows is None else rows
    return with_rows(known, about_keys, partial(table.first_signed, connection))


def objection(connection: Any, signer: Signer, last: Row | None, rows: Sequence[Row]) -> str:
    """Why the ledger does not let this key sign; empty when it does. `rows`: those about keys."""
    if rows:
        return entitled(keys_in(connection, rows=rows), signer.key_id)
    if last is None or last.key_id == signer.key_id or table.first_signed(connection, signer.key_id) is not None:
        return ""
    return "it has signed no row of the ledger"


def handover_from(connection: Any, signer: Signer) -> list[dict[str, Any]]:
    """The handovers from the newest key of this line that the ledger knows; none where it knows none, or this one."""
    known = keys_in(connection)
    if signer.key_id in (known.admitted or {}) or table.first_signed(connection, signer.key_id) is not None:
        return []
    passed = handovers(key_folder(), signer.key_id)
    for at in range(len(passed) - 1, -1, -1):
        old = str(passed[at]["from"])
        if old in (known.admitted or {}) or table.first_signed(connection, old) is not None:
            return passed[at:]
    return []
