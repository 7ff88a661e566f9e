"""The policy that a person asks for, and the one that a registry has in force."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import UsageError
from canary_mlflow.ledger.canonical import digest
from canary_mlflow.policies import content_of, load_policy, policy_names
from canary_mlflow.registry.guard_client import guard_of
from canary_mlflow.registry.policies.in_force import InForce, in_force, set_for
from canary_mlflow.registry.remote import in_force_there, is_guarded_server
from gates import Policy, policy_to_dict

if TYPE_CHECKING:
    from mlflow import MlflowClient


def policy_for(client: MlflowClient, model: str, version: str, asked: str | Path | Mapping[str, Any] | None) -> Policy:
    """The policy to judge a version by: the one that was asked for, else the one in force for its model.

    Raises UsageError for a policy other than the one that a server has or the ledger sets, and as `in_force` does.
    """
    governing = governing_policy(client, model)
    if asked is None:
        return (governing or in_force(client, guard_of(client), model)).policy
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


def governing_policy(client: MlflowClient, model: str) -> InForce | None:
    """The policy that judges a model whatever the caller asks for: a server's, or one that the ledger sets; None if the
    caller's own counts."""
    if is_guarded_server(client):
        return in_force_there(client, model)
    guard = guard_of(client)
    return None if guard is None else set_for(guard, model)


def file_of(asked: str | Path | Mapping[str, Any] | None) -> str:
    """The path of the policy file that was asked for; empty for a shipped name and for keys."""
    if asked is None or isinstance(asked, Mapping) or str(asked) in policy_names():
        return ""
    return str(asked)
