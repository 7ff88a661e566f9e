"""`canary check-reward`: is this a reward model, before a policy is trained with it?"""

from __future__ import annotations

import subprocess

import click

from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.module_runner import module_command


@click.command("check-reward", epilog=EXIT_CODES)
@click.argument("path")
@click.option("--data", default="preferences", show_default=True, metavar="NAME|FILE", help="Pairs to check it with.")
@click.option("--rows", default=256, show_default=True, type=click.IntRange(min=8), help="At most this many pairs.")
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout; the report goes to stderr.")
@click.pass_context
def check_reward(ctx: click.Context, path: str, data: str, rows: int, as_json: bool) -> None:
    """Check a reward model on pairs of answers. PATH is a folder or a hub id of a sequence classifier.

    It reports on the score head, pad token and weights; how many pairs the model orders as people did, with its
    interval; whether a random head would do as well. It ends with 1 if the model is not usable, with 3 if the pairs do
    not tell. --data is the embedded data, or a JSONL file with prompt, chosen and rejected, each a text.
    """
    words = [*module_command("canary_mlflow.training.check_reward"), path, f"--data={data}", f"--rows={rows}"]
    ctx.exit(subprocess.run([*words, *(["--json"] if as_json else [])], check=False).returncode)
