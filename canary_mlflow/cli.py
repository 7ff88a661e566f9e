"""The canary command: a group with one line per command. Everything heavy is imported inside the commands."""

from __future__ import annotations

import os
import sys
import traceback

if __name__ == "__main__":  # before importing anything that another environment's Python may lack
    from canary_mlflow.interpreter import CORE, settle

    settle(CORE)

import click

from canary_mlflow.commands.ab import ab
from canary_mlflow.commands.acts import accept_facts, adopt, bless, override, rollback
from canary_mlflow.commands.audit import audit
from canary_mlflow.commands.calibrate import calibrate
from canary_mlflow.commands.check_reward import check_reward
from canary_mlflow.commands.ci import ci
from canary_mlflow.commands.db import db
from canary_mlflow.commands.deliver import deliver
from canary_mlflow.commands.diff import diff
from canary_mlflow.commands.env import doctor, env
from canary_mlflow.commands.gate import compare, gate
from canary_mlflow.commands.import_ import import_
from canary_mlflow.commands.judge import judge
from canary_mlflow.commands.keys import keys
from canary_mlflow.commands.plan import plan
from canary_mlflow.commands.policy import policy
from canary_mlflow.commands.power import power
from canary_mlflow.commands.profile import profile
from canary_mlflow.commands.prune import prune
from canary_mlflow.commands.replay import replay
from canary_mlflow.commands.report import report
from canary_mlflow.commands.run import run
from canary_mlflow.commands.samples import samples
from canary_mlflow.commands.schema import schema
from canary_mlflow.commands.session import register, session
from canary_mlflow.commands.ui import ui
from canary_mlflow.commands.upgrade import upgrade
from canary_mlflow.commands.watch import watch
from canary_mlflow.commands.webhooks import webhooks
from canary_mlflow.commands.weights import verify_weights
from canary_mlflow.edge import EXIT_CODES, OUTSIDE, Edge
from canary_mlflow.loading import collect_seldom
from canary_mlflow.shown import replace_unknown

COMMANDS = (
    run, plan, session, register, gate, ab, upgrade, compare, judge, watch, replay, report, ci, ui, import_,
    calibrate, power, bless, override, rollback, adopt, accept_facts, diff, samples, profile, verify_weights,
    check_reward, policy, audit, prune, keys, webhooks, db, deliver, env, doctor, schema,
)  # fmt: skip


def show_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Print the installed version; a checkout that is not installed has none."""
    if not wanted or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("canary-mlflow")
    except PackageNotFoundError:
        found = "(not installed)"
    click.echo(f"canary {found}")
    ctx.exit()


@click.group(cls=Edge, name="canary", epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version.",
)
def canary() -> None:
    """Train canaries, judge what they record, guard the champion of MLflow's model registry."""


for command in COMMANDS:
    canary.add_command(command)


def main() -> None:
    """The entry point of the command. A bug exits with 4: Python's own 1 would mean BLOCK."""
    collect_seldom()
    replace_unknown()
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # for one file
    try:
        canary(prog_name="canary")
    except Exception:  # noqa: BLE001  # the outermost frame: shown whole, with the right exit code
        traceback.print_exc()
        sys.exit(OUTSIDE)


if __name__ == "__main__":
    main()
