"""`canary policy`: which policies judge the models of a registry."""

from __future__ import annotations

import click

from canary_mlflow.commands.shared import open_store, store_option
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.shown import echo, echo_lines


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
    from canary_mlflow.registry.actors import current_actor
    from canary_mlflow.registry.policies.asked import own_content, set_policy

    content = own_content(content_of(policy))
    row = set_policy(open_store(tracking_uri), models, content, reason, current_actor())
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

    from canary_mlflow.commands.audit import line
    from canary_mlflow.errors import UsageError
    from canary_mlflow.registry.backends import registry_of
    from canary_mlflow.registry.policies.asked import in_force, rows_of_policies

    if full and model is None:
        raise UsageError("--full: found no MODEL; expected one, whose policy is shown; add it")
    registry = registry_of(open_store(tracking_uri))
    rows = rows_of_policies(registry, model)
    if model is None:
        newest = {row.facts["pattern"]: row for row in rows}
        for row in newest.values():
            echo(line(row))
        if not rows:
            echo("No policy is set: models are judged by the shipped one of the tier in their first row.")
        return
    governing = in_force(registry, model).to_dict()
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
