"""The canary command: a group with one line per command. Everything heavy is imported inside the commands."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module

if __name__ == "__main__":  # before importing anything that another environment's Python may lack
    from canary_mlflow.interpreter import CORE, settle

    settle(CORE)

import click

from canary_mlflow.edge import EXIT_CODES, OUTSIDE, Edge
from canary_mlflow.loading import collect_seldom
from canary_mlflow.shown import replace_unknown

COMMANDS = (
    "run", "plan", "session", "register", "gate", "ab", "bisect", "upgrade", "compare", "judge", "watch", "replay",
    "report", "ci", "ui", "import", "calibrate", "power", "bless", "override", "rollback", "adopt", "accept-facts",
    "diff", "samples", "profile", "verify-weights", "check-reward", "policy", "audit", "prune", "keys", "db",
    "deliver", "env", "doctor", "schema", "evals",
)  # fmt: skip
ELSEWHERE = {
    "register": "session", "compare": "gate", "bless": "acts", "override": "acts", "rollback": "acts", "adopt": "acts",
    "accept-facts": "acts", "verify-weights": "weights", "doctor": "env",
}  # fmt: skip
"""Commands that are in another command's module."""


class Commands(Edge):
    """Loads a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = "import_" if cmd_name == "import" else cmd_name.replace("-", "_")
        module = import_module(f"canary_mlflow.commands.{ELSEWHERE.get(cmd_name, name)}")
        found: click.Command = getattr(module, name)
        return found


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


@click.group(cls=Commands, name="canary", epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
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
