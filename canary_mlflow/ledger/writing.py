"""Adding rows to the end of the chain, by a key that the ledger knows; a rotation that it has not heard of first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from canary_mlflow.errors import Refused
from canary_mlflow.ledger import table, witness
from canary_mlflow.ledger.chain import stamp
from canary_mlflow.ledger.keys import PublicKeys, Signer, handovers, key_folder, public_files, trusted
from canary_mlflow.ledger.rows import Record, Row, signed
from canary_mlflow.ledger.succession import ROTATED, entitled, key_record, with_rows


def add(connection: Any, record: Record, signer: Signer, after: Row | None) -> Row:
    """Sign and write one row that follows `after`; under `table.lock`, by a key that `let_sign` has let through."""
    row = signed(record, after, signer)
    table.append(connection, row)
    witness.after_commit(connection, row)
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
