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

GROUPS = {
    "Train": ("run", "plan", "session", "ab", "import", "profile", "check-reward"),
    "Judge": (
        "register",
        "gate",
        "compare",
        "judge",
        "evals",
        "replay",
        "upgrade",
        "bisect",
        "accept-facts",
        "power",
        "calibrate",
    ),
    "Look": ("ui", "watch", "report", "diff", "samples", "ci"),
    "Decide by hand": ("bless", "override", "rollback", "adopt"),
    "Guard": ("audit", "policy", "keys", "verify-weights", "prune", "deliver"),
    "Set up": ("doctor", "env", "db", "schema"),
}
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
ELSEWHERE = {
    "run": "canaries", "plan": "canaries", "profile": "canaries", "check-reward": "canaries", "register": "session",
    "compare": "gate", "replay": "judge", "samples": "report", "diff": "report", "bless": "acts", "override": "acts",
    "rollback": "acts", "adopt": "acts", "accept-facts": "acts", "verify-weights": "prune", "doctor": "env",
    "schema": "env",
}  # fmt: skip
"""Commands that are in another command's module."""


class Commands(Edge):
    """Loads a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in GROUPS.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            room = formatter.width - 6 - max(map(len, COMMANDS))
            rows = [(name, one.get_short_help_str(room)) for name, one in found if one is not None and not one.hidden]
            with formatter.section(title):
                formatter.write_dl(rows, col_max=max(map(len, COMMANDS)))

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
