"""`canary profile`: where a step's time and memory go."""

from __future__ import annotations

import subprocess
from dataclasses import asdict

import click

from canary_mlflow.commands.shared import open_store, print_json, store_option
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.module_runner import module_command
from canary_mlflow.shown import echo, say


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
    """Show what a step spends its time on, next to the champion's.

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
