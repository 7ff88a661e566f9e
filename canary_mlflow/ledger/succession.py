"""Which keys may sign from which row to which: what a ledger's own rows about keys say, and whether they may say it.

Only a file in the verifier's folder makes a key trusted; no row does. Rows only restrict that: they end keys, and after
the first row about keys, every key that signs must have been let in by a row.

    trusted   a key that signs lets in another, which then stands below it
    rotated   a key hands over to a new one, which takes its place; both sign, and the old one ends
    revoked   a key ends another from a given row on: one below it, or an earlier one in its own line of rotations

So a thief with a stolen key cannot end a key above it or after it, and no key can end itself. Whatever a thief's key
says after the row from which it is revoked is void, including its revocations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from canary_mlflow.ledger.chain import PURPOSE, Kind, Record, Row, facts_of
from canary_mlflow.ledger.keys import End, PublicKeys, handover_text, key_id_of

TRUSTED, ROTATED, REVOKED = "trusted", "rotated", "revoked"
VOID = "it is without effect: "  # the beginning of the message on a row that its key was not entitled to write


def key_record(word: str, subject: str, actor: str, reason: str, times: Mapping[str, str], **facts: Any) -> Record:
    """A row about the key `subject`, before it has a place in a ledger. `times`: of clock.stamp."""
    said = {"subject": subject, "actor": actor, "reason": reason, **times, **facts}
    return Record(kind=Kind.KEY, word=word, facts=said, workspace="")


def with_rows(keys: PublicKeys, rows: Sequence[Row], first: Callable[[str], int | None]) -> PublicKeys:
    """The trusted keys with what a ledger's rows about keys say about them. `first`: key id → the first row it signed.

    A revocation reaches back, so the rows are read again without those of the key that it ends, until nothing changes.
    That terminates, because a key is only ended from above or from later in its line.
    """
    if not rows:
        return keys
    begun = {key_id: seq for key_id in keys.keys if (seq := first(key_id)) is not None}
    ends: Mapping[str, End] = {}
    for _ in range(len(rows) + 1):
        history = _KeyHistory(keys=keys, begun=begun, before=ends, start=rows[0].seq)
        for row in rows:
            history.take_in(row)
        if history.ends == ends:
            break
        ends = history.ends
    return replace(keys, ends=history.ends, admitted=history.admitted, void=history.void)


@dataclass(kw_only=True)
class _KeyHistory:
    """What the rows read so far say. `before`: the ends that the last reading found. `start`: the first row about keys.

    `line`: key → the key that its rotations began with. `over`: key → the one that let it in.
    """

    keys: PublicKeys
    begun: Mapping[str, int]
    before: Mapping[str, End]
    start: int
    ends: dict[str, End] = field(default_factory=dict)
    admitted: dict[str, int] = field(default_factory=dict)
    line: dict[str, list[str]] = field(default_factory=dict)
    over: dict[str, str] = field(default_factory=dict)
    void: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key_id, seq in self.begun.items():
            if seq < self.start or seq == 1:
                self.admitted[key_id], self.line[key_id] = seq, [key_id]

    def take_in(self, row: Row) -> None:
        """Read one row: it takes effect, or is noted as void. A row whose signer may not sign is ignored."""
        facts = facts_of(row)
        if facts is None or self.keys.refusal(row.key_id, PURPOSE + row.digest, row.signature):
            return
        end = self.before.get(row.key_id)
        if end is not None and row.seq >= end.row:
            return
        about = str(facts.get("subject"))
        if row.word == TRUSTED:
            why = self.let_in(row, about)
        elif row.word == ROTATED:
            why = self.hand_over(row, about, facts.get("handovers"))
        elif row.word == REVOKED:
            why = self.revoke(row, about, facts.get("from_row"))
        else:
            why = f"{row.word!r} is nothing that a row says of a key"
        if why:
            self.void[row.seq] = VOID + why

    def let_in(self, row: Row, about: str) -> str:
        """Let in a key below the signing one; a key that lets in itself begins a new line, vouched for by no other."""
        if about in self.admitted or self.begun.get(about, row.seq) < row.seq:
            return f"key {about!r} is in the ledger already"
        if about == row.key_id:
            self.admitted[about], self.line[about] = row.seq, [about]
            return ""
        if row.key_id not in self.admitted:
            return f"key {row.key_id!r} may not let others sign: no row has trusted it"
        if about not in self.keys.keys:
            return f"it lets key {about!r} sign, which is not among the trusted ones"
        self.admitted[about], self.line[about], self.over[about] = row.seq, [about], row.key_id
        return ""

    def hand_over(self, row: Row, about: str, handovers: Any) -> str:
        """Put the new key, which signs the row, in the place of the old one."""
        if row.key_id in self.admitted or self.begun.get(row.key_id, row.seq) < row.seq:
            return f"key {row.key_id!r} is in the ledger already"
        if about not in self.admitted:
            return f"key {about!r} has nothing to hand over: no row has trusted it"
        end = self.before.get(about)
        if self.line[about][-1] != about or (end is not None and not end.own_line and row.seq >= end.row):
            return f"key {about!r} had ended before it could hand over"
        if not handed_over(self.keys, about, row.key_id, handovers):
            return f"key {about!r} has not signed that it hands over to key {row.key_id!r}"
        self.line[about].append(row.key_id)
        self.line[row.key_id], self.admitted[row.key_id] = self.line[about], row.seq
        self.end(about, End(row=row.seq, said_in=row.seq, why=ROTATED, own_line=True))
        return ""

    def revoke(self, row: Row, about: str, since: Any) -> str:
        """End a key from a row on, which may lie in the past."""
        if about not in self.admitted:
            return f"it ends key {about!r}, which no row has trusted"
        if row.key_id not in self.admitted:
            return f"key {row.key_id!r} may not end others: no row has trusted it"
        if not self.stands_above(row.key_id, about):
            return f"key {row.key_id!r} may not end key {about!r}, which is not below it"
        if not isinstance(since, int) or not 0 < since <= row.seq:
            return f"it ends key {about!r} from no row up to its own"
        own = self.line[about] is self.line[row.key_id]
        self.end(about, End(row=since, said_in=row.seq, why=REVOKED, own_line=own))
        return ""

    def end(self, key_id: str, end: End) -> None:
        """Record a key's end; the earliest one counts."""
        known = self.ends.get(key_id)
        if known is None or end.row < known.row:
            self.ends[key_id] = end

    def stands_above(self, key_id: str, other: str) -> bool:
        """Whether a key came later in the other's line, or belongs to the line that let the other's line in."""
        line = self.line[other]
        if key_id in line:
            return line.index(key_id) > line.index(other)
        while (parent := self.over.get(line[0])) is not None:
            line = self.line[parent]
            if key_id in line:
                return True
        return False


def handed_over(keys: PublicKeys, old: str, new: str, handovers: Any) -> bool:
    """Whether these handovers lead from the old key, which is trusted, to the new one, each signed by its holder."""
    holder, key = old, keys.keys.get(old)
    try:
        for one in handovers:
            if key is None or one["from"] != holder:
                return False
            key.verify(bytes.fromhex(one["signature"]), handover_text(holder, one["to"]).encode())
            holder, key = one["to"], Ed25519PublicKey.from_public_bytes(bytes.fromhex(one["public"]))
            if key_id_of(key) != holder:
                return False
    except (InvalidSignature, ValueError, KeyError, TypeError):
        return False
    return holder == new


def entitled(keys: PublicKeys, key_id: str) -> str:
    """Why a ledger with rows about keys does not let this key sign; empty if it does."""
    end = keys.ends.get(key_id)
    if end is not None:
        return f"it {end}"
    return "" if key_id in (keys.admitted or {}) else "it may not sign by any row of the ledger"
