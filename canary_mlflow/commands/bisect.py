"""`canary bisect`: which commit of a team's own history it is."""

from __future__ import annotations

import click

from canary_mlflow.commands.shared import print_json
from canary_mlflow.edge import EXIT_CODES, unwinding
from canary_mlflow.errors import CanaryError, UsageError
from canary_mlflow.shown import echo, say
from canary_mlflow.tracking.signals import Terminated

MINUTES = click.FloatRange(0, min_open=True)
SHARE = click.FloatRange(0, 0.5, min_open=True)


@click.command(epilog=EXIT_CODES)
@click.argument("good", metavar="GOOD")
@click.argument("bad", metavar="BAD")
@click.argument("overrides", nargs=-1, metavar="[OVERRIDES]...")
@click.option("--command", metavar="COMMAND", help="Your own training, with CanaryCallback or LoopRun in it.")
@click.option("--path", default="", metavar="PATH", help="Only the commits that change it.")
@click.option("--policy", metavar="NAME|PATH", help="Without it: the tier of the overrides, else smoke.")
@click.option("--chance", default=0.02, show_default=True, type=SHARE, metavar="P", help="Of any wrong answer.")
@click.option("--minutes", type=MINUTES, metavar="MINUTES", help="After which no training begins.")
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
    dry_run: bool,
    as_json: bool,
) -> None:
    """Name the commit that made a training worse.

    It is the first one, after GOOD and up to BAD, that shows what BAD shows. Both ends are trained, in turns, until
    the gate finds what blocks BAD beside GOOD. Then ever fewer commits between are, by first parents; one that does
    not train is skipped. What has noise is trained again with other seeds, until the commit is told from the one
    before it, instead of guessed.
    Results are kept: the same command resumes where it was stopped.

    Without --command it trains a canary by each commit's own code; OVERRIDES are Hydra's, as for `canary run`. COMMAND
    finds its seed in CANARY_SEED and where {seed} stands in it.
    """
    from filelock import FileLock, Timeout

    from canary_mlflow.bisecting.bisection import Search
    from canary_mlflow.bisecting.commits import Repository
    from canary_mlflow.bisecting.trying import Trainer, canary_command
    from canary_mlflow.commands.ab import tier_of
    from canary_mlflow.policies import load_policy
    from canary_mlflow.reports.bisect import lines, plan_line
    from canary_mlflow.upgrading.probing import AGAIN, words_of

    if command is not None and words_of(command, here=True) and overrides:
        raise UsageError(f"found --command and {overrides[0]!r}; expected one of them: OVERRIDES are the canary's")
    repository = Repository.here()
    start, commits = repository.commits(good, bad, path)
    tier, folder = tier_of(overrides), repository.private / "canary-bisect"
    ours = canary_command(overrides) if command is None else command
    trainer = Trainer(
        command=ours, work=folder, minutes=minutes or 24 * 60, repository=repository, canary=not command, say=say
    )
    rules = load_policy(policy or tier)
    search = Search(trainer=trainer, good=start, commits=commits, policy=rules, chance=chance, say=say, minutes=minutes)
    if dry_run:
        plan = search.planned()
        if as_json:
            print_json("bisect-plan", plan)
        echo(plan_line(**plan), err=as_json)
        return
    ctx.with_resource(unwinding())
    say(f"{len(commits)} commits; results are kept in {folder}: if it is stopped, {AGAIN}")
    if changed := repository.not_followed(start, commits[-1]):
        say(f"{changed} changed: each commit is trained with the packages at hand, and without submodules")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / "lock", timeout=0):
            result = search.carry_out()
    except Timeout as error:
        raise UsageError(f"another canary bisect is at work in {folder}; wait for its end") from error
    except (KeyboardInterrupt, Terminated) as error:
        raise CanaryError(f"{str(error) or 'interrupted'}; {AGAIN}") from error
    if as_json:
        print_json("bisect", result.to_dict())
    for line in lines(result):
        echo(line, err=as_json)
    ctx.exit(result.exit_code)
