"""`canary gate` and `canary compare`: versions and runs compared with each other."""

from __future__ import annotations

import click

from canary_mlflow.commands.shared import (
    full_option,
    json_option,
    launcher_option,
    policy_option,
    print_decision,
    store_option,
)
from canary_mlflow.edge import EXIT_CODES, unwinding
from canary_mlflow.shown import say


@click.command(epilog=EXIT_CODES)
@click.argument("model")
@click.argument("version")
@policy_option
@click.option("--top-up", is_flag=True, help="Make the missing runs, look by look, until they decide.")
@launcher_option
@click.option("--dry-run", is_flag=True, help="Judge, but write nothing, move nothing, make no runs.")
@click.option(
    "--promote",
    is_flag=True,
    envvar="CANARY_PROMOTE",
    show_envvar=True,
    help="A PASS also replaces a champion newer than VERSION.",
)
@full_option
@json_option
@store_option
@click.pass_context
def gate(
    ctx: click.Context,
    model: str,
    version: str,
    policy: str | None,
    top_up: bool,
    launcher: str,
    dry_run: bool,
    promote: bool,
    full: bool,
    as_json: bool,
    tracking_uri: str | None,
) -> None:
    """Judge VERSION of MODEL against the champion. A PASS replaces an older champion.

    Without --promote, a version older than the champion is only looked at again.

    --top-up follows the policy's plan of looks: it adds runs to the version's session through MLflow Projects until the
    verdict is PASS or BLOCK, or no affordable number would decide. With --dry-run it says what would be made.
    """
    if not dry_run:
        ctx.with_resource(unwinding())
    from canary_mlflow.api import gate as judge_version

    decision = judge_version(
        model,
        version,
        policy=policy or None,  # MLproject passes an empty one if none is named
        dry_run=dry_run,
        top_up=top_up,
        promote=promote or None,
        launcher=launcher,
        tracking_uri=tracking_uri,
        say=say,
    )
    print_decision(decision, as_json, full=full)
    ctx.exit(decision.exit_code)


@click.command(epilog=EXIT_CODES)
@click.argument("baseline")
@click.argument("candidate")
@policy_option
@click.option("--exit-code", is_flag=True, help="Exit with the verdict's code instead of 0.")
@full_option
@json_option
@store_option
@click.pass_context
def compare(
    ctx: click.Context,
    baseline: str,
    candidate: str,
    policy: str | None,
    exit_code: bool,
    full: bool,
    as_json: bool,
    tracking_uri: str | None,
) -> None:
    """Compare CANDIDATE with BASELINE; read-only.

    Each is a run id, a session id, MODEL/VERSION, MODEL@champion or models:/MODEL/VERSION. Exits with 0 whatever the
    comparison shows, unless --exit-code is given.
    """
    from canary_mlflow.api import compare as compare_sides

    decision = compare_sides(baseline, candidate, policy=policy, tracking_uri=tracking_uri)
    print_decision(decision, as_json, full=full)
    ctx.exit(decision.exit_code if exit_code else 0)
