"""Champions made by hand: bless and override. Each needs a reason, and leaves a name for ever."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import CanaryError, UsageError, one_line
from canary_mlflow.ledger.install import WITH_ROWS
from canary_mlflow.ledger.rows import Kind
from canary_mlflow.registry.actors import current_actor, given, refuse_stranger
from canary_mlflow.registry.acts.act import DONE, WORDS, Act, act_from, as_markdown, tags
from canary_mlflow.registry.acts.two_operators import Request, request_from, shared
from canary_mlflow.registry.guard.binding import bind
from canary_mlflow.registry.guard.seal import require_seal
from canary_mlflow.registry.guard_client import guard_of, record
from canary_mlflow.registry.judging.eligibility import refuse_load
from canary_mlflow.registry.judging.records import DESCRIPTION_LIMIT
from canary_mlflow.registry.locks import registry_lock
from canary_mlflow.registry.pruning.pruned import refuse_pruned
from canary_mlflow.registry.remote import is_guarded_server, remote_act
from canary_mlflow.registry.sessions.evidence import Read, refuse_changed_evidence
from canary_mlflow.registry.sessions.orders import version_with
from canary_mlflow.registry.versions import CHAMPION, champion_number, find_version
from canary_mlflow.reports import markdown
from canary_mlflow.tags import OURS, VERDICT, VERDICT_REASON

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.ledger.rows import Row
    from canary_mlflow.registry.guard.binding import Binding
    from canary_mlflow.registry.guard.promotion import Standing
    from canary_mlflow.registry.guard.store import GuardedStore
    from gates.model.records import Run

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
    if is_guarded_server(client):
        route = "overrides" if despite_block else "blessings"
        body = {"model": model, "version": version, "reason": reason, "without_weights": without_weights}
        return done_there(client, route, body)
    found = find_version(client, model, version)
    before = verdict_of(found)
    act = describe(client, Kind.OVERRIDE if before == "BLOCK" else Kind.BLESS, found, reason, CHAMPION, actor)
    if act.kind is Kind.OVERRIDE and not despite_block:
        why = reason_of_block(found)
        raise UsageError(
            f"version {act.version} of {model!r}: the gate blocked it ({why}); expected one without a BLOCK; fix it "
            "and run again, or add --despite-block when the change is meant"
        )
    return carry_out(client, seal_checked(client, act, found, without_weights), found)


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
    if is_guarded_server(client):
        body = {"model": model, "version": version, "reason": reason, "alias": alias}
        return done_there(client, "overrides", {**body, "without_weights": without_weights})
    found = find_version(client, model, version)
    if (guard := guard_of(client)) is not None:
        refuse_unguarded(guard, model, alias)
    act = describe(client, Kind.OVERRIDE, found, reason, alias, actor)
    return carry_out(client, seal_checked(client, act, found, without_weights), found)


def done_there(client: MlflowClient, route: str, body: Mapping[str, Any]) -> Act | Request:
    """Ask a server for the act; return what it did, or the request that a second person must carry out."""
    answer = remote_act(client, route, body)
    return request_from(answer[Request.KEY]) if Request.KEY in answer else act_from(answer[Act.KEY])


def seal_checked(client: MlflowClient, act: Act, found: ModelVersion, without_weights: bool) -> Act:
    """The act, marked if the version's seal was not checked. Raises UsageError for a seal that does not hold."""
    if without_weights:
        return replace(act, without_weights=True)
    guard = guard_of(client)
    if guard is not None:
        refuse_other_people(guard, act)
    try:
        require_seal(client, guard, found)
    except UsageError as error:
        raise UsageError(f"{error}, or add --without-weights when nobody is to load it") from error
    return act


def describe(client: MlflowClient, kind: Kind, found: ModelVersion, reason: str, alias: str, actor: str | None) -> Act:
    """The act. Raises UsageError without a reason, if it would change nothing, and for a version whose files were given
    up."""
    reason = given(reason, WHY)
    refuse_pruned(guard_of(client), found)
    holder = holder_of(client, str(found.name), alias)
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


def reason_of_block(found: ModelVersion) -> str:
    """Why the gate blocked the version; an act by hand has since put its own reason into that tag."""
    said: dict[str, str] = dict(found.tags or {})
    if said.get(VERDICT) != "BLOCK":
        return f"its {said.get(VERDICT)} changed nothing about that; canary audit log {found.name} says why"
    return said.get(VERDICT_REASON, "no reason recorded").rstrip(".")


def holder_of(client: MlflowClient, model: str, alias: str) -> str | None:
    """The version behind an alias."""
    if alias == CHAMPION:
        return champion_number(client, model)
    number = client.get_registered_model(model).aliases.get(alias)
    return None if number is None else str(number)


def carry_out(client: MlflowClient, act: Act, found: ModelVersion) -> Act | Request:
    """Carry out the act, through the guard if there is one, then update the description. Returns a request if a second
    person must carry it out. Raises UsageError for a version that nobody may promote."""
    guard = guard_of(client)
    if guard is not None:
        guard.refuse_key()  # before rows are read that a stranger to the ledger cannot check
    made = version_with(client, act.model, act.version).runs
    refuse_load(found, made)
    if guard is None:
        with registry_lock(client):
            for key, value in tags(act).items():
                client.set_model_version_tag(act.model, act.version, key, value)
            client.set_registered_model_alias(act.model, act.alias, act.version)
    else:
        refuse_other_people(guard, act)
        binding = bind(client, found, made)
        allowed = shared(client, guard, act, found, binding)
        if isinstance(allowed, Request):
            return allowed
        act = replace(allowed, evidence=evidence_now(client, guard, found, made))
        enact(guard, act, binding, guard.standing(act.model, act.alias))
    explain(client, act, found)
    return act


def evidence_now(client: MlflowClient, guard: GuardedStore, found: ModelVersion, made: Sequence[Run]) -> str:
    """Why a verdict on the version would be refused: which runs named in its session's rows are missing, or changed
    since. That does not stop an act by hand, but is shown to the person who acts and kept in the row."""
    from mlflow.exceptions import MlflowException

    try:
        refuse_changed_evidence(client, guard, found, Read(runs=made), guard.ledger(str(found.name)))
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


def refuse_other_people(guard: GuardedStore, act: Act) -> None:
    """Raise Refused for somebody who is not on the list of operators, if there is a list."""
    what = f"{act.kind} of {act.model!r}, version {act.version}, alias {act.alias!r}"
    refuse_stranger(guard.operators, act.who, what, f"ask one of them, or run canary gate {act.model} {act.version}")


def refuse_unguarded(guard: GuardedStore, model: str, alias: str) -> None:
    """Raise UsageError for an alias that the model's first row would not guard, such as a misspelt one: the ledger
    would speak of it for ever, and the audit would not find it."""
    known = sorted({one.alias for one in guard.guarded_aliases
                    if one.models == WITH_ROWS or one.pattern.fullmatch(model)})  # fmt: skip
    if alias not in known:
        raise UsageError(f"--alias {alias!r}: nobody guards it; expected one of {', '.join(known) or 'none'}; "
                         "canary db install --guard …")  # fmt: skip


def enact(guard: GuardedStore, act: Act, binding: Binding, against: Standing) -> Row:
    """Give the act as an order to the guard, against the champion that was seen; return its row."""
    from canary_mlflow.registry.guard.promotion import Order

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
        tags=tags(act),
    )
    return record(guard, order)
