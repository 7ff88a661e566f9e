"""Finds the guard of the registry that a client uses, and hands verdicts and acts to it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import TYPE_CHECKING

from canary_mlflow.errors import BaselineMoved, Refused
from canary_mlflow.ledger.canonical import digest
from canary_mlflow.ledger.rows import Kind
from canary_mlflow.ledger.uris import guarded_uri, is_guarded, plain_uri
from canary_mlflow.registry.judging.looks import FACT as LOOK
from canary_mlflow.registry.judging.records import verdict_tags
from canary_mlflow.registry.locks import registry_uri
from canary_mlflow.registry.plugin import guarded_store
from canary_mlflow.registry.policies.used import FACT
from canary_mlflow.registry.versions import ANCHOR
from canary_mlflow.reports.decision import holds_to_list
from gates.model.verdict import verdict_to_dict

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.ledger.rows import Row
    from canary_mlflow.registry.guard.binding import Binding
    from canary_mlflow.registry.guard.promotion import Order, Standing
    from canary_mlflow.registry.guard.store import GuardedStore
    from canary_mlflow.registry.judging.looks import Taken
    from canary_mlflow.registry.policies.used import Used
    from canary_mlflow.reports.decision import Decision

SOFTWARE = ("canary-mlflow", "mlflow", "numpy", "scipy")


def guard_of(client: MlflowClient) -> GuardedStore | None:
    """The guard of the database behind the client's registry, whichever store the client itself goes through.

    None for a server, which guards its own registry, and for a database without our triggers.
    """
    uri = guarded_uri(plain_uri(registry_uri(client)))
    return guarded_store(plain_uri(uri), str(client.tracking_uri)) if is_guarded(uri) else None


def record(guard: GuardedStore, order: Order) -> Row:
    """Record and promote in one transaction. Raises BaselineMoved if somebody was faster, Refused otherwise."""
    from mlflow.exceptions import MlflowException

    try:
        return guard.carry_out(order)
    except MlflowException as error:
        if error.error_code == "RESOURCE_CONFLICT":
            raise BaselineMoved(str(error.message)) from error
        if error.error_code == "PERMISSION_DENIED":
            raise Refused(str(error.message)) from error
        raise


def verdict_order(
    decision: Decision,
    binding: Binding,
    against: Standing | None,
    actor: str,
    by: Used | None = None,
    look: Taken | None = None,
) -> Order:
    """The order that the gate gives after a verdict. `by`: the policy that led to it. `look`: which look of the plan it
    was."""
    from canary_mlflow.registry.guard.promotion import Order

    assert decision.version is not None
    verdict = decision.verdict
    return Order(
        kind=Kind.BOOTSTRAP if decision.bootstrapped else Kind.VERDICT,
        model=decision.model,
        version=decision.version,
        word=decision.word,
        binding=binding,
        actor=actor,
        reason=verdict.reason,
        grants=decision.grants,
        moves=decision.moves,
        pins=(ANCHOR,) if decision.bootstrapped and decision.moves else (),
        judged_against=against,
        facts={
            "verdict": verdict_to_dict(verdict),
            "policy_digest": digest(verdict_to_dict(verdict)["policy"]),
            **({FACT: by.to_dict()} if by else {}),
            "session": decision.session_id,
            **({LOOK: str(look)} if look else {}),
            "software": dict(software()),
            **({"held_back": holds_to_list(decision.holds)} if decision.holds else {}),
        },
        tags=verdict_tags(decision),
    )


@cache
def software() -> Mapping[str, str]:
    """What judged: the versions of the packages that take part in a verdict, of Python, and the machine."""
    found = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    for name in SOFTWARE:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a checkout on the path that is not installed
            found[name] = "not installed"
    return MappingProxyType(found)
