"""Sets a policy for the models that match a pattern: one signed row, with a name and a reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import UsageError
from canary_mlflow.ledger import clock, table
from canary_mlflow.ledger.canonical import digest
from canary_mlflow.ledger.keys import key_folder, load_signer
from canary_mlflow.ledger.policy_rows import policy_record
from canary_mlflow.ledger.rows import Row
from canary_mlflow.ledger.writing import add, let_sign
from canary_mlflow.mlflow_internals import writing
from canary_mlflow.policies import checked_content, content_of, policy_names
from canary_mlflow.registry.actors import given, refuse_stranger

if TYPE_CHECKING:
    from canary_mlflow.registry.guard.guard import Guard

NAME = re.compile(r"[\w.\-]{1,100}", re.ASCII)


def set_policy(guard: Guard, pattern: str, content: Mapping[str, Any], reason: str, actor: str) -> Row:
    """Judge the models that match a pattern by this policy from now on. Raises UsageError, and Refused for somebody who
    is not among the operators, if any are named."""
    pattern = pattern.strip()
    if not pattern or len(pattern) > 256 or not pattern.isprintable():
        raise UsageError("the pattern of models: expected 1 to 256 characters, such as prod-* (* any text, ? one)")
    reason = given(reason, "why these models are to be judged so")
    refuse_stranger(guard.operators, actor, f"the policy of {pattern!r}")
    content = own_content(content)
    signer = load_signer(key_folder())
    with writing(guard) as session:
        table.lock(session)
        last = let_sign(session, signer, actor)
        times, workspace = clock.stamp(last), guard._get_active_workspace()
        record = policy_record(pattern, content, reason, actor, times, workspace)
        row = add(session, record, signer, last)
    return row


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
