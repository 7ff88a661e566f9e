"""`canary upgrade`: what other packages would change, before they are installed."""

from __future__ import annotations

from pathlib import Path

import click

from canary_mlflow.commands.shared import print_json
from canary_mlflow.edge import EXIT_CODES, unwinding
from canary_mlflow.errors import CanaryError, UsageError
from canary_mlflow.shown import echo, say
from canary_mlflow.tracking.signals import Terminated

MINUTES_A_PROBE = 1.5  # an environment from a warm cache, and a few steps


@click.command(epilog=EXIT_CODES)
@click.argument("overrides", nargs=-1, metavar="[OVERRIDES]...")
@click.option(
    "--to", multiple=True, metavar="PKG==VER|FILE", help="What to move to; also requirements.txt, pylock.toml, uv.lock."
)
@click.option("--from", "from_", metavar="FILE", help="The present packages. Without it: those of this Python.")
@click.option("--command", metavar="COMMAND", help="Your own training, with CanaryCallback in it.")
@click.option("--no-bisect", is_flag=True, help="Only compare both ends; do not look for the package.")
@click.option("--work", default=".canary-upgrade", show_default=True, metavar="DIR", help="Where results are kept.")
@click.option(
    "--timeout", "minutes", default=30.0, show_default=True, metavar="MINUTES", type=click.FloatRange(0, min_open=True),
    help="For one training.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would move, with how many environments and minutes.")
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout; the report goes to stderr.")
@click.pass_context
def upgrade(
    ctx: click.Context,
    overrides: tuple[str, ...],
    to: tuple[str, ...],
    from_: str | None,
    command: str | None,
    no_bisect: bool,
    work: str,
    minutes: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Try other packages, and name the one that breaks.

    It runs the same short training with the present packages and with the requested ones, and compares them exactly.
    If that blocks, it bisects packages, releases and changed defaults. Results are kept: the same command resumes where
    it was stopped.

    Without --command it trains the facts tier of a canary; OVERRIDES are Hydra's, as for `canary run`: algo=sft
    """
    from canary_mlflow.reports.upgrade import lines, planned
    from canary_mlflow.upgrading import environments, pins
    from canary_mlflow.upgrading.probing import AGAIN, Prober, canary_command, words_of
    from canary_mlflow.upgrading.upgrade import Trial, plan
    from canary_mlflow.upgrading.uv import located

    if not to:
        raise UsageError("upgrade: expected --to PKG==VERSION or --to FILE; for example --to trl==1.16.0")
    if command is not None and overrides:
        raise UsageError(f"found --command and {overrides[0]!r}; expected one of them: OVERRIDES are the canary's")
    if command is not None:
        words_of(command, here=from_ is None)
    asked = pins.read(to)
    located()
    ctx.with_resource(unwinding())
    at_hand = pins.here() if from_ is None else pins.completed(pins.read([from_]))
    found = plan(at_hand, asked, whole=any(Path(word).is_file() for word in to))
    there = sum(map(environments.is_there, (found.before, found.now))) if found.changes else 0
    if dry_run:
        if as_json:
            moves = [vars(one) for one in found.changes]
            ends = 2 if found.changes else 0
            takes = {"environments": ends, "there": there, "minutes": ends * MINUTES_A_PROBE}
            print_json("upgrade-plan", {"changes": moves, **takes})
        for line in planned(found, MINUTES_A_PROBE, there):
            echo(line, err=as_json)
        return
    prober = Prober(
        command=canary_command(overrides) if command is None else command, work=Path(work).absolute(), minutes=minutes
    )
    if found.changes:
        say(f"results are kept in {work}: if it is stopped, {AGAIN}")
    try:
        result = Trial(plan=found, prober=prober, say=say).carry_out(bisect=not no_bisect)
    except (KeyboardInterrupt, Terminated) as error:
        raise CanaryError(f"{str(error) or 'interrupted'}; {AGAIN}") from error
    if as_json:
        print_json("upgrade", result.to_dict())
    for line in lines(result):
        echo(line, err=as_json)
    ctx.exit(result.exit_code)
