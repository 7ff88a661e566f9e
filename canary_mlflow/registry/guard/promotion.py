"""The one transaction in which a champion changes: lock, verify, compare-and-set, ledger row, tags, alias."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import CanaryError, Refused
from canary_mlflow.ledger import chain, table
from canary_mlflow.ledger.chain import Kind, Record, Row, faults, holds
from canary_mlflow.ledger.keys import Signer, key_folder, load_signer
from canary_mlflow.ledger.policy_rows import in_force_row
from canary_mlflow.ledger.writing import add, keys_in, let_sign
from canary_mlflow.mlflow_internals import writing
from canary_mlflow.registry.guard import refusals, stored
from canary_mlflow.registry.guard.binding import changes
from canary_mlflow.registry.guard.evaluated import WITHDRAWN, fault_of, rows_about
from canary_mlflow.registry.guard.order import Order, Standing
from canary_mlflow.registry.policies.in_force import USED
from canary_mlflow.registry.pruning.pruned import BESIDE, in_words

if TYPE_CHECKING:
    from canary_mlflow.registry.guard.store import Ledgered


BY_A_POLICY = (Kind.VERDICT, Kind.BOOTSTRAP)


def standing(store: Ledgered, session: Any, model: str, alias: str) -> Standing:
    """Who holds the alias now."""
    place = store._get_active_workspace()
    return standing_by(stored.holder(session, place, model, alias), table.latest_move(session, place, model, alias))


def standing_by(holder: int | None, move: Row | None) -> Standing:
    """The standing, from the alias's holder and the row that moved it."""
    return Standing(version=holder, row=move.seq if holder is not None and move and move.version == holder else None)


def carry_out(store: Ledgered, order: Order) -> list[Row]:
    """Record the order, and move the alias if it says so; return the rows written, the order's own row last. Raises
    MLflow's exception with 403, 404 or 409."""
    signer = load_signer(key_folder())
    with writing(store) as session:
        table.lock(session)
        version = store.version_in(session, order.model, order.version, order.alias, kept=order.moves)
        last = end_of_chain(session, signer, order.actor, version.said)
        if version.creation_time != order.binding.version_created or version.source != order.binding.source:
            raise refusals.stale(order.alias, order.model, order.version, "the version was made anew or changed since")
        if order.grants:
            refuse_pruned(session, version, order.alias)
        if order.kind is Kind.PRUNE:
            refuse_needed(store, session, order, version)
        before = standing_by(version.holder, version.said.move)
        if order.judged_against is not None and before != order.judged_against:
            raise refusals.moved(order.alias, order.model, order.version, str(order.judged_against), str(before))
        if USED in order.facts:
            now = policy_row(version.said, order.model)
            if now != order.facts[USED]["row"]:
                raise refusals.policy_set(order.alias, order.model, order.version, now)
        if order.binding.evals is not None:
            refuse_other_evals(session, version, order.binding.evals, before.version, order.alias)
        rows = []
        for alias in order.pins:
            held = standing(store, session, order.model, alias)
            if held.version is None:
                last = write(store, session, replace(order, alias=alias), version, held, signer, last)
                rows.append(last)
        return [*rows, write(store, session, order, version, before, signer, last)]


def refuse_pruned(session: Any, version: stored.Seen, alias: str) -> None:
    """Refuse an alias for a version whose files were given up."""
    pruned = version.said.pruned
    if pruned is not None and holds(pruned, keys_in(session, rows=version.said.keys)):
        raise refusals.pruned(alias, version.name, version.version, in_words(pruned))


def refuse_needed(store: Ledgered, session: Any, order: Order, version: stored.Seen) -> None:
    """Refuse to give up files of a version that an alias names by now, or if the champion is not the one seen
    before."""
    if names := stored.aliases_of(session, version):
        raise refusals.still_needed(order.model, order.version, f"it is {names[0]} now")
    now = str(standing(store, session, order.model, "champion"))
    if now != order.facts[BESIDE]:
        what = f"the champion was {order.facts[BESIDE]} when this was looked at, and is {now}"
        raise refusals.still_needed(order.model, order.version, what)


def refuse_other_evals(
    session: Any, version: stored.Seen, judged: Mapping[str, str], baseline: int | None, alias: str
) -> None:
    """Refuse a verdict on other evaluations than both sides have now: one was added or withdrawn. `judged`: by row."""
    rows = rows_about(session, version.workspace, version.name, (version.version, baseline))
    if others := sorted(row.seq for row in rows if str(row.seq) not in judged):
        what = f"row {others[0]} of the ledger is about its evaluations, and came after it was judged"
        raise refusals.stale(alias, version.name, version.version, what)


def end_of_chain(session: Any, signer: Signer, actor: str, said: table.Bearing) -> Row | None:
    """The last row, which the next one follows. Refuses, before anything is written, a key unknown to the ledger."""
    try:
        return let_sign(session, signer, actor, (said.last, said.keys))
    except Refused as error:
        raise refusals.forbidden(str(error)) from error


def write(
    store: Ledgered,
    session: Any,
    order: Order,
    version: stored.Seen,
    before: Standing,
    signer: Signer,
    last: Row | None,
) -> Row:
    """Write the ledger row first, after `last`: the triggers let the alias and the tag only follow it."""
    record = Record(
        kind=order.kind,
        workspace=version.workspace,
        model=order.model,
        version=version.version,
        version_created=version.creation_time,
        alias=order.alias,
        word=order.word,
        grants=order.grants,
        moves=order.moves,
        facts={
            **order.facts,
            **order.binding.to_facts(),
            "actor": order.actor,
            "reason": order.reason,
            **chain.stamp(last),
            "baseline_version": before.version,
            "baseline_row": before.row,
        },
    )
    row = add(session, record, signer, last)
    for key, value in order.tags.items():
        stored.write_tag(session, version, key, value)
    if order.moves:
        session.flush()
        stored.write_alias(session, version, order.alias)
    return row


def promote(store: Ledgered, model: str, version: str, alias: str, actor: str) -> Row | None:
    """Move the alias on the strength of a verdict that the ledger already holds; None if the alias is already there.

    Files and metrics are read before the lock, as that may take long; `canary audit verify` finds a change in between.
    What the database can tell is checked again under the lock: a key may have ended since.
    """
    with store.asking() as session:
        found = store.version_in(session, model, version, alias)
        if found.holder == found.version:
            return None  # as in stock MLflow
        row = granting(session, found, alias)
        named = (table.row_at(session, int(seq)) for seq in row.facts.get("evals") or ())
        evaluations = [one.facts for one in named if one is not None and one.word != WITHDRAWN]
    facts, judged_of = row.facts, as_stored(found)
    created, source = found.creation_time, str(found.source)
    place = str(found.storage_location or source)
    try:
        binding = store.binding_now(created, source, place, list(facts.get("runs") or {}))
    except CanaryError as error:  # MLflow's handlers only know its own exceptions, and answer 500 to others
        raise refusals.stale(alias, model, version, str(error)) from error
    changed = filter(None, map(fault_of, evaluations))
    if different := [*changes(facts, binding), *changed]:
        raise refusals.stale(alias, model, version, different[0])
    signer = load_signer(key_folder())
    with writing(store) as session:
        table.lock(session)
        found = store.version_in(session, model, version, alias, kept=True)
        last = end_of_chain(session, signer, actor, found.said)
        if as_stored(found) != judged_of:
            raise refusals.stale(alias, model, version, "the version was made anew or changed since")
        if granting(session, found, alias) != row:
            raise refusals.stale(alias, model, version, "it was judged again meanwhile")
        before = standing_by(found.holder, found.said.move)
        judged = Standing(version=facts.get("baseline_version"), row=facts.get("baseline_row"))
        if before != judged:
            raise refusals.moved(alias, model, version, str(judged), str(before))
        policy = policy_row(found.said, model)
        if row.kind in BY_A_POLICY and policy != dict(facts.get(USED) or {}).get("row"):
            raise refusals.policy_set(alias, model, version, policy)
        order = Order(
            kind=Kind.PROMOTION,
            model=model,
            version=version,
            word=row.word,
            binding=binding,
            actor=actor,
            reason=f"row {row.seq} of the ledger: {row.kind} {row.word}",
            grants=True,
            moves=True,
            alias=alias,
            facts={"verdict_row": row.seq},
        )
        return write(store, session, order, found, before, signer, last)


def policy_row(said: table.Bearing, model: str) -> int | None:
    """The number of the row that sets the policy by which the model is judged now."""
    row = in_force_row(said.policies, model)
    return None if row is None else row.seq


def as_stored(version: stored.Seen) -> tuple[Any, ...]:
    """What must not change while files and metrics are read."""
    return version.creation_time, version.source, version.storage_location


def granting(session: Any, version: stored.Seen, alias: str) -> Row:
    """The newest row about the version. Refuses unless that row lets it hold the alias."""
    model, number, row = version.name, version.version, version.said.newest
    refuse_pruned(session, version, alias)
    if row is None:
        raise refusals.no_verdict(alias, model, number)
    if not row.grants:
        raise refusals.not_granted(alias, model, number, row.word, row.facts.get("held_back"))
    for what in faults(row, None, keys_in(session, rows=version.said.keys)):
        raise refusals.broken_row(alias, model, number, row.seq, what)
    if (judged := row.facts.get("evals")) is not None:
        refuse_other_evals(session, version, judged, row.facts.get("baseline_version"), alias)
    return row
