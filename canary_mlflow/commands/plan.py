"""`canary plan`: how much memory a configuration needs, before anything is loaded."""

from __future__ import annotations

import subprocess

import click

from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.module_runner import module_command


@click.command(context_settings={"ignore_unknown_options": True}, epilog=EXIT_CODES)
@click.argument("overrides", nargs=-1, metavar="[OVERRIDES]...")
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout, sizes in bytes.")
@click.pass_context
def plan(ctx: click.Context, overrides: tuple[str, ...], as_json: bool) -> None:
    """Say what memory a configuration needs before it is run. OVERRIDES are Hydra's, as for `canary run`.

    Counts weights, reference, gradients, optimizer, activations, logits and the cache of drawn answers on tensors that
    have shapes but no values: no weight is read. Rows count at the full length that the configuration allows. Exits
    with 2 if the device has less memory, and names keys that would reduce the need.
    """
    from canary_mlflow.installation import require_training_stack

    require_training_stack()
    words = [*module_command("canary_mlflow.training.planning"), *(["--json"] if as_json else []), *overrides]
    ctx.exit(subprocess.run(words, check=False).returncode)
