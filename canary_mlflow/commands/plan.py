"""`canary plan`: what a configuration needs of memory, before anything is loaded."""

from __future__ import annotations

import subprocess
import sys

import click

from canary_mlflow.edge import EXIT_CODES


@click.command(context_settings={"ignore_unknown_options": True}, epilog=EXIT_CODES)
@click.argument("overrides", nargs=-1, metavar="[OVERRIDES]...")
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout, sizes in bytes.")
@click.pass_context
def plan(ctx: click.Context, overrides: tuple[str, ...], as_json: bool) -> None:
    """Say what memory a configuration needs before it is run. OVERRIDES are Hydra's, as for `canary run`.

    Weights, reference, gradients, optimizer, activations, logits and the cache of drawn answers, counted on tensors
    that have shapes and no numbers: no weight is read. It ends with 2 where the device it sees has less, and names
    keys that take less. Rows count as long as the configuration lets them be.
    """
    from canary_mlflow.installation import require_training_stack

    require_training_stack()
    words = [sys.executable, "-m", "training.planning", *(["--json"] if as_json else []), *overrides]
    ctx.exit(subprocess.run(words, check=False).returncode)
