"""An override of a BLOCK by two people: one asks for it in a signed row, another carries it out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from canary_mlflow import tags
from canary_mlflow.errors import Refused, UsageError
from canary_mlflow.ledger.rows import Kind, Row, holds
from canary_mlflow.registry.acts.act import Act
from canary_mlflow.registry.guard_client import record
from canary_mlflow.registry.policies.in_force import in_force
from canary_mlflow.registry.versions import CHAMPION

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.registry.guard.binding import Binding
    from canary_mlflow.registry.guard.store import GuardedStore

JUDGED = (Kind.VERDICT, Kind.BOOTSTRAP)
WAITS = 3  # exit code: nothing has moved, but nothing is wrong


@dataclass(frozen=True, kw_only=True)
class Request:
    """An override that somebody has asked for. `row`: its number in the ledger."""

    model: str
    version: str
    alias: str
    reason: str
    who: str
    row: int

    KEY: ClassVar[str] = "request"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"decision": "requested", **asdict(self)}


def request_from(plain: Mapping[str, Any]) -> Request:
    """A request as a server reports it."""
    return Request(**{field.name: plain[field.name] for field in fields(Request)})


def shared(client: MlflowClient, guard: GuardedStore, act: Act, found: ModelVersion, binding: Binding) -> Act | Request:
    """The act as it may be carried out now, with who asked for it; or the request that this call recorded, if the
    policy in force requires two people.

    Raises Refused for somebody who has already asked.
    """
    rows = guard.ledger(act.model)
    about = int(found.version), int(found.creation_timestamp)
    blocked = blocked_by(rows, about)
    if act.kind is not Kind.OVERRIDE or blocked is None or operators_for(client, guard, act.model) < 2:
        return act
    now = against_now(guard, act, blocked)
    keys = guard.keys()
    requests = [row for row in open_requests(rows, about, now) if holds(row, keys)]
    others = [row for row in requests if row.facts["actor"] != act.who]
    if others:
        return replace(act, asked_by=str(others[-1].facts["actor"]), request_row=others[-1].seq)
    if requests:
        raise Refused(
            f"override of {act.model!r}, version {act.version}: {act.who!r} has asked for it in row {requests[-1].seq} "
            "of the ledger, and the policy asks for two people; expected somebody else to carry it out, with the same "
            "command"
        )
    return ask(guard, act, found, binding, now)


def operators_for(client: MlflowClient, guard: GuardedStore, model: str) -> int:
    """How many people an override of a BLOCK takes; 1 if no policy is in force."""
    try:
        return in_force(client, guard, model).policy.override.operators
    except UsageError:
        return 1


def blocked_by(rows: Iterable[Row], about: tuple[int, int]) -> Row | None:
    """The row of the last verdict on a version (number, creation time), if that is a BLOCK."""
    judged = [row for row in rows if row.kind in JUDGED and (row.version, row.version_created) == about]
    return judged[-1] if judged and judged[-1].word == "BLOCK" else None


def against_now(guard: GuardedStore, act: Act, blocked: Row) -> dict[str, Any]:
    """The state that a request refers to; if it changes, the request lapses: the verdict, and who holds the alias and
    is champion, by which rows."""
    held = {alias: guard.standing(act.model, alias) for alias in (act.alias, CHAMPION)}
    return {
        "wanted_alias": act.alias,
        "verdict_row": blocked.seq,
        "against": {alias: [one.version, one.row] for alias, one in held.items()},
    }


def open_requests(rows: Iterable[Row], about: tuple[int, int], now: Mapping[str, Any]) -> Iterator[Row]:
    """The requests about a version since which nothing has changed."""
    for row in rows:
        facts = row.facts
        same = (row.version, row.version_created) == about and all(facts.get(key) == now[key] for key in now)
        if row.kind == Kind.REQUEST and same:
            yield row


def ask(guard: GuardedStore, act: Act, found: ModelVersion, binding: Binding, now: Mapping[str, Any]) -> Request:
    """Record that somebody asks for the override."""
    from canary_mlflow.registry.guard.promotion import Order

    order = Order(
        kind=Kind.REQUEST,
        model=act.model,
        version=act.version,
        word=str((found.tags or {}).get(tags.VERDICT, "BLOCK")),  # what the version shows stays as it is
        binding=binding,
        actor=act.who,
        reason=act.reason,
        grants=False,
        moves=False,
        alias="",
        facts=dict(now),
    )
    row = record(guard, order)
    return Request(model=act.model, version=act.version, alias=act.alias, reason=act.reason, who=act.who, row=row.seq)
