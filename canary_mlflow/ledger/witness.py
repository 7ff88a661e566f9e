"""A witness: the head of the ledger is published after each row, to a file or an address that others keep.

A chain cannot show that its end was cut off, that an older copy was restored, or that it was rewritten with a stolen
key. Whoever keeps heads elsewhere can. CANARY_WITNESS names the place; without it nothing is published. One line per
head:

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
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from canary_mlflow.errors import StoreError, UsageError, one_line
from canary_mlflow.ledger import table
from canary_mlflow.ledger.chain import Damage, parse_head
from canary_mlflow.ledger.keys import key_folder
from canary_mlflow.ledger.rows import Row
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
