"""`canary policy`: which policies judge the models of a registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from canary_mlflow.commands.shared import open_store, store_option
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.shown import echo, echo_lines

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.ledger.rows import Row


@click.group(epilog=EXIT_CODES)
def policy() -> None:
    """Show or set which policy judges which models. Administrators change it, in signed rows of the ledger."""


@policy.command("set", epilog=EXIT_CODES)
@click.argument("models", metavar="MODELS")
@click.argument("policy", metavar="NAME|PATH")
@click.option("--reason", required=True, help="Why; kept in the ledger.")
@store_option
def set_(models: str, policy: str, reason: str, tracking_uri: str | None) -> None:
    """Judge MODELS by a policy from now on. MODELS is a name, or a pattern (* any text, ? one character).

    The policy is a name in conf/gate/ or your own YAML file; a server is sent its keys, never a path. The most specific
    pattern counts: a whole name first, then the most characters, then the newest.
    """
    from canary_mlflow.policies import content_of
    from canary_mlflow.registry.policies.setting import own_content

    content = own_content(content_of(policy))
    row = set_there(open_store(tracking_uri), models, content, reason)
    facts = row.facts
    echo(
        f"Models like {facts['pattern']} are judged by policy {facts['policy']} from row {row.seq} of the ledger on "
        f"(digest {facts['policy_digest'][:12]}), by {facts['actor']}."
    )


@policy.command(epilog=EXIT_CODES)
@click.argument("model", required=False)
@click.option("--full", is_flag=True, help="All keys of MODEL's policy, as YAML.")
@store_option
def show(model: str | None, full: bool, tracking_uri: str | None) -> None:
    """Show which policy judges MODEL, and who set it. Without MODEL: the policies that are set."""
    import yaml

    from canary_mlflow.errors import UsageError
    from canary_mlflow.ledger.champions import line

    if full and model is None:
        raise UsageError("--full: found no MODEL; expected one, whose policy is shown; add it")
    governing, rows = found_there(open_store(tracking_uri), model)
    if governing is None:
        newest = {row.facts["pattern"]: row for row in rows}
        for row in newest.values():
            echo(line(row))
        if not rows:
            echo("No policy is set: models are judged by the shipped one of the tier in their first row.")
        return
    shipped = f"shipped; the first row about {model} in the ledger names it"
    where = f"row {governing['row']} of the ledger, for {governing['pattern']}" if governing["row"] else shipped
    if full:
        echo_lines(yaml.safe_dump(governing["content"], sort_keys=False))
        return
    people = governing["content"]["override"]["operators"]
    echo(f"{governing['policy']}  ({where})")
    echo(f"  digest     {governing['policy_digest']}")
    echo(f"  operators  {people} for an override of a BLOCK")
    for row in rows:
        if row.seq == governing["row"]:
            echo(f"  set by     {row.facts['actor']} at {row.facts['time'][:19]}: {row.facts['reason']}")


@policy.command(epilog=EXIT_CODES)
@click.argument("model", required=False)
@store_option
def history(model: str | None, tracking_uri: str | None) -> None:
    """List every policy that was ever set, oldest first. With MODEL: those whose pattern it matches."""
    from canary_mlflow.ledger.champions import line
    from canary_mlflow.ledger.policy_rows import matches, pattern_of
    from canary_mlflow.registry.remote import is_guarded_server

    client = open_store(tracking_uri)
    _, rows = found_there(client, model if is_guarded_server(client) else None)
    for row in rows:
        if model is None or matches(pattern_of(row), model):
            echo(line(row))


def set_there(client: MlflowClient, models: str, content: Mapping[str, Any], reason: str) -> Row:
    """Set the policy, through a server or in the database itself, and return the row that does it. Raises Refused."""
    from canary_mlflow.ledger.rows import Row
    from canary_mlflow.registry.actors import current_actor
    from canary_mlflow.registry.policies.setting import set_policy
    from canary_mlflow.registry.remote import ask, is_guarded_server

    if is_guarded_server(client):
        body = {"pattern": models, "policy": content["name"], "content": content, "reason": reason}
        answer = ask(client, "POST", "policies", body)
        return Row(**(answer or {})["row"])
    return set_policy(ledger_of(client), models, content, reason, current_actor())


def found_there(client: MlflowClient, model: str | None) -> tuple[dict[str, Any] | None, list[Row]]:
    """The policy in force for the model, if one is named, and the rows that set policies."""
    from canary_mlflow.ledger.rows import Row
    from canary_mlflow.registry.policies.in_force import in_force
    from canary_mlflow.registry.remote import ask, is_guarded_server

    if is_guarded_server(client):
        answer = ask(client, "GET", "policies" + (f"?model={quote(model, safe='')}" if model else "")) or {}
        return answer.get("in_force"), [Row(**plain) for plain in answer.get("rows", ())]
    guard = ledger_of(client)
    return in_force(client, guard, model).to_dict() if model else None, guard.policies()


def ledger_of(client: MlflowClient) -> Any:
    """The guarded store. Raises UsageError for a registry without a ledger."""
    from canary_mlflow.errors import UsageError
    from canary_mlflow.registry.guard_client import guard_of
    from canary_mlflow.tracking.stores.places import without_password

    guard = guard_of(client)
    if guard is None:
        raise UsageError(
            f"{without_password(client.tracking_uri)}: this registry keeps no ledger, so no policy can be set; "
            "expected SQLite, PostgreSQL or a server with --app-name canary-auth"
        )
    return guard
