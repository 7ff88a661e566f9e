"""`canary evals`: results of benchmarks, as lm-eval, Inspect, NeMo Evaluator or a script wrote them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from canary_mlflow.commands.shared import full_option, json_option, print_json
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.errors import UsageError
from canary_mlflow.shown import echo_lines, visible

group_option = click.option(
    "--group", metavar="PATH", help="What items share, as a path in their records: doc.passage, metadata.article."
)


@click.group()
def evals() -> None:
    """Judge results of benchmarks item by item."""


@evals.command(epilog=EXIT_CODES)
@click.argument("baseline", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option("--policy", metavar="NAME|PATH", help="A policy with a section evals.")
@click.option(
    "--margin",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Instead: the largest loss tolerated, 0.02 for 2 points. Of several benchmarks their mean's; each may lose "
    "three times as much.",
)
@group_option
@full_option
@json_option
@click.pass_context
def compare(
    ctx: click.Context,
    baseline: Path,
    candidate: Path,
    policy: str | None,
    margin: float | None,
    group: str | None,
    full: bool,
    as_json: bool,
) -> None:
    """Judge CANDIDATE's results against BASELINE's, item by item.

    Each is a file or folder of lm-eval (results_*.json with samples_*.jsonl), Inspect (.eval, .json), NeMo Evaluator,
    or JSONL or CSV with a row per item: id, score. Subfolders seed0, seed1 … hold one training seed each: then the
    recipe is judged, not these weights. Writes nothing.
    """
    from canary_mlflow.evals.comparing import compare_results
    from canary_mlflow.reports.evals import compared
    from canary_mlflow.reports.study import verdict_json
    from canary_mlflow.reports.terminal import print_on

    if policy is not None and margin is not None:
        raise UsageError(
            "evals compare: found --policy and --margin; expected one of them; a policy states its margins"
        )
    found = compare_results(baseline, candidate, policy, margin=margin, group=group)
    if as_json:
        click.echo(verdict_json(found.decision), nl=False)
    print_on(sys.stderr if as_json else sys.stdout, lambda width: compared(found, width, full=full))
    ctx.exit(found.decision.exit_code)


@evals.command()
@click.argument("path", type=click.Path(path_type=Path))
@group_option
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout.")
def show(path: Path, group: str | None, as_json: bool) -> None:
    """Show what PATH holds: scores, items, groups, and what must agree for a comparison."""
    from canary_mlflow.evals.reading import read_results
    from canary_mlflow.reports.evals import side_dict, side_lines

    found = read_results(path, lambda _: group)
    if as_json:
        print_json("evals", side_dict(found.tables))
        return
    echo_lines("\n".join(visible(line) for line in side_lines(found.tables)))
