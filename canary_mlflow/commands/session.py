"""`canary session` and `canary register`: make trainings of a user's own scripts a session, and a session a version."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from canary_mlflow import tags
from canary_mlflow.commands.shared import ManyWords, full_option, open_store, print_decision, store_option
from canary_mlflow.edge import EXIT_CODES, OUTSIDE, unwinding
from canary_mlflow.errors import UsageError
from canary_mlflow.shown import echo, say

weights_option = click.option(
    "--weights",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="What trainer.save_model() of the last seed wrote. Without it the version is evidence only.",
)


@click.group(epilog=EXIT_CODES)
def session() -> None:
    """Turn the trainings of your own scripts into one session.

    \b
    canary session run my-model --seeds 0 1 2 -- python train.py --seed {seed}

    does all at once. The same step by step:

    \b
    export CANARY_SESSION=$(canary session start my-model)
    for seed in 0 1 2; do python train.py --seed $seed; done
    canary session end
    canary register $CANARY_SESSION --weights FOLDER
    """


@session.command("run", cls=ManyWords, epilog=EXIT_CODES)
@click.argument("model")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--seeds", multiple=True, metavar="N…", help="Without it, COMMAND runs once, and goes over seeds itself.")
@click.option("--policy", default="smoke", show_default=True, metavar="NAME|PATH", help="The policy to judge by.")
@click.option("--experiment", metavar="NAME", help="Without it: MLFLOW_EXPERIMENT_NAME, else canary.")
@weights_option
@full_option
@store_option
@click.pass_context
def run(
    ctx: click.Context,
    model: str,
    command: tuple[str, ...],
    seeds: tuple[str, ...],
    policy: str,
    experiment: str | None,
    weights: Path | None,
    full: bool,
    tracking_uri: str | None,
) -> None:
    """Run COMMAND for each seed in a session of MODEL, register the session as a version, and gate it.

    Each seed has a process of its own, which finds its seed in CANARY_SEED and where {seed} stands in COMMAND; its
    trainer must use it. The first one that does not end well, or with which something blocks where the policy fails
    fast, ends the session: the runs are judged, and no version is made.
    """
    from canary_mlflow import api
    from canary_mlflow.analysis.reading import publish_study
    from canary_mlflow.errors import BrokeOff
    from canary_mlflow.launching.fail_fast import FailFast
    from canary_mlflow.launching.seeds import refuse_no_command, seeds_of, train
    from canary_mlflow.policies import load_policy, policy_names
    from canary_mlflow.registry.judging.unregistered import gate_session
    from canary_mlflow.registry.sessions.own import session as opened_session

    numbers = seeds_of(seeds)
    load_policy(policy)  # one that is none is refused before anything is trained
    refuse_no_command(command)
    ctx.with_resource(unwinding())
    shipped = policy in policy_names()
    try:
        with opened_session(
            model, policy=policy if shipped else "smoke", experiment=experiment, tracking_uri=tracking_uri
        ) as opened:
            client = open_store(opened.store)
            early = FailFast.of(client, model, opened.session_id, policy)
            train(client, opened.session_id, command, numbers, early.certain)
    except BrokeOff as error:
        say(str(error))
        decision = gate_session(client, model, opened.session_id, early.policy)
        print_decision(decision, full=full)
        publish_study(client, decision)
        ctx.exit(decision.exit_code or OUTSIDE)
    version = api.register(opened.session_id, weights=weights, tracking_uri=opened.store)
    decision = api.gate(model, version, policy=None if shipped else policy, tracking_uri=opened.store)
    print_decision(decision, full=full)
    ctx.exit(decision.exit_code)


@session.command("start", epilog=EXIT_CODES)
@click.argument("model")
@click.option("--policy", default="smoke", show_default=True, metavar="NAME", help="The shipped policy to judge it by.")
@click.option("--experiment", metavar="NAME", help="Without it: MLFLOW_EXPERIMENT_NAME, else canary.")
@store_option
def begin(model: str, policy: str, experiment: str | None, tracking_uri: str | None) -> None:
    """Open a session for MODEL and print its id alone on stdout.

    Every training with CanaryCallback() joins it while CANARY_SESSION holds that id.
    """
    import mlflow

    from canary_mlflow.registry.sessions.own import refuse_second, start
    from canary_mlflow.tracking.joining import usual_experiment
    from canary_mlflow.tracking.stores.store import prepare_store

    refuse_second()
    client = prepare_store(tracking_uri)
    mlflow.set_tracking_uri(client.tracking_uri)  # whose experiment the scripts' own runs will be in
    home = usual_experiment(client, experiment, None)
    echo(start(client, model, policy=policy, experiment=home).session_id)


@session.command("end", epilog=EXIT_CODES)
@click.argument("session_id", metavar="[SESSION]", envvar="CANARY_SESSION", required=False)
@store_option
def finish(session_id: str | None, tracking_uri: str | None) -> None:
    """End SESSION, by default the one in CANARY_SESSION. A run still going on counts as broken off."""
    from canary_mlflow.registry.sessions.own import end
    from canary_mlflow.tracking.experiment import VARIABLE
    from canary_mlflow.tracking.joining import named

    if not session_id:
        raise UsageError(
            f"session end: found none, and {VARIABLE} is not set; expected the id that canary session start printed; "
            "add it to the command"
        )
    client = open_store(tracking_uri)
    named(client, session_id, "session end")
    say(f"{end(client, session_id)}; unset {VARIABLE}")


@session.command("add", epilog=EXIT_CODES)
@click.argument("session_id", metavar="SESSION")
@click.argument("model", required=False)
@store_option
def add(session_id: str, model: str | None, tracking_uri: str | None) -> None:
    """Add runs that joined SESSION after its end to the ledger. Nothing is judged before that.

    MODEL is the one that the session was started for, unless given here.
    """
    from canary_mlflow.registry.sessions.rows import Word, write
    from canary_mlflow.tracking.stores.session import active_run

    client = open_store(tracking_uri)
    name = model or active_run(client, session_id).data.tags.get(tags.MODEL_NAME, "")
    if not name:
        raise UsageError(f"session {session_id}: it names no model; expected the name of one; add it to the command")
    write(client, session_id, name, Word.ENDED)
    say(f"the ledger names every run of session {session_id} that has ended")


@click.command(epilog=EXIT_CODES)
@click.argument("session_id", metavar="SESSION")
@click.argument("model", required=False)
@weights_option
@click.option(
    "--evals", multiple=True, type=click.Path(path_type=Path), metavar="PATH", help="As PATH of canary evals add."
)
@store_option
def register(
    session_id: str, model: str | None, weights: Path | None, evals: tuple[Path, ...], tracking_uri: str | None
) -> None:
    """Make a version of MODEL with SESSION as its evidence. `canary gate` judges it.

    MODEL is the one that the session was started for, unless given here.
    """
    from canary_mlflow.registry.sessions.registering import flaws_of, register_session

    client = open_store(tracking_uri)
    name, version = register_session(client, session_id, model, weights, evals)
    kept = "" if weights else " (evidence only, without weights)"
    flaws = flaws_of(client, session_id)
    say(f"{name} version {version}{kept}; {f'{flaws}; ' if flaws else ''}canary gate {shlex.quote(name)} {version}")
    echo(version)
