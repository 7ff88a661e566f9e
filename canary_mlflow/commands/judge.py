"""`canary judge` and `replay`: trainings that are files, without MLflow and without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from canary_mlflow.commands.shared import ManyWords, full_option, json_option, print_decision
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.shown import echo_lines, json_text, say, shown


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


REPLAY_CODES = """\b
Exit codes:
  0  every file is healthy or warned
  1  at least one is critical or failed
  2  a file could not be read or holds nothing to watch (the others are judged all the same), or wrong use
  3  none of these, but at least one has too few rows to judge, or neither loss nor reward
"""
LOST = ("critical", "failed")
SHOWN = 12  # warnings of one file in the report for people


@click.command(epilog=REPLAY_CODES)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--policy", default="default", metavar="NAME|PATH", help="A name of conf/watch/ or a YAML file. Default: default."
)
@click.option("--algo", default="", metavar="NAME", help="sft, dpo, grpo … Default: from the columns of each file.")
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout: a list with one object per file.")
@click.pass_context
def replay(ctx: click.Context, files: tuple[str, ...], policy: str, algo: str, as_json: bool) -> None:
    """Run the watch over finished trainings.

    FILE is as for `canary judge`. For each run it says healthy, warned, critical, failed or unknown, and what the watch
    would have reported at which step.
    """
    from canary_mlflow.api import replay as replay_one
    from canary_mlflow.errors import UsageError
    from canary_mlflow.files.events import runs_below
    from canary_mlflow.policies import load_watch

    load_watch(policy)  # a wrong name is not a file's fault
    found: list[dict[str, Any]] = []
    for file in map(str, runs_below(map(Path, files))):
        try:
            result = replay_one(file, policy=policy, algo=algo).to_dict()
        except UsageError as error:
            line = " ".join(str(error).split())
            found.append({"file": file, "verdict": None, "warnings": [], "error": line})
            say(line)
            continue
        found.append(result)
        if not as_json:
            echo_lines(text(shown(result)))
    if as_json:
        click.echo(json_text(found))
    ctx.exit(exit_code(found))


def exit_code(results: list[dict[str, Any]]) -> int:
    """2 if a file could not be read, else 1 if a run was lost, else 3 if one is unknown, else 0."""
    if any("error" in result for result in results):
        return 2
    if any(result["verdict"] in LOST for result in results):
        return 1
    return 3 if any(result["verdict"] == "unknown" for result in results) else 0


def text(result: Mapping[str, Any]) -> str:
    """One file's result for people."""
    lines = [f"{result['verdict']:<9} {result['file']}  ({result['rows']:,} rows to step {result['last_step']:,})"]
    lines += [f"  note: {note}" for note in result["notes"]]
    explained = set()
    for warning in result["warnings"][:SHOWN]:
        lines.append(
            f"  {warning['level']:<9} step {warning['step']:<8} {warning['stream']}: {warning['seen']} "
            f"[{warning['rule']}]"
        )
        if (warning["rule"], warning["stream"]) not in explained:
            explained.add((warning["rule"], warning["stream"]))
            lines.append(f"            {warning['meaning']}. Try: {warning['advice']}.")
    if len(result["warnings"]) > SHOWN:
        lines.append(f"  and {len(result['warnings']) - SHOWN} more; --json has them all")
    return "\n".join(lines)
