"""Acts on what the ledger knows of champions: back to the former one, and the first row about one that is older than
the ledger; from that row on, its name is guarded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from canary_mlflow.errors import Refused, UsageError
from canary_mlflow.ledger.chain import Kind, Row
from canary_mlflow.registry.acts.act import Act, act_from
from canary_mlflow.registry.acts.by_hand import (
    carry_out,
    describe,
    described,
    enact,
    explain,
    refuse_other_people,
    refuse_unguarded,
)
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.guard.binding import bind, changes
from canary_mlflow.registry.sessions.orders import version_with
from canary_mlflow.registry.versions import CHAMPION, champion_number, find_version, holder_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.registry.backends.registry import Registry


def rollback(client: MlflowClient, model: str, reason: str, *, actor: str | None = None) -> Act:
    """Return to the previous champion: the version that the current one replaced.

    Raises UsageError if there is none, and Refused if its files have changed since.
    """
    registry = registry_of(client)
    return registry.do(
        "rollbacks",
        {"model": model, "reason": reason},
        here=lambda: rollback_here(registry, model, reason, actor),
        there=lambda answer: act_from(answer[Act.KEY]),
    )


def rollback_here(registry: Registry, model: str, reason: str, actor: str | None) -> Act:
    """The same by this process, which signs."""
    client = registry.client
    registry.must_sign(
        UsageError(
            f"{model!r}: this registry keeps no ledger, so no former champion is known; expected a guarded one; "
            'canary bless MODEL VERSION --reason "…" names a version'
        )
    )
    now = champion_number(client, model)
    rows = registry.moves(model)
    former = former_champion(rows, now)
    if former is None:
        raise UsageError(
            f"{model!r}: the ledger knows no champion before {'version ' + now if now else 'this one'}; expected one "
            f"to return to; see: canary audit log {model}"
        )
    found = find_version(client, model, former)
    act = describe(registry, Kind.ROLLBACK, found, reason, CHAMPION, actor)
    refuse_changed(registry, found, rows)
    done = carry_out(registry, act, found)
    assert isinstance(done, Act)  # a rollback takes one person
    return done


def former_champion(rows: list[Row], now: str | None) -> str | None:
    """The version that the current champion replaced when it was promoted; a rollback does not count as a promotion."""
    for row in rows:
        if str(row.version) == now and row.kind not in (Kind.ROLLBACK, Kind.ADOPT):
            before = row.facts.get("baseline_version")
            return None if before is None else str(before)
    return None


def refuse_changed(registry: Registry, found: ModelVersion, rows: list[Row]) -> None:
    """Raise Refused if the version's files are not those it had as champion."""
    created = int(found.creation_timestamp)
    earlier = [row for row in rows if row.version == int(found.version) and row.version_created == created]
    if earlier:
        facts = earlier[0].facts
        different = changes({**facts, "runs": {}}, bind(registry, found, ()))
        if different:
            raise Refused(
                f"version {found.version} of {found.name!r}: not what was champion in row {earlier[0].seq} of the "
                f"ledger: {different[0]}; judge it again: canary gate {found.name} {found.version}"
            )


def adopt(client: MlflowClient, model: str, reason: str, *, alias: str = CHAMPION, actor: str | None = None) -> Act:
    """Record the version that holds an alias, with its files as they are now; the alias stays where it is.

    Raises UsageError without a reason, for an alias that is not guarded or not held, and for one that the ledger
    already knows; Refused for somebody who is not allowed to adopt; BaselineMoved if the alias moves meanwhile.
    """
    registry = registry_of(client)
    return registry.do(
        "adoptions",
        {"model": model, "reason": reason, "alias": alias},
        here=lambda: adopt_here(registry, model, reason, alias, actor),
        there=lambda answer: act_from(answer[Act.KEY]),
    )


def adopt_here(registry: Registry, model: str, reason: str, alias: str, actor: str | None) -> Act:
    """The same by this process, which signs."""
    client = registry.client
    registry.must_sign(
        UsageError(f"{model!r}: this registry keeps no ledger; expected a guarded one, to write the row into")
    )
    refuse_unguarded(registry, model, alias)
    against = registry.standing(model, alias)
    holder = holder_of(client, model, alias)
    if holder is None:
        raise UsageError(
            f"{alias} of {model!r}: it names no version; expected one to adopt; canary gate {model} VERSION makes one"
        )
    for row in registry.moves(model, alias):
        raise UsageError(
            f"{alias} of {model!r}: row {row.seq} of the ledger made it version {row.version}; expected an alias that "
            f"it knows nothing of; see: canary audit log {model}"
        )
    found = find_version(client, model, holder)
    act = described(Kind.ADOPT, found, reason, alias, holder, actor)
    refuse_other_people(registry, act)
    enact(registry, act, bind(registry, found, version_with(client, model, holder).runs), against)
    explain(client, act, found)
    return act
