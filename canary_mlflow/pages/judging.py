"""What the gate would say about two compared sessions: computed when the page is read, and not stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import sqlalchemy as sa

from canary_mlflow import tags
from canary_mlflow.api import rules_for
from canary_mlflow.errors import UsageError
from canary_mlflow.ledger import table
from canary_mlflow.ledger.rows import Kind
from canary_mlflow.ledger.writing import keys_in
from canary_mlflow.pages.facts import children_of, read_all_params, read_facts
from canary_mlflow.registry.acts.accepting import accepted_among
from canary_mlflow.registry.workspaces import active_workspace
from canary_mlflow.reports.decision import Decision, Question
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.reading.histories import run_from
from canary_mlflow.tracking.reading.points import points_over
from canary_mlflow.tracking.stores.read_only import has_ledger, reading
from gates.judge import judge
from gates.model.records import Version
from gates.model.verdict import Difference, Verdict

MOST = 2_000_000  # values to read: two seconds


def gate_would_say(
    tracking: str, registry: str, heads: Sequence[RunFacts], labels: Sequence[str]
) -> tuple[Decision | None, str]:
    """The decision as `canary compare` makes it, or a sentence on why there is none. Raises StoreError."""
    left, right = heads
    if any(one.tags.get(tags.ROLE) != "session" for one in heads):
        return None, "Not judged: a verdict needs two sessions."
    command = f"canary compare {left.run_id} {right.run_id}"
    with reading(tracking) as connection:
        children = children_of(connection, [left.run_id, right.run_id])
        facts = read_facts(connection, [run_id for found in children.values() for run_id in found])
    runs = [[facts[one] for one in children.get(head.run_id, []) if facts[one].tags.get(tags.ROLE) == "run"]
            for head in heads]  # fmt: skip
    if any(one.running for one in (*heads, *runs[0], *runs[1])):
        return None, "Not judged: one of them has not ended."
    if sum(one.step * len(one.latest) for side in runs for one in side) > MOST:
        return None, f"Not judged here, where it would take too long: {command}"
    tiers = (one.tags.get(tags.TIER, "") for one in (right, *runs[1], left, *runs[0]))
    tier = next(filter(None, tiers), "")
    ids: list[tuple[str, ...]] = [tuple(one.run_id for one in side) for side in runs]
    model = right.tags.get(tags.MODEL_NAME, "")
    try:
        verdict = verdict_on(
            tracking, ids[0], ids[1], left.tags.get(tags.MODEL_NAME, ""), model, tier, accepted(registry, model)
        )
    except UsageError:
        return None, f"Not judged: these runs carry no tier, which chooses the rules; {command} --policy NAME"
    decision = Decision(
        verdict=verdict, model=model, question=Question.COMPARISON, baseline_label=labels[0], candidate_label=labels[1]
    )
    return decision, ""


@lru_cache(maxsize=32)
def verdict_on(
    tracking: str,
    left: tuple[str, ...],
    right: tuple[str, ...],
    before: str,
    model: str,
    tier: str,
    known: tuple[Difference, ...],
) -> Verdict:
    """The verdict on runs that have ended and so no longer change. Raises UsageError for a tier without a policy."""
    policy = rules_for(None, tier, "these sessions")
    with reading(tracking) as connection:
        sides = [version_of(connection, ids, name) for ids, name in ((left, before), (right, model))]
    return judge(policy, *sides, accepted=known)


def version_of(connection: sa.Connection, ids: Sequence[str], model: str) -> Version:
    """One side, with everything that its runs recorded."""
    facts, params = read_facts(connection, ids), read_all_params(connection, ids)
    keys: Mapping[str, list[str]] = {run_id: sorted(one.latest) for run_id, one in facts.items()}
    points = points_over(connection, keys)
    runs = (run_from(run_id, one.tags, keys[run_id], points, params[run_id]) for run_id, one in facts.items())
    return Version(model=model, version=None, runs=tuple(runs))


def accepted(registry: str, model: str) -> tuple[Difference, ...]:
    """The differing facts that were accepted for the model."""
    with reading(registry) as connection:
        if not model or not has_ledger(connection):
            return ()
        mine = [row for row in table.read(connection, model, active_workspace()) if row.kind == Kind.FACTS]
        return tuple(accepted_among(mine, keys_in(connection))) if mine else ()
