"""The policy that judges a model on a guarded registry: one that the ledger sets, else that of the model's tier.

The candidate can choose neither: at most a name is read from its tags, once, when the model has no rows yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from canary_mlflow import tags
from canary_mlflow.errors import NoSuchRun, UsageError
from canary_mlflow.ledger.canonical import digest
from canary_mlflow.ledger.keys import PublicKeys
from canary_mlflow.ledger.policy_rows import in_force_row
from canary_mlflow.ledger.rows import Kind, Row, faults
from canary_mlflow.policies import content_of, policy_from, policy_names, shipped_tiers
from canary_mlflow.registry.versions import find_model
from canary_mlflow.tracking.stores.session import get_run
from gates import Policy

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.registry.guard.guard import Guard

AT_ONCE = 100  # rows read while looking for one


@dataclass(frozen=True, kw_only=True)
class InForce:
    """A policy with all its keys. `row`: the ledger's row that set it for `pattern`; None for a shipped policy."""

    content: Mapping[str, Any]
    row: int | None = None
    pattern: str = ""

    @property
    def name(self) -> str:
        """The name that it gives itself."""
        return str(self.content["name"])

    @property
    def digest(self) -> str:
        """sha256 over its keys."""
        return digest(self.content)

    @property
    def policy(self) -> Policy:
        """The policy to judge by, with the spreads measured in this place."""
        return policy_from(self.content)

    def __str__(self) -> str:
        return f"policy {self.name} ({f'row {self.row} of the ledger' if self.row else 'shipped'})"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "policy": self.name,
            "policy_digest": self.digest,
            "row": self.row,
            "pattern": self.pattern,
            "content": dict(self.content),
        }


def in_force(client: MlflowClient, guard: Guard | None, model: str, *, server: bool = False) -> InForce:
    """The policy that judges a model. `server`: only tiers count, as a server's clients may name nothing else;
    otherwise a user's own session may name any shipped policy.

    Raises UsageError if no policy is set and the model names no tier, and for a row that does not hold; NoSuchModel.
    """
    found = None if guard is None else set_for(guard, model)
    if found is not None:
        return found
    tier, where = tier_of_model(client, guard, model)
    valid = shipped_tiers() if server else policy_names()
    if tier not in valid:
        raise UsageError(
            f"{model!r}: {where} names no tier; expected one of {', '.join(valid)}, or a policy that the ledger sets; "
            f'canary policy set {model} smoke --reason "…"'
        )
    return InForce(content=content_of(tier))


def set_for(guard: Guard, model: str) -> InForce | None:
    """The policy that the ledger sets for a model; None if it sets none. Raises UsageError for a row that does not
    hold: otherwise anybody who can write rows without a key could choose the policy."""
    row = in_force_row(guard.policies(), model)
    if row is None:
        return None
    refuse_broken(row, f"the policy of {model!r}", guard.keys())
    return from_row(row)


def from_row(row: Row) -> InForce:
    """The policy that a row sets."""
    facts = row.facts
    return InForce(content=facts["content"], row=row.seq, pattern=str(facts["pattern"]))


def refuse_broken(row: Row, what: str, keys: PublicKeys) -> None:
    """Raise UsageError for a row that no trusted key signed, or that was changed."""
    for fault in faults(row, None, keys):
        raise UsageError(
            f"{what}: row {row.seq} of the ledger does not hold ({fault}); expected one that does; see: canary audit "
            "verify"
        )


def tier_of_model(client: MlflowClient, guard: Guard | None, model: str) -> tuple[str, str]:
    """A model's tier, and where it was found: in the first row about the model that has one, else in its first
    version's run. '' if there is none, or if the text names no tier. Raises UsageError and NoSuchModel."""
    for row in rows_about(guard, model) if guard is not None else ():
        facts = row.facts
        sealed_before = row.kind == Kind.SEAL and "run" in facts and "tier" not in facts
        tier = tier_of_run(client, facts["run"]) if sealed_before else tier_in(facts)
        if tier is not None and guard is not None:
            refuse_broken(row, f"the tier of {model!r}", guard.keys())
            return tier, f"row {row.seq} of the ledger, the first about it,"
    find_model(client, model)
    versions = client.search_model_versions(f"name={tags.quoted(model)}")
    first = min(versions, key=lambda version: int(version.version), default=None)
    return tier_of_run(client, first.run_id) if first else "", "the run of its first version"


def rows_about(guard: Guard, model: str) -> Iterator[Row]:
    """The ledger's rows about a model, in order, some at a time: as a rule the first one is the one looked for."""
    rows = guard.ledger(model, most=AT_ONCE)
    while rows:
        yield from rows
        rows = guard.ledger(model, after=rows[-1].seq, most=AT_ONCE)


def tier_in(facts: Mapping[str, Any]) -> str | None:
    """The tier that a row records; None if it records none, as with rows of acts."""
    if "tier" in facts:
        return str(facts["tier"])
    name = dict(dict(facts.get("verdict") or {}).get("policy") or {}).get("name")
    return str(name) if name in policy_names() else None


def tier_of_run(client: MlflowClient, run_id: str | None) -> str:
    """The tier, or the shipped policy, that a run names; empty for any other text."""
    try:
        tier = get_run(client, run_id).data.tags.get(tags.TIER, "") if run_id else ""
    except NoSuchRun:
        return ""
    return tier if tier in policy_names() else ""
