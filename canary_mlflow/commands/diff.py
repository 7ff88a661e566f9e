"""`canary diff`: what differs exactly between two runs, sessions or versions."""

from __future__ import annotations

import click

from canary_mlflow.commands.shared import print_json, store_option
from canary_mlflow.errors import UsageError
from canary_mlflow.shown import echo

EXIT_CODES = """\b
Exit codes:
  0  nothing differs, or by rounding alone
  1  something differs
  2  wrong use or configuration
  3  not comparable: other work, other hardware, or facts that are not recorded
  4  something outside failed (store, disk, machine, signal)
"""


@click.command(epilog=EXIT_CODES)
@click.argument("a")
@click.argument("b")
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout; the report goes to stderr.")
@click.option(
    "--budget", multiple=True, metavar="COUNT=SHARE", help="A limit on a step's work: flops=0.1, traffic, allocated."
)
@store_option
@click.pass_context
def diff(ctx: click.Context, a: str, b: str, as_json: bool, budget: tuple[str, ...], tracking_uri: str | None) -> None:
    """List the exact differences between A and B. Facts, configuration, code, packages, data, hardware; judges nothing.

    Each is a run id, a session id, MODEL/VERSION, MODEL@champion or models:/MODEL/VERSION. First-step facts are
    compared between runs of one seed. With --budget it ends with 1 if a step does more work than that.
    """
    from canary_mlflow.api import diff as compare_exactly
    from canary_mlflow.reports.diff import OTHER, lines

    limits = dict(map(_limit, budget))
    found = compare_exactly(a, b, tracking_uri=tracking_uri)
    if as_json:
        print_json("diff", found.to_dict())
    for line in lines(found):
        echo(line, err=as_json)
    over = found.over(limits)
    for line in over:
        echo(f"  Over the budget: {line}", err=as_json)
    ctx.exit(OTHER if over else found.exit_code)


def _limit(word: str) -> tuple[str, float]:
    from canary_mlflow.gates.facts.work import COUNTS

    name, _, share = word.partition("=")
    if name not in COUNTS or not share.replace(".", "", 1).isdigit():
        raise UsageError(f"--budget: found {word!r}; expected COUNT=SHARE, such as flops=0.1; {', '.join(COUNTS)}")
    return name, float(share)
