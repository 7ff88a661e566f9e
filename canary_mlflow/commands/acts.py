"""`canary bless`, `override`, `rollback`, `adopt`, `accept-facts`: acts that a person answers for by name and
reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from canary_mlflow.commands.shared import open_store, policy_option, print_json, store_option
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.shown import echo

if TYPE_CHECKING:
    from canary_mlflow.registry.acts.act import Act, Request

json_option = click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout; the sentence goes to stderr.")
weights_option = click.option(
    "--without-weights", is_flag=True, help="Even if nobody can load it: weights and seal are not checked."
)
reason_option = click.option("--reason", required=True, help="Why; kept in the ledger and on the version.")


@click.command(epilog=EXIT_CODES)
@click.argument("model")
@click.argument("version")
@reason_option
@click.option("--despite-block", is_flag=True, help="Even if the gate has blocked it.")
@weights_option
@json_option
@store_option
def bless(
    model: str,
    version: str,
    reason: str,
    despite_block: bool,
    without_weights: bool,
    as_json: bool,
    tracking_uri: str | None,
) -> None:
    """Make VERSION of MODEL champion by hand. Your name and reason stay on record."""
    from canary_mlflow.registry.acts.by_hand import bless as make_champion

    act = make_champion(
        open_store(tracking_uri), model, version, reason, despite_block=despite_block, without_weights=without_weights
    )
    done(act, as_json, "")


@click.command(epilog=EXIT_CODES)
@click.argument("model")
@click.argument("version")
@reason_option
@click.option("--alias", default="champion", show_default=True, help="The guarded alias to give.")
@weights_option
@json_option
@store_option
def override(
    model: str,
    version: str,
    reason: str,
    alias: str,
    without_weights: bool,
    as_json: bool,
    tracking_uri: str | None,
) -> None:
    """Give VERSION of MODEL a guarded alias over any verdict. Your name and reason stay on record.

    Over a BLOCK the policy may ask for two people: the first call records who asks and ends with 3; the same command
    from another person carries it out.
    """
    from canary_mlflow.registry.acts.by_hand import override as give

    act = give(open_store(tracking_uri), model, version, reason, alias=alias, without_weights=without_weights)
    done(act, as_json)


@click.command(epilog=EXIT_CODES)
@click.argument("model")
@reason_option
@json_option
@store_option
def rollback(model: str, reason: str, as_json: bool, tracking_uri: str | None) -> None:
    """Return MODEL to the champion before this one. Your name and reason stay on record."""
    from canary_mlflow.registry.acts.rollback import rollback as go_back

    show(go_back(open_store(tracking_uri), model, reason), as_json)


@click.command(epilog=EXIT_CODES)
@click.argument("model")
@reason_option
@click.option("--alias", default="champion", show_default=True, help="The guarded alias that it holds.")
@json_option
@store_option
def adopt(model: str, reason: str, alias: str, as_json: bool, tracking_uri: str | None) -> None:
    """Enter the champion of MODEL into the ledger as it is. Your name and reason stay on record; no alias moves.

    From its first row on, a model is guarded.
    """
    from canary_mlflow.registry.acts.rollback import adopt as take

    show(take(open_store(tracking_uri), model, reason, alias=alias), as_json)


def done(what: Act | Request, as_json: bool, where: str = ", in the ledger") -> None:
    """Print what was done; or what was asked for, and then exit with the code for INCONCLUSIVE."""
    from canary_mlflow.gates.model.verdict import Outcome
    from canary_mlflow.registry.acts.act import Request
    from canary_mlflow.reports import decision

    if not isinstance(what, Request):
        show(what, as_json, where)
        return
    if as_json:
        print_json("request", what.to_dict())
    echo(
        f"{what.who} asks to override the BLOCK of version {what.version} of {what.model} (row {what.row} of the "
        "ledger). Nothing has moved: the policy asks for two people. Somebody else now runs the same command.",
        err=as_json,
    )
    click.get_current_context().exit(
        decision.EXIT_CODES[Outcome.INCONCLUSIVE]
    )  # nothing has moved, but nothing is wrong


@click.command("accept-facts", epilog=EXIT_CODES)
@click.argument("model")
@click.argument("version")
@reason_option
@policy_option
@json_option
@store_option
def accept_facts(
    model: str, version: str, reason: str, policy: str | None, as_json: bool, tracking_uri: str | None
) -> None:
    """Accept VERSION's facts that differ from the champion's. Only these values; your name and reason stay on record.

    No alias moves: the next `canary gate` judges the rest, and the same difference no longer blocks.
    """
    from canary_mlflow.policies import rules_for
    from canary_mlflow.registry.acts.accepting import accept_facts as accept
    from canary_mlflow.registry.acts.accepting import in_words
    from canary_mlflow.registry.versions import find_version
    from canary_mlflow.resolve import tier_of

    client = open_store(tracking_uri)
    rules = rules_for(
        policy, "" if policy else tier_of(client, find_version(client, model, version)), f"{model}/{version}"
    )
    act = accept(client, model, version, reason, rules)
    if as_json:
        print_json("acceptance", act.to_dict())
    echo(in_words(act), err=as_json)


def show(act: Act, as_json: bool, where: str = ", in the ledger") -> None:
    """Print what was done. A blessing also works on a registry without a ledger."""
    if as_json:
        print_json("act", act.to_dict())
    before = f" now (before: version {act.champion_before})" if act.champion_before else " now"
    if act.champion_before == act.version:
        before = " as before"
    asked = f", asked for by {act.asked_by}" if act.asked_by else ""
    without = "; its weights were not checked" if act.without_weights else ""
    echo(
        f"Version {act.version} of {act.model} is {act.alias}{before}: {act.word} by {act.who}{asked}{where}{without}.",
        err=as_json,
    )
    if act.evidence:
        echo(f"Its evidence does not hold, and is in the row as it is: {act.evidence}", err=as_json)
