"""Writes the first row about a champion that is older than the ledger: from that row on, its name is guarded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from canary_mlflow.errors import UsageError
from canary_mlflow.ledger.rows import Kind
from canary_mlflow.registry.acts.act import Act, act_from
from canary_mlflow.registry.acts.by_hand import (
    described,
    enact,
    explain,
    holder_of,
    refuse_other_people,
    refuse_unguarded,
)
from canary_mlflow.registry.guard.binding import bind
from canary_mlflow.registry.guard_client import guard_of
from canary_mlflow.registry.remote import is_guarded_server, remote_act
from canary_mlflow.registry.sessions.orders import version_with
from canary_mlflow.registry.versions import CHAMPION, find_version

if TYPE_CHECKING:
    from mlflow import MlflowClient


def adopt(client: MlflowClient, model: str, reason: str, *, alias: str = CHAMPION, actor: str | None = None) -> Act:
    """Record the version that holds an alias, with its files as they are now; the alias stays where it is.

    Raises UsageError without a reason, for an alias that is not guarded or not held, and for one that the ledger
    already knows; Refused for somebody who is not allowed to adopt; BaselineMoved if the alias moves meanwhile.
    """
    if is_guarded_server(client):
        return act_from(remote_act(client, "adoptions", {"model": model, "reason": reason, "alias": alias}))
    guard = guard_of(client)
    if guard is None:
        raise UsageError(f"{model!r}: this registry keeps no ledger; expected a guarded one, to write the row into")
    refuse_unguarded(guard, model, alias)
    against = guard.standing(model, alias)
    holder = holder_of(client, model, alias)
    if holder is None:
        raise UsageError(
            f"{alias} of {model!r}: it names no version; expected one to adopt; canary gate {model} VERSION makes one"
        )
    for row in guard.moves(model, alias):
        raise UsageError(
            f"{alias} of {model!r}: row {row.seq} of the ledger made it version {row.version}; expected an alias that "
            f"it knows nothing of; see: canary audit log {model}"
        )
    found = find_version(client, model, holder)
    act = described(Kind.ADOPT, found, reason, alias, holder, actor)
    refuse_other_people(guard, act)
    enact(guard, act, bind(client, found, version_with(client, model, holder).runs), against)
    explain(client, act, found)
    return act
