"""Accepting differing facts, with a name and a reason: a signed row, after which the same difference no longer
blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from canary_mlflow import tags
from canary_mlflow.errors import Refused, UsageError
from canary_mlflow.gates.facts.check import said
from canary_mlflow.gates.judge import judge
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.verdict import Difference, difference_from_dict
from canary_mlflow.ledger.chain import Kind, Row, holds
from canary_mlflow.registry.actors import current_actor, given, refuse_stranger
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.guard.binding import bind
from canary_mlflow.registry.guard.order import Binding, Order
from canary_mlflow.registry.sessions.orders import read_sides
from canary_mlflow.registry.versions import champion_number, find_version

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.ledger.keys import PublicKeys
    from canary_mlflow.registry.backends.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Who accepted which facts of a version that differ from which champion's, and why. `when`: ISO 8601, UTC."""

    model: str
    version: str
    champion: str
    reason: str
    who: str
    when: str
    facts: tuple[Difference, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"decision": "accepted", **asdict(self)}


def acceptance_from(plain: Mapping[str, Any]) -> Acceptance:
    """The acceptance as a server reports it."""
    facts = tuple(map(difference_from_dict, plain["facts"]))
    return Acceptance(**{one.name: plain[one.name] for one in fields(Acceptance) if one.name != "facts"}, facts=facts)


def accept_facts(
    client: MlflowClient, model: str, version: str, reason: str, policy: Policy, *, actor: str | None = None
) -> Acceptance:
    """Accept the facts of a version that differ from the champion's and block it; the alias stays where it is.

    Raises UsageError without a reason, without a champion, and if no differing fact would block; Refused for somebody
    who is not allowed to accept, and if there is no ledger to sign it in.
    """
    registry = registry_of(client)
    return registry.do(
        "acceptances",
        {"model": model, "version": version, "reason": reason},
        here=lambda: accept_here(registry, model, version, reason, policy, actor or current_actor()),
        there=lambda answer: acceptance_from(answer["act"]),
    )


def accept_here(registry: Registry, model: str, version: str, reason: str, policy: Policy, who: str) -> Acceptance:
    """The same by this process, which signs."""
    client = registry.client
    found = find_version(client, model, version)
    registry.must_sign(
        Refused(f"registry of {model!r}: it has no ledger to sign this in; expected SQLite or PostgreSQL")
    )
    reason = given(reason, "why these facts may differ; it is kept in the ledger")
    refuse_stranger(registry.operators, who, f"facts of {model!r}, version {version}")
    champion = champion_number(client, model)
    if champion is None or champion == str(found.version):
        raise UsageError(
            f"version {version} of {model!r}: there is no other champion to compare it with; expected a candidate"
        )
    baseline, candidate = read_sides(client, model, champion, found)
    governing = registry.governing(model)
    verdict = judge(policy if governing is None else governing.policy, baseline, candidate)
    facts = tuple(one for one in verdict.differences if one.decides)
    if not facts:
        raise UsageError(
            f"version {version} of {model!r}: none of its facts blocks against champion version {champion}; expected "
            f"one; what differs: canary diff {model}/{champion} {model}/{version}"
        )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    act = Acceptance(
        model=model, version=str(found.version), champion=champion, reason=reason, who=who, when=now, facts=facts
    )
    registry.record(_order(act, bind(registry, found, (*candidate.runs, *(baseline.runs if baseline else ())))))
    return act


def accepted_facts(registry: Registry, model: str) -> list[Difference]:
    """Every difference that was accepted for a model, in rows that a trusted key signed."""
    return accepted_in(registry, registry.rows(model, kind=Kind.FACTS))


def accepted_in(registry: Registry, rows: Iterable[Row]) -> list[Difference]:
    """The same, from given rows of the ledger."""
    mine = [row for row in rows if row.kind == Kind.FACTS]
    return accepted_among(mine, registry.keys()) if mine else []


def accepted_among(rows: Iterable[Row], keys: PublicKeys) -> list[Difference]:
    """The accepted differences in those rows that one of the keys signed."""
    held = [row for row in rows if holds(row, keys)]
    return [difference_from_dict(one) for row in held for one in row.facts["accepted"]]


def in_words(act: Acceptance) -> str:
    """What was accepted, in a sentence."""
    return (
        f"Facts of version {act.version} of {act.model} are accepted against champion version {act.champion}: "
        f"{'; '.join(map(said, act.facts))}; by {act.who}, in the ledger. Judge it again: canary gate {act.model} "
        f"{act.version}"
    )


def _order(act: Acceptance, binding: Binding) -> Order:
    """The row to record: it concerns no alias and moves none. The gate reads only its facts."""
    accepted = tags.FACTS_ACCEPTED
    return Order(
        kind=Kind.FACTS,
        model=act.model,
        version=act.version,
        word="facts accepted",
        binding=binding,
        actor=act.who,
        reason=act.reason,
        facts={"accepted": [asdict(one) for one in act.facts], "champion": act.champion},
        tags={accepted: act.reason, f"{accepted}_by": act.who, f"{accepted}_at": act.when},
    )
