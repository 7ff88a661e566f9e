"""`canary ab`: two revisions of the code, run in turn and judged in pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from canary_mlflow.commands.shared import (
    full_option,
    json_option,
    launcher_option,
    open_store,
    print_decision,
    print_json,
    store_option,
)
from canary_mlflow.edge import EXIT_CODES, unwinding
from canary_mlflow.errors import UsageError
from canary_mlflow.shown import echo, say

if TYPE_CHECKING:
    from canary_mlflow.gates.model.policy import Policy
    from canary_mlflow.launching.revisions import Revision

PLANNED = ("repeats", "register", "seed")


@click.command(epilog=EXIT_CODES)
@click.argument("overrides", nargs=-1, metavar="[OVERRIDES]...")
@click.option("--baseline", metavar="REF", help="A commit, branch or tag of this checkout.")
@click.option("--candidate", metavar="REF", help="Another, to be judged.")
@click.option("--policy", metavar="NAME|PATH", help="Without it: the tier of the overrides, else smoke.")
@click.option("--facts", is_flag=True, help="Exact facts alone, one run a side: tier=facts.")
@click.option("--continue", "begun", metavar="SESSION", help="Resume one that decided nothing or was stopped.")
@click.option("--pairs", type=click.IntRange(min=1), metavar="N", help="With --continue: judge it at N pairs in all.")
@launcher_option
@click.option("--dry-run", is_flag=True, help="Say what would run.")
@full_option
@json_option
@store_option
@click.pass_context
def ab(
    ctx: click.Context,
    overrides: tuple[str, ...],
    baseline: str | None,
    candidate: str | None,
    policy: str | None,
    facts: bool,
    begun: str | None,
    pairs: int | None,
    launcher: str,
    dry_run: bool,
    full: bool,
    as_json: bool,
    tracking_uri: str | None,
) -> None:
    """Run two revisions in turn and judge them in pairs. They alternate (b c c b) with the same seeds.

    Each is checked out in its own worktree. MLflow Projects launches the runs, look by look of the policy's plan, until
    they decide. No version is registered and no champion moves.
    OVERRIDES are Hydra's, as for `canary run`: algo=sft tier=perf

    --continue keeps the commits, overrides and policy that the session began with; its runs and looks count.
    """
    ctx.with_resource(unwinding())
    from canary_mlflow.analysis.reading import publish_study
    from canary_mlflow.installation import require_training_stack
    from canary_mlflow.launching import continuing, revisions
    from canary_mlflow.launching.cluster import runner_at
    from canary_mlflow.launching.sources import project_folder
    from canary_mlflow.policies import load_policy
    from canary_mlflow.tracking.stores.store import prepare_store

    overrides = (*overrides, "tier=facts") if facts else overrides
    given = {"--baseline": baseline, "--candidate": candidate, "--policy": policy, "OVERRIDES": " ".join(overrides)}
    going_on: revisions.Trial | None = None
    until: int | None = None
    if begun is None:
        refs, tier = _both(given, pairs), tier_of(overrides)
        rules, project = load_policy(policy or tier), project_folder()
        sides = {side: revisions.resolve(project, name, side) for side, name in zip(revisions.SIDES, refs, strict=True)}
    else:
        _refuse(given)
        going_on = continuing.recorded(open_store(tracking_uri), begun)
        until = continuing.pairs_wanted(going_on, pairs)
        rules, project = going_on.policy, project_folder()
        sides, overrides = going_on.revisions, going_on.overrides
    require_training_stack()
    with revisions.checked_out(project, sides, overrides) as sources:
        if dry_run:
            _plan(rules, sides, until, as_json)
            return
        with (
            revisions.open_trial(prepare_store(tracking_uri), sources, sides, overrides, rules)
            if going_on is None
            else continuing.taken_up(going_on, sources)
        ) as trial:
            say(f"session {trial.parent}; if it is stopped: canary ab --continue {trial.parent}")
            asked = partial(revisions.composed, sources["candidate"], trial.overrides)
            with runner_at(launcher, trial.client, asked, say) as runner:
                verdict = revisions.carry_out(trial, runner, say, until)
            decision = revisions.report(trial, verdict)
    print_decision(decision, as_json, full=full)
    publish_study(trial.client, decision)
    ctx.exit(decision.exit_code)


def _both(given: Mapping[str, str | None], pairs: int | None) -> tuple[str, str]:
    """The two revisions of a new comparison."""
    baseline, candidate = given["--baseline"], given["--candidate"]
    if baseline is None or candidate is None:
        raise UsageError("canary ab: expected --baseline REF and --candidate REF; or --continue SESSION")
    if pairs is not None:
        raise UsageError("--pairs: a new comparison follows the policy's plan of looks; expected it with --continue")
    return baseline, candidate


def _refuse(given: Mapping[str, str | None]) -> None:
    """Raise UsageError for options that a continued comparison already has."""
    if found := [name for name, value in given.items() if value]:
        raise UsageError(
            f"--continue: found {' and '.join(found)}; expected none: revisions, overrides and policy stay those that "
            "it began with"
        )


def _plan(rules: Policy, sides: Mapping[str, Revision], until: int | None, as_json: bool) -> None:
    """Print what would be run: the numbers of runs at which the plan may end, or the requested one."""
    from canary_mlflow.launching.revisions import first_pairs

    first = first_pairs(rules)
    pairs = [first, *(runs for runs in rules.looks.runs if runs > first)] if until is None else [until]
    counts = [2 * each for each in pairs]
    if as_json:
        commits = {side: {"name": each.name, "commit": each.commit} for side, each in sides.items()}
        print_json("revisions-plan", {**commits, "policy": rules.name, "runs": counts})
        return
    until_then = ", until they decide" if until is None else " in all"
    echo(
        f"{sides['candidate']} against {sides['baseline']}, policy {rules.name}: would make "
        f"{' or '.join(map(str, counts))} runs, in the order b c c b{until_then}."
    )


def tier_of(overrides: Sequence[str]) -> str:
    """The tier that the overrides name, else smoke; of several the last, as in Hydra. Raises UsageError for an unknown
    tier, which the runs would notice only in their worktrees, and for words that the runs would not use."""
    from canary_mlflow.policies import option_names

    pairs = [(word.lstrip("+~").partition("=")[0], word) for word in overrides]
    for key, word in pairs:
        if key.partition(".")[0] == "gate":
            raise UsageError(f"found {word!r}; a comparison of revisions is judged by --policy NAME|PATH; write it so")
        if key.partition(".")[0] == "launcher":
            raise UsageError(
                f"found {word!r}; where the runs of a comparison are made is said by --launcher; write it so"
            )
        if key in PLANNED:
            raise UsageError(
                f"found {word!r}; the plan of looks says which runs are made, and none is registered; leave it out"
            )
    tier = next((word.partition("=")[2] for key, word in reversed(pairs) if key == "tier"), "smoke")
    valid = option_names("tier")
    if tier not in valid:
        raise UsageError(f"unknown tier {tier!r}; expected one of {', '.join(valid)}; write tier={valid[-1]}")
    return tier
