"""The policy that judges a model: one that the ledger sets, else a person's own, else that of the model's tier.

The candidate can choose none: at most a name is read from its tags, once, when the model has no rows yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow import tags
from canary_mlflow.errors import UsageError
from canary_mlflow.gates import Policy, policy_to_dict
from canary_mlflow.ledger.chain import Kind, Row, digest
from canary_mlflow.policies import checked_content, content_of, load_policy, policy_names, shipped_tiers
from canary_mlflow.registry.actors import given, refuse_stranger
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.policies.in_force import InForce, policy_record, refuse_broken, tier_in, tier_of_run
from canary_mlflow.registry.versions import find_model
from canary_mlflow.tracking.stores.places import without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.registry.backends.registry import Registry

AT_ONCE = 100  # rows read while looking for one
NAME = re.compile(r"[\w.\-]{1,100}", re.ASCII)


def policy_for(client: MlflowClient, model: str, version: str, asked: str | Path | Mapping[str, Any] | None) -> Policy:
    """The policy to judge a version by: the one that was asked for, else the one in force for its model.

    Raises UsageError for a policy other than the one that a server has or the ledger sets, and as `in_force` does.
    """
    registry = registry_of(client)
    governing = registry.governing(model)
    if asked is None:
        return (governing or in_force(registry, model)).policy
    own = load_policy(asked)
    if governing is None:
        return own
    content = policy_to_dict(own) if isinstance(asked, Mapping) else content_of(asked)
    if digest(content) != governing.digest:
        raise UsageError(
            f"--policy {own.name}: {model!r} is judged by {governing}; expected no other; leave out --policy, or set "
            f'another as an administrator: canary policy set {model} {file_of(asked) or own.name} --reason "…"'
        )
    return governing.policy


def file_of(asked: str | Path | Mapping[str, Any] | None) -> str:
    """The path of the policy file that was asked for; empty for a shipped name and for keys."""
    if asked is None or isinstance(asked, Mapping) or str(asked) in policy_names():
        return ""
    return str(asked)


def in_force(registry: Registry, model: str, *, server: bool = False) -> InForce:
    """The policy that judges a model. `server`: only tiers count, as a server's clients may name nothing else;
    otherwise a user's own session may name any shipped policy.

    Raises UsageError if no policy is set and the model names no tier, and for a row that does not hold; NoSuchModel.
    """
    found = registry.governing(model)
    if found is not None:
        return found
    tier, where = tier_of_model(registry, model)
    valid = shipped_tiers() if server else policy_names()
    if tier not in valid:
        raise UsageError(
            f"{model!r}: {where} names no tier; expected one of {', '.join(valid)}, or a policy that the ledger sets; "
            f'canary policy set {model} smoke --reason "…"'
        )
    return InForce(content=content_of(tier))


def tier_of_model(registry: Registry, model: str) -> tuple[str, str]:
    """A model's tier, and where it was found: in the first row about the model that has one, else in its first
    version's run. '' if there is none, or if the text names no tier. Raises UsageError and NoSuchModel."""
    client = registry.client
    for row in rows_about(registry, model):
        facts = row.facts
        sealed_before = row.kind == Kind.SEAL and "run" in facts and "tier" not in facts
        tier = tier_of_run(client, facts["run"]) if sealed_before else tier_in(facts)
        if tier is not None:
            refuse_broken(row, f"the tier of {model!r}", registry.keys())
            return tier, f"row {row.seq} of the ledger, the first about it,"
    find_model(client, model)
    versions = client.search_model_versions(f"name={tags.quoted(model)}")
    first = min(versions, key=lambda version: int(version.version), default=None)
    return tier_of_run(client, first.run_id) if first else "", "the run of its first version"


def rows_about(registry: Registry, model: str) -> Iterator[Row]:
    """The ledger's rows about a model, in order, some at a time: as a rule the first one is the one looked for."""
    rows = registry.rows(model, most=AT_ONCE)
    while rows:
        yield from rows
        rows = registry.rows(model, after=rows[-1].seq, most=AT_ONCE)


def set_policy(client: MlflowClient, pattern: str, content: Mapping[str, Any], reason: str, actor: str) -> Row:
    """Judge the models that match a pattern by this policy from now on: one signed row, with a name and a reason.
    Raises UsageError, and Refused for somebody who is not among the operators, if any are named."""
    registry = registry_of(client)
    body = {"pattern": pattern, "policy": content["name"], "content": content, "reason": reason}
    return registry.do(
        "policies",
        body,
        here=lambda: set_here(registry, pattern, content, reason, actor),
        there=lambda answer: Row(**answer["row"]),
    )


def set_here(registry: Registry, pattern: str, content: Mapping[str, Any], reason: str, actor: str) -> Row:
    """The same by this process, which signs."""
    pattern = pattern.strip()
    if not pattern or len(pattern) > 256 or not pattern.isprintable():
        raise UsageError("the pattern of models: expected 1 to 256 characters, such as prod-* (* any text, ? one)")
    reason = given(reason, "why these models are to be judged so")
    registry.must_sign(no_ledger(registry))
    refuse_stranger(registry.operators, actor, f"the policy of {pattern!r}")
    row = registry.append(policy_record(pattern, own_content(content), reason, actor))
    assert row is not None
    return row


def rows_of_policies(registry: Registry, model: str | None) -> list[Row]:
    """Every row that set a policy; on a server, those for this model, if one is named. Raises UsageError without a
    ledger."""
    rows = registry.policy_rows(model)
    if rows is None:
        raise no_ledger(registry)
    return rows


def no_ledger(registry: Registry) -> UsageError:
    """What to say where no policy can be set."""
    return UsageError(
        f"{without_password(registry.client.tracking_uri)}: this registry keeps no ledger, so no policy can be set; "
        "expected SQLite, PostgreSQL or a server with --app-name canary-auth"
    )


def own_content(body: Mapping[str, Any]) -> dict[str, Any]:
    """Every key of a policy, checked. Raises UsageError; also for a shipped name with other keys, which would
    mislead."""
    content = checked_content(body)
    name = str(content["name"])
    if not NAME.fullmatch(name):
        raise UsageError("policy: name: expected letters, digits, '.', '_' and '-', at most 100; give it such a name")
    if name in policy_names() and digest(content) != digest(content_of(name)):
        raise UsageError(
            f"policy: name: {name} is a shipped policy with other keys; expected another name; add `name: …` to it"
        )
    return content
