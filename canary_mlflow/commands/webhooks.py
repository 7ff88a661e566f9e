"""`canary webhooks`: who is told about verdicts and promotions, and whether the messages arrive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from canary_mlflow.commands.shared import json_option, open_store, print_json, store_option
from canary_mlflow.edge import EXIT_CODES, OUTSIDE
from canary_mlflow.errors import CanaryError, UsageError
from canary_mlflow.shown import echo

if TYPE_CHECKING:
    from canary_mlflow.notify.webhooks import Webhook


@click.group(epilog=EXIT_CODES)
def webhooks() -> None:
    """Show and test who hears of verdicts, promotions, lost runs. The webhooks of the file that CANARY_WEBHOOKS names,
    and MLflow's own; also for rollbacks and failed audits."""


@webhooks.command("list", epilog=EXIT_CODES)
@json_option
@store_option
def list_(as_json: bool, tracking_uri: str | None) -> None:
    """List both kinds, without their secrets."""
    from canary_mlflow.notify.session import configured

    ours = [described(one) for one in configured()]
    theirs = list(of_mlflow(tracking_uri))
    if as_json:
        print_json("webhooks", {"webhooks": ours, "mlflow": theirs})
        return
    for title, found in (("CANARY_WEBHOOKS", ours), ("MLflow", theirs)):
        echo(f"{title}: {len(found) or 'none'}")
        for one in found:
            signed = {True: "signed", False: "not signed", None: "signed if it has a secret"}[one["signed"]]
            echo(f"  {one['name']}  {one['url']}  {one['format']}, {signed}, models {one['models']}")
            echo(f"    {', '.join(one['events'])}")


@webhooks.command(epilog=EXIT_CODES)
@click.argument("name", required=False)
@click.pass_context
def test(ctx: click.Context, name: str | None) -> None:
    """Send a message to webhook NAME of the file, or to all. Says who took it; exits with 4 if any did not.

    MLflow tests its own: MlflowClient().test_webhook(ID).
    """
    from canary_mlflow.notify.delivery import attempt
    from canary_mlflow.notify.events import trial
    from canary_mlflow.notify.session import configured
    from canary_mlflow.notify.webhooks import FILE

    found = [one for one in configured() if name in (None, one.name)]
    if not found:
        what = f"no webhook called {name!r}" if name else "no webhook"
        where = f"in {os.environ[FILE]}" if os.environ.get(FILE) else f"here: {FILE} is not set, and names the file"
        raise UsageError(f"{what} {where}; expected one; canary webhooks list shows them")
    failed = False
    for webhook in found:
        problem, _ = attempt(webhook, trial())
        failed = failed or bool(problem)
        echo(f"{webhook.name}: {problem or 'taken'}")
    ctx.exit(OUTSIDE if failed else 0)


def described(webhook: Webhook) -> dict[str, Any]:
    """The description of one of our own webhooks."""
    return {
        "name": webhook.name,
        "url": webhook.place,
        "events": list(webhook.events),
        "models": webhook.models,
        "format": webhook.format,
        "signed": bool(webhook.secret),
    }


def of_mlflow(uri: str | None) -> Iterator[dict[str, Any]]:
    """The webhooks registered with MLflow; none without a store, or with one that has no webhooks."""
    from mlflow.exceptions import MlflowException

    from canary_mlflow.notify.webhooks import place_of

    try:
        client = open_store(uri)
        found = client.list_webhooks(max_results=1000)
    except (CanaryError, MlflowException, NotImplementedError):
        return
    for one in found:
        yield {
            "name": one.name,
            "url": place_of(one.url),
            "events": [str(event) for event in one.events],
            "models": "*",
            "format": "json",
            "signed": None,  # MLflow does not tell
        }
