"""`canary evals`: results of benchmarks, as lm-eval, Inspect, NeMo Evaluator or a script wrote them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from canary_mlflow.commands.shared import full_option, json_option, open_store, print_decision, print_json, store_option
from canary_mlflow.edge import EXIT_CODES
from canary_mlflow.errors import UsageError
from canary_mlflow.shown import echo_lines, say, visible

if TYPE_CHECKING:
    from canary_mlflow.evals.drafts import GroupOf
    from canary_mlflow.evals.reading import Results

group_option = click.option(
    "--group", metavar="PATH", help="What items share, as a path in their records: doc.passage, metadata.article."
)


@click.group()
def evals() -> None:
    """Judge results of benchmarks item by item."""


@evals.command(epilog=EXIT_CODES)
@click.argument("version", metavar="MODEL/VERSION")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@group_option
@click.option(
    "--weights", type=click.Path(path_type=Path), metavar="FOLDER", help="What was evaluated: the sealed files."
)
@click.option("--withdraw", metavar="ROW|RUN", help="Instead: count this evaluation no more. Every verdict says so.")
@click.option("--reason", default="", help="Why; it is kept.")
@store_option
def add(
    version: str, paths: tuple[Path, ...], group: str | None, weights: Path | None, withdraw: str | None, reason: str,
    tracking_uri: str | None,
) -> None:  # fmt: skip
    """Add results to a version, for the gate to judge.

    PATHS are as for compare. They replace nothing: what is added later is a repeat. Reads the version's own policy for
    the groups of items.
    """
    from canary_mlflow import api
    from canary_mlflow.registry.evaluations import version_named
    from canary_mlflow.registry.evaluations import withdraw as take_back

    if (withdraw is None) == (not paths):
        raise UsageError("evals add: expected paths of results, or --withdraw with an evaluation; give one of them")
    if withdraw is not None:
        client = open_store(tracking_uri)
        take_back(client, version_named(client, version), withdraw, reason)
        say(f"{version}: evaluation {withdraw} does not count any more")
        return
    run = api.add_evals(version, *paths, group=group, weights=weights, tracking_uri=tracking_uri)
    say(f"{version}: evaluated, in run {run}; canary gate judges it")


@evals.command(epilog=EXIT_CODES)
@click.argument("baseline")
@click.argument("candidate")
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
@store_option
@click.pass_context
def compare(
    ctx: click.Context, baseline: str, candidate: str, policy: str | None, margin: float | None, group: str | None,
    full: bool, as_json: bool, tracking_uri: str | None,
) -> None:  # fmt: skip
    """Judge CANDIDATE's results against BASELINE's, item by item.

    Each is MODEL/VERSION, or a file or folder of lm-eval (results_*.json with samples_*.jsonl), Inspect (.eval, .json),
    NeMo Evaluator, or JSONL or CSV with a row per item: id, score. Subfolders seed0, seed1 … hold one training seed
    each: then the recipe is judged, not these weights. Writes nothing.
    """
    from canary_mlflow.evals.comparing import FEW, MANY, compare_results, groups_of, policy_with_evals

    if policy is not None and margin is not None:
        raise UsageError(
            "evals compare: found --policy and --margin; expected one of them; a policy states its margins"
        )
    rules = policy_with_evals(policy)
    left, right = (side_of(text, groups_of(rules, group), tracking_uri) for text in (baseline, candidate))
    decision = compare_results(left, right, (baseline, candidate), rules, margin, MANY if full else FEW)
    print_decision(decision, as_json, full=full)
    ctx.exit(decision.exit_code)


@evals.command()
@click.argument("side", metavar="PATH|MODEL/VERSION")
@group_option
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout.")
@store_option
def show(side: str, group: str | None, as_json: bool, tracking_uri: str | None) -> None:
    """Show what a path or a version has: scores, items, groups, and what must agree for a comparison."""
    from canary_mlflow.reports.evals import side_dict, side_lines

    found = side_of(side, lambda _: group, tracking_uri)
    if as_json:
        print_json("evals", side_dict(found.tables))
        return
    echo_lines("\n".join(visible(line) for line in side_lines(found.tables)))


def side_of(text: str, group_of: GroupOf, tracking_uri: str | None) -> Results:
    """What a path holds, or what was added to a version. Raises UsageError."""
    if Path(text).exists() or not re.fullmatch(r".+(/[1-9][0-9]*|@[^/]+)", text):
        from canary_mlflow.evals.reading import read_results

        return read_results(Path(text), group_of)
    from canary_mlflow.registry.backends import registry_of
    from canary_mlflow.registry.evaluations import known_of, version_named

    client = open_store(tracking_uri)
    found = known_of(registry_of(client), version_named(client, text)).results
    if not found.tables:
        raise UsageError(f"{text}: no evaluation of it; expected one; canary evals add {text} PATH")
    return found
