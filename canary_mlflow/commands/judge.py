"""`canary judge`: judges two sides given as plain files as the gate does, without MLflow and without torch."""

from __future__ import annotations

import click

from canary_mlflow.commands.shared import full_option, json_option, print_decision
from canary_mlflow.commands.words import ManyWords
from canary_mlflow.edge import EXIT_CODES


@click.command(cls=ManyWords, epilog=EXIT_CODES)
@click.option("--baseline", multiple=True, required=True, metavar="FILE…", help="Runs of the last good state.")
@click.option("--candidate", multiple=True, required=True, metavar="FILE…", help="Runs of the change.")
@click.option(
    "--policy",
    required=True,
    metavar="NAME|PATH",
    help="files (judges learning, not clocks), smoke, perf, nightly, or a YAML file.",
)
@click.option("--history", multiple=True, metavar="FILE…", help="Earlier runs, oldest first: how much runs differ.")
@full_option
@json_option
@click.pass_context
def judge(
    ctx: click.Context,
    baseline: tuple[str, ...],
    candidate: tuple[str, ...],
    policy: str,
    history: tuple[str, ...],
    full: bool,
    as_json: bool,
) -> None:
    """Judge CANDIDATE files against BASELINE files.

    One file is one run: JSONL or CSV with a row per step (step, step_time in seconds, loss, …), trainer_state.json, or
    a folder with TensorBoard's event files; a folder of such folders is several runs.
    What a run has only once (eval_loss, peak_memory, seed, completed, failure, workload, hardware) goes into a JSON of
    the same name next to it.
    """
    from canary_mlflow.api import judge as judge_files

    decision = judge_files(baseline, candidate, policy=policy, history=history)
    print_decision(decision, as_json, full=full)
    ctx.exit(decision.exit_code)
