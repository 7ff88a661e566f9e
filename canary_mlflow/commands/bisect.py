"""`canary bisect`: which commit of a team's own history it is."""

from __future__ import annotations

from pathlib import Path

import click

from canary_mlflow.commands.shared import print_json
from canary_mlflow.edge import EXIT_CODES, unwinding
from canary_mlflow.errors import CanaryError, UsageError
from canary_mlflow.shown import echo, say
from canary_mlflow.tracking.signals import Terminated

ABOVE_ZERO = click.FloatRange(0, min_open=True)


@click.command(epilog=EXIT_CODES)
@click.argument("good", metavar="GOOD")
@click.argument("bad", metavar="BAD")
@click.argument("overrides", nargs=-1, metavar="[OVERRIDES]...")
@click.option("--command", metavar="COMMAND", help="Your own training, with CanaryCallback or LoopRun in it.")
@click.option("--path", default="", metavar="PATH", help="Only the commits that change it.")
@click.option("--policy", metavar="NAME|PATH", help="Without it: the tier of the overrides, else smoke.")
@click.option(
    "--chance", default=0.02, show_default=True, type=click.FloatRange(0, 0.5, min_open=True), metavar="SHARE",
    help="Of a wrong answer in the whole search.",
)  # fmt: skip
@click.option("--minutes", type=ABOVE_ZERO, metavar="MINUTES", help="After which no training begins.")
@click.option(
    "--timeout", default=60.0, show_default=True, type=ABOVE_ZERO, metavar="MINUTES", help="For one training."
)
@click.option("--work", metavar="DIR", help="Where results are kept. Without it: canary-bisect in git's own folder.")
@click.option("--dry-run", is_flag=True, help="Say how many trainings and minutes it takes.")
@click.option("--json", "as_json", is_flag=True, help="JSON alone on stdout; the report goes to stderr.")
@click.pass_context
def bisect(
    ctx: click.Context,
    good: str,
    bad: str,
    overrides: tuple[str, ...],
    command: str | None,
    path: str,
    policy: str | None,
    chance: float,
    minutes: float | None,
    timeout: float,
    work: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Name the commit since which a training is worse: the first, after GOOD and up to BAD, that shows what BAD shows.

    It trains both ends, in turns, until the gate finds what blocks BAD beside GOOD. Then it trains ever fewer commits
    between, by first parents; one that does not train is skipped. What has noise is trained again, up to five times
    beside GOOD, instead of guessed. Results are kept: the same command resumes where it was stopped.

    Without --command it trains a canary by each commit's own code; OVERRIDES are Hydra's, as for `canary run`. COMMAND
    finds its seed in CANARY_SEED and where {seed} stands in it.
    """
    from canary_mlflow.bisecting.bisection import Search, planned
    from canary_mlflow.bisecting.commits import Repository
    from canary_mlflow.bisecting.trying import Trainer, canary_command
    from canary_mlflow.commands.ab import tier_of
    from canary_mlflow.policies import load_policy
    from canary_mlflow.reports.bisect import lines, plan_lines
    from canary_mlflow.upgrading.probing import AGAIN, words_of

    if command is not None and overrides:
        raise UsageError(f"found --command and {overrides[0]!r}; expected one of them: OVERRIDES are the canary's")
    if command is not None:
        words_of(command, here=True)
    rules = load_policy(policy or (tier_of(overrides) if command is None else "smoke"))
    repository = Repository.here()
    start, commits = repository.commits(good, bad, path)
    notes = repository.notes(start, commits[-1])
    folder = Path(work).absolute() if work else repository.private / "canary-bisect"
    trainer = Trainer(
        command=canary_command(overrides) if command is None else command, work=folder, minutes=timeout,
        repository=repository, canary=command is None, say=say,
    )  # fmt: skip
    if dry_run:
        known = [found.seconds / 60 for commit in (start, commits[-1]) if (found := trainer.known(commit, 0))]
        least, most = planned(len(commits), rules)
        if as_json:
            print_json("bisect-plan", {"commits": len(commits), "least": least, "most": most,
                                       "minutes": max(known, default=None), "notes": notes})  # fmt: skip
        for line in plan_lines(len(commits), least, most, max(known, default=None), notes):
            echo(line, err=as_json)
        return
    ctx.with_resource(unwinding())
    say(f"{len(commits)} commits; results are kept in {folder}: if it is stopped, {AGAIN}")
    try:
        with repository.searching(folder):
            search = Search(
                trainer=trainer, good=start, commits=commits, policy=rules, chance=chance, say=say, minutes=minutes,
                notes=notes,
            )  # fmt: skip
            found = search.carry_out()
    except (KeyboardInterrupt, Terminated) as error:
        raise CanaryError(f"{str(error) or 'interrupted'}; {AGAIN}") from error
    if as_json:
        print_json("bisect", found.to_dict())
    for line in lines(found):
        echo(line, err=as_json)
    ctx.exit(found.exit_code)
