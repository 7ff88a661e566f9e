"""`canary run`, `plan`, `profile` and `check-reward`: commands that start a process of the training stack."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict

import click

from canary_mlflow.commands.shared import open_store, print_json, store_option
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.module_runner import module_command
from canary_mlflow.shown import echo, say


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog=EXIT_CODES,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OVERRIDES]...")
@store_option
@click.pass_context
def run(ctx: click.Context, arguments: tuple[str, ...], tracking_uri: str | None) -> None:
    """Train, record, register and gate. The same as `python -m training`, whatever folders are here.

    Takes Hydra's overrides, for example: canary run tier=smoke algo=sft seed=7
    """
    from canary_mlflow.installation import require_training_stack

    if set(arguments) & {"-h", "--help"}:
        click.echo(ctx.get_help())
        click.echo("\nAll configuration keys: canary run --cfg job")
        return
    require_training_stack()
    if tracking_uri:
        os.environ["MLFLOW_TRACKING_URI"] = tracking_uri
    sys.stdout.flush()
    # Replacing this process passes signals, progress bar and exit code through untouched.
    os.execv(sys.executable, [*module_command("canary_mlflow.training"), *arguments])


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


@click.command(epilog=EXIT_CODES)
@click.argument("subject", metavar="RUN|SESSION|VERSION")
@click.option("--again", is_flag=True, help="Profile again, even where a profile is there.")
@click.option("--full", is_flag=True, help="Every operator and module that was kept.")
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout.")
@store_option
@click.pass_context
def profile(
    ctx: click.Context,
    subject: str,
    again: bool,
    full: bool,
    as_json: bool,
    tracking_uri: str | None,
) -> None:
    """Show what a step spends its time on, and the champion's.

    Trains the same configuration again for a few steps under torch's profiler, in a separate run that is never
    evidence. Shows phases, operators, modules and memory, and keeps the trace, which opens in Perfetto. If there is
    already a profile, shows that one.
    """
    from canary_mlflow.registry.artifacts import find_profile, find_profile_target
    from canary_mlflow.reports.profile import lines

    client = open_store(tracking_uri)
    named = find_profile_target(client, subject)
    found = None if again else find_profile(client, named.runs, named.champion)
    if found is None:
        code = make(client.tracking_uri, named.runs[0] if named.runs else subject)
        if code:
            ctx.exit(code)
        found = find_profile(client, named.runs, named.champion)
        assert found is not None
    if as_json:
        print_json("profile", asdict(found))
        return
    for line in lines(found, full=full):
        echo(line)


def make(store: str, run_id: str) -> int:
    """Profile a run's configuration in a separate process. Returns its exit code."""
    from canary_mlflow.installation import require_training_stack

    require_training_stack()
    say(f"profiling a few steps of run {run_id}'s configuration")
    words = [*module_command("canary_mlflow.training.profile_run"), "--like", run_id, "--store", store]
    done = subprocess.run(words, check=False, capture_output=True, text=True, errors="replace")
    if done.returncode:  # libraries and the profiler are verbose: say in one line what went wrong
        said = [line for line in done.stderr.splitlines() if line.startswith("canary:")]
        for line in said or done.stderr.splitlines()[-20:]:
            echo(line, err=True)
    return done.returncode


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
    from canary_mlflow.installation import require_training_stack

    require_training_stack()
    words = [*module_command("canary_mlflow.training.reward_checks"), path, f"--data={data}", f"--rows={rows}"]
    ctx.exit(subprocess.run([*words, *(["--json"] if as_json else [])], check=False).returncode)
