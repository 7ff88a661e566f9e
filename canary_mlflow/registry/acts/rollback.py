"""Back to the former champion, as the ledger knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from canary_mlflow.errors import Refused, UsageError
from canary_mlflow.ledger.rows import Kind, Row
from canary_mlflow.registry.acts.act import Act, act_from
from canary_mlflow.registry.acts.by_hand import carry_out, describe
from canary_mlflow.registry.guard.binding import bind, changes
from canary_mlflow.registry.guard_client import guard_of
from canary_mlflow.registry.remote import is_guarded_server, remote_act
from canary_mlflow.registry.versions import CHAMPION, champion_number, find_version

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


def rollback(client: MlflowClient, model: str, reason: str, *, actor: str | None = None) -> Act:
    """Return to the previous champion: the version that the current one replaced.

    Raises UsageError if there is none, and Refused if its files have changed since.
    """
    if is_guarded_server(client):
        return act_from(remote_act(client, "rollbacks", {"model": model, "reason": reason})[Act.KEY])
    guard = guard_of(client)
    if guard is None:
        raise UsageError(
            f"{model!r}: this registry keeps no ledger, so no former champion is known; expected a guarded one; "
            'canary bless MODEL VERSION --reason "…" names a version'
        )
    now = champion_number(client, model)
    rows = guard.moves(model)
    former = former_champion(rows, now)
    if former is None:
        raise UsageError(
            f"{model!r}: the ledger knows no champion before {'version ' + now if now else 'this one'}; expected one "
            f"to return to; see: canary audit log {model}"
        )
    found = find_version(client, model, former)
    act = describe(client, Kind.ROLLBACK, found, reason, CHAMPION, actor)
    refuse_changed(client, found, rows)
    done = carry_out(client, act, found)
    assert isinstance(done, Act)  # a rollback takes one person
    return done


def former_champion(rows: list[Row], now: str | None) -> str | None:
    """The version that the current champion replaced when it was promoted; a rollback does not count as a promotion."""
    for row in rows:
        if str(row.version) == now and row.kind not in (Kind.ROLLBACK, Kind.ADOPT):
            before = row.facts.get("baseline_version")
            return None if before is None else str(before)
    return None


def refuse_changed(client: MlflowClient, found: ModelVersion, rows: list[Row]) -> None:
    """Raise Refused if the version's files are not those it had as champion."""
    created = int(found.creation_timestamp)
    earlier = [row for row in rows if row.version == int(found.version) and row.version_created == created]
    if earlier:
        facts = earlier[0].facts
        different = changes({**facts, "runs": {}}, bind(client, found, ()))
        if different:
            raise Refused(
                f"version {found.version} of {found.name!r}: not what was champion in row {earlier[0].seq} of the "
                f"ledger: {different[0]}; judge it again: canary gate {found.name} {found.version}"
            )
