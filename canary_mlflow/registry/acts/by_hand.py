"""Champions made by hand: bless and override. Each needs a reason, and leaves a name for ever.

An override of a BLOCK may take two people: one asks for it in a signed row, another carries it out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mlflow.exceptions import MlflowException

from canary_mlflow import tags
from canary_mlflow.errors import CanaryError, Refused, UsageError, one_line
from canary_mlflow.ledger.chain import Kind, Row, holds
from canary_mlflow.ledger.install import WITH_ROWS
from canary_mlflow.registry.actors import current_actor, given, refuse_stranger
from canary_mlflow.registry.acts.act import (
    DONE,
    WORDS,
    Act,
    Request,
    act_from,
    as_markdown,
    blocked_by,
    request_from,
    tags_of,
)
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.guard.binding import bind
from canary_mlflow.registry.guard.order import Order
from canary_mlflow.registry.guard.seal import require_seal
from canary_mlflow.registry.judging.eligibility import refuse_load
from canary_mlflow.registry.judging.records import DESCRIPTION_LIMIT
from canary_mlflow.registry.policies.asked import in_force
from canary_mlflow.registry.pruning.pruned import refuse_pruned
from canary_mlflow.registry.sessions.evidence import Read, refuse_changed_evidence
from canary_mlflow.registry.sessions.orders import version_with
from canary_mlflow.registry.versions import CHAMPION, find_version, holder_of
from canary_mlflow.reports import markdown
from canary_mlflow.tags import OURS, VERDICT, VERDICT_REASON

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.gates.model.records import Run
    from canary_mlflow.registry.backends.registry import Registry
    from canary_mlflow.registry.guard.order import Binding, Standing


log = logging.getLogger("canary_mlflow")
WHY = "why this version may be champion; it is kept on the version"


def bless(
    client: MlflowClient,
    model: str,
    version: str,
    reason: str,
    *,
    despite_block: bool = False,
    without_weights: bool = False,
    actor: str | None = None,
) -> Act | Request:
    """Make a version champion without a PASS. Over a BLOCK, with `despite_block`, this is an override: if the policy
    asks for two people, the first one's call becomes a request.

    `without_weights`: even if its seal does not hold, or there is none.

    Raises UsageError without a reason, for a version that is already champion, and for one that the gate has blocked,
    unless `despite_block` is given; Refused for somebody who is not allowed to bless.
    """
    registry = registry_of(client)

    def here() -> Act | Request:
        found = find_version(client, model, version)
        kind = Kind.OVERRIDE if verdict_of(found) == "BLOCK" else Kind.BLESS
        act = describe(registry, kind, found, reason, CHAMPION, actor)
        if act.kind is Kind.OVERRIDE and not despite_block:
            refuse_block(found)
        return carry_out(registry, seal_checked(registry, act, found, without_weights), found)

    body = {"model": model, "version": version, "reason": reason, "without_weights": without_weights}
    return registry.do("overrides" if despite_block else "blessings", body, here=here, there=done_there)


def override(
    client: MlflowClient,
    model: str,
    version: str,
    reason: str,
    *,
    alias: str = CHAMPION,
    without_weights: bool = False,
    actor: str | None = None,
) -> Act | Request:
    """Give a version a guarded alias whatever its verdict. Raises as `bless` does, except for a BLOCK, and UsageError
    for an alias that is not guarded; over a BLOCK, it may also become a request."""
    registry = registry_of(client)

    def here() -> Act | Request:
        found = find_version(client, model, version)
        refuse_unguarded(registry, model, alias)
        act = describe(registry, Kind.OVERRIDE, found, reason, alias, actor)
        return carry_out(registry, seal_checked(registry, act, found, without_weights), found)

    body = {"model": model, "version": version, "reason": reason, "alias": alias, "without_weights": without_weights}
    return registry.do("overrides", body, here=here, there=done_there)


def done_there(answer: Mapping[str, Any]) -> Act | Request:
    """What a server did, or the request that a second person must carry out."""
    return request_from(answer[Request.KEY]) if Request.KEY in answer else act_from(answer[Act.KEY])


def seal_checked(registry: Registry, act: Act, found: ModelVersion, without_weights: bool) -> Act:
    """The act, marked if the version's seal was not checked. Raises UsageError for a seal that does not hold."""
    if without_weights:
        return replace(act, without_weights=True)
    refuse_other_people(registry, act)
    try:
        require_seal(registry, found)
    except UsageError as error:
        raise UsageError(f"{error}, or add --without-weights when nobody is to load it") from error
    return act


def describe(registry: Registry, kind: Kind, found: ModelVersion, reason: str, alias: str, actor: str | None) -> Act:
    """The act. Raises UsageError without a reason, if it would change nothing, and for a version whose files were given
    up."""
    reason = given(reason, WHY)
    refuse_pruned(found, registry.pruned(found))
    holder = holder_of(registry.client, str(found.name), alias)
    if holder == str(found.version):
        raise UsageError(
            f"version {holder} of {found.name!r}: it is the {alias} already; expected another version; nothing to do"
        )
    return described(kind, found, reason, alias, holder, actor)


def described(kind: Kind, found: ModelVersion, reason: str, alias: str, holder: str | None, actor: str | None) -> Act:
    """The act, dated now and by the given or current actor. Raises UsageError without a reason."""
    return Act(
        kind=kind,
        model=str(found.name),
        version=str(found.version),
        alias=alias,
        reason=given(reason, WHY),
        who=actor or current_actor(),
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        champion_before=holder,
        verdict_before=verdict_of(found),
    )


def verdict_of(found: ModelVersion) -> str:
    """The gate's last verdict on the version, or `none`: an act by hand hides a BLOCK but does not remove it."""
    said: dict[str, str] = dict(found.tags or {})
    word = said.get(VERDICT, "none")
    for _ in WORDS:  # an act may follow another act
        kind = next((kind for kind, act in WORDS.items() if act == word), None)
        if kind is None:
            break
        word = said.get(f"{OURS}{DONE[kind]}_over", "none")
    return word


def refuse_block(found: ModelVersion) -> None:
    """Raise UsageError with the reason why the gate blocked the version; an act by hand has since put its own reason
    into that tag."""
    said: dict[str, str] = dict(found.tags or {})
    why = said.get(VERDICT_REASON, "no reason recorded").rstrip(".")
    if said.get(VERDICT) != "BLOCK":
        why = f"its {said.get(VERDICT)} changed nothing about that; canary audit log {found.name} says why"
    raise UsageError(
        f"version {found.version} of {found.name!r}: the gate blocked it ({why}); expected one without a BLOCK; fix it "
        "and run again, or add --despite-block when the change is meant"
    )


def carry_out(registry: Registry, act: Act, found: ModelVersion) -> Act | Request:
    """Carry out the act, then update the description. Returns a request if a second person must carry it out. Raises
    UsageError for a version that nobody may promote."""
    registry.refuse_key()  # before rows are read that a stranger to the ledger cannot check
    made = version_with(registry.client, act.model, act.version).runs
    refuse_load(found, made)
    refuse_other_people(registry, act)
    binding = bind(registry, found, made)
    allowed = shared(registry, act, found, binding)
    if isinstance(allowed, Request):
        return allowed
    act = replace(allowed, evidence=evidence_now(registry, found, made))
    enact(registry, act, binding, registry.standing(act.model, act.alias))
    explain(registry.client, act, found)
    return act


def evidence_now(registry: Registry, found: ModelVersion, made: Sequence[Run]) -> str:
    """Why a verdict on the version would be refused: which runs named in its session's rows are missing, or changed
    since. That does not stop an act by hand, but is shown to the person who acts and kept in the row."""
    try:
        refuse_changed_evidence(registry, found, Read(runs=made), registry.rows(str(found.name)))
    except (CanaryError, MlflowException) as error:  # a session that is gone is also an answer
        return one_line(error)
    return ""


def explain(client: MlflowClient, act: Act, found: ModelVersion) -> None:
    """Put the act at the head of the version's description. The act already stands, so a failure here is a warning."""
    text = f"{as_markdown(act)}\n\n{found.description or ''}"
    short = markdown.fit(text, DESCRIPTION_LIMIT, "report.md of the version's session")
    try:
        client.update_model_version(act.model, act.version, short)
    except Exception as error:  # noqa: BLE001  # a full disk, a server that has gone: no reason to say that nothing moved
        log.warning("canary: version %s of %s: description not written: %s", act.version, act.model, one_line(error))


def refuse_other_people(registry: Registry, act: Act) -> None:
    """Raise Refused for somebody who is not on the list of operators, if there is a list."""
    what = f"{act.kind} of {act.model!r}, version {act.version}, alias {act.alias!r}"
    refuse_stranger(registry.operators, act.who, what, f"ask one of them, or run canary gate {act.model} {act.version}")


def refuse_unguarded(registry: Registry, model: str, alias: str) -> None:
    """Raise UsageError for an alias that the model's first row would not guard, such as a misspelt one: the ledger
    would speak of it for ever, and the audit would not find it."""
    known = sorted({one.alias for one in registry.guarded_aliases
                    if one.models == WITH_ROWS or one.pattern.fullmatch(model)})  # fmt: skip
    if registry.signs and alias not in known:
        raise UsageError(f"--alias {alias!r}: nobody guards it; expected one of {', '.join(known) or 'none'}; "
                         "canary db install --guard …")  # fmt: skip


def enact(registry: Registry, act: Act, binding: Binding, against: Standing) -> None:
    """Give the act as an order to the registry, against the champion that was seen."""
    order = Order(
        kind=act.kind,
        model=act.model,
        version=act.version,
        word=act.word,
        binding=binding,
        actor=act.who,
        reason=act.reason,
        grants=True,
        moves=True,
        alias=act.alias,
        judged_against=against,
        facts={
            "verdict_before": act.verdict_before,
            "without_weights": act.without_weights,
            **({"evidence": act.evidence} if act.evidence else {}),
            **({"asked_by": act.asked_by, "request_row": act.request_row} if act.asked_by else {}),
        },
        tags=tags_of(act),
    )
    registry.record(order)


def shared(registry: Registry, act: Act, found: ModelVersion, binding: Binding) -> Act | Request:
    """The act as it may be carried out now, with who asked for it; or the request that this call recorded, if the
    policy in force requires two people.

    Raises Refused for somebody who has already asked.
    """
    rows = registry.rows(act.model)
    about = int(found.version), int(found.creation_timestamp)
    blocked = blocked_by(rows, about)
    if act.kind is not Kind.OVERRIDE or blocked is None or operators_for(registry, act.model) < 2:
        return act
    now = against_now(registry, act, blocked)
    keys = registry.keys()
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
    return ask(registry, act, found, binding, now)


def operators_for(registry: Registry, model: str) -> int:
    """How many people an override of a BLOCK takes; 1 if no policy is in force."""
    try:
        return in_force(registry, model).policy.override.operators
    except UsageError:
        return 1


def against_now(registry: Registry, act: Act, blocked: Row) -> dict[str, Any]:
    """The state that a request refers to; if it changes, the request lapses: the verdict, and who holds the alias and
    is champion, by which rows."""
    held = {alias: registry.standing(act.model, alias) for alias in (act.alias, CHAMPION)}
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


def ask(registry: Registry, act: Act, found: ModelVersion, binding: Binding, now: Mapping[str, Any]) -> Request:
    """Record that somebody asks for the override."""
    order = Order(
        kind=Kind.REQUEST,
        model=act.model,
        version=act.version,
        word=str((found.tags or {}).get(tags.VERDICT, "BLOCK")),  # what the version shows stays as it is
        binding=binding,
        actor=act.who,
        reason=act.reason,
        facts=dict(now),
    )
    row = registry.record(order)
    assert row is not None  # without rows there is no BLOCK to be asked about
    return Request(model=act.model, version=act.version, alias=act.alias, reason=act.reason, who=act.who, row=row.seq)
