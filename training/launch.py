"""One session: a fresh process per seed, then the registry, the gate and the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow import MlflowClient

from canary_mlflow.analysis.publishing import publish_study
from canary_mlflow.commands.shared import print_decision
from canary_mlflow.errors import CanaryError
from canary_mlflow.launching.plan import Plan
from canary_mlflow.notify.outcome import notify_outcome
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.evidence import champion_runs
from canary_mlflow.registry.gatekeeper import gate
from canary_mlflow.registry.policy_asked import governing_policy
from canary_mlflow.registry.session_gate import gate_change, gate_session
from canary_mlflow.registry.session_rows import SEEDS_TAG, begin, record_runs
from canary_mlflow.registry.versions import Weights, register_version
from canary_mlflow.reports.decision import Decision
from canary_mlflow.shown import say
from canary_mlflow.tracking.exceptions import raised_tags
from canary_mlflow.tracking.failures import UNSTABLE
from canary_mlflow.tracking.leftovers import clear, held
from canary_mlflow.tracking.session import (
    NOTHING,
    close_run,
    create_child_run,
    describe_run,
    finish_session,
    get_run,
    open_session,
)
from canary_mlflow.tracking.store import prepare_store
from training.ahead import first_runs
from training.checks import runs_of
from training.config import CanaryConfig
from training.errors import SetupError
from training.in_session import maker_in_session
from training.naming import choose_model_name, run_name, run_params, run_tags, session_name, session_tags
from training.plain import to_plain
from training.process import Job, Result, Worker, run
from training.recheck import recheck

if TYPE_CHECKING:
    from training.crews import Crew

UNRECORDED = (
    "it trained to its end, but its store did not take everything; expected one that answers and has room; fix that, "
    "then canary deliver sends the rest"
)


def run_session(config: CanaryConfig, scratch: Path, begun: Iterator[Worker] | None = None) -> int:
    """Train every seed, register the version, gate it against the champion. Returns the exit code. `begun`: the
    processes of its first runs, if they load already.

    The data is prepared in the first run's process before the session is opened: data that cannot be trained on, or
    work that cannot be compared with the champion, raises UsageError before anything is recorded.
    """
    from training.crews import crew_for

    with crew_for(config, scratch, first_runs(config), begun) as crew:
        client = prepare_store(config.tracking.uri)
        prepared = crew.prepared
        if prepared.refusal:
            raise SetupError(prepared.refusal)
        model = choose_model_name(client, config, prepared.workload)
        if prepared.note:
            say(f"note: {prepared.note}")
        clear(client)
        seeds = " ".join(str(config.seed + index) for index in range(first_runs(config)))
        tags = {**session_tags(config, model), SEEDS_TAG: seeds}
        session = open_session(client, config.tracking.experiment, session_name(config), tags)
        begin(client, session, model)
        with held(client, session):
            return _train_and_judge(client, session, model, config, crew, scratch)


def _train_and_judge(
    client: MlflowClient, session: str, model: str, config: CanaryConfig, crew: Crew, scratch: Path
) -> int:
    code, recorded = 4, False
    try:
        champion = champion_runs(client, model)
        results = crew.train(client, session, config, first_runs(config), champion)
        if not champion:
            results += _remaining_runs(client, session, config, results, scratch)
        again, lost = recheck(client, session, model, config, results[-1], scratch)
        results += again
        record_runs(client, session, model)
        recorded = True
        ended = max(code_of(result) for result in results)
        if ended in (0, 1, 3):
            decision = judge(client, model, session, config, results, scratch, lost)
            print_decision(decision, full=config.tracking.full_report)
            notify_outcome(decision, config.tier.name)
            publish_study(client, decision)
            ended = decision.exit_code
        else:
            _say_broken(results)
        code = ended  # only now: anything that breaks earlier leaves a FAILED session
    except CanaryError as error:
        code = error.exit_code
        raise
    finally:
        if not recorded:  # the session broke off, which is also an end to record
            record_runs(client, session, model)
        finish_session(client, session, "FINISHED" if code == 0 else "FAILED")
    return code


def _remaining_runs(
    client: MlflowClient, session: str, config: CanaryConfig, results: list[Result], scratch: Path
) -> list[Result]:
    """The runs that a session with top-up has not made yet, if its model has no champion: a first version has nothing
    to be compared with, and becomes the baseline of all that follow."""
    from training.crews import crew_for

    missing = runs_of(config) - len(results)
    if results[-1].failure or missing <= 0:
        return []
    later = replace(config, seed=config.seed + len(results))
    with crew_for(later, scratch, missing) as crew:
        return crew.train(client, session, later, missing)


def train_runs(
    client: MlflowClient,
    session: str,
    config: CanaryConfig,
    crew: Iterator[Worker],
    repeats: int,
    champion: Sequence[str] = (),
    tags: Mapping[str, str] = NOTHING,
) -> list[Result]:
    """Make the runs of one session, one after the other; stop at the first that breaks off.

    `champion`: ids of the runs with which the watch compares each run while it goes on. `tags`: for each run.
    """
    results: list[Result] = []
    for index in range(repeats):
        seeded = replace(config, seed=config.seed + index)
        place = f"{index + 1}/{repeats}"
        results.append(train_one(client, session, seeded, next(crew), place, champion, tags=tags))
        if results[-1].failure:
            break
    return results


def train_one(
    client: MlflowClient,
    session: str,
    config: CanaryConfig,
    worker: Worker,
    place: str,
    champion: Sequence[str] = (),
    *,
    role: str = "run",
    run_id: str | None = None,
    tags: Mapping[str, str] = NOTHING,
    alone: bool = True,
) -> Result:
    """Make one run, recorded as FINISHED or FAILED whatever happens to its process or to this one.

    `run_id`: an existing MLflow run to record into. `tags`: additional tags. `alone`: only this process holds the
    session open; ignored if `run_id` is given.
    """
    plain = to_plain(config)
    params = run_params(config)
    own = {**run_tags(config), "canary.role": role, **tags}
    alone = alone and run_id is None  # for runs that are added to a session, another process holds it open
    if run_id is None:
        run_id = create_child_run(client, session, run_name(config), own, params)
    else:
        describe_run(client, run_id, run_name(config), own, params)
    job = Job(
        config=plain,
        run_id=run_id,
        tracking_uri=client.tracking_uri,
        label=f"{config.algo.name} seed {config.seed} ({place})",
        keep_weights=place.startswith("1/"),  # a version has one set of weights; the other seeds are evidence
        champion_runs=list(champion),
        role=role,
        alone_in_session=alone,
    )
    try:
        result = run(worker, job, config.tier.timeout_minutes * 60)
    except BaseException:
        close_run(client, run_id, "interrupted", "the session was stopped")
        raise
    if not result.failure and not is_recorded(client, run_id):
        result = replace(result, failure="error", reason=UNRECORDED)
    # The run has recorded its end itself, unless its process was killed.
    close_run(client, run_id, result.failure, result.reason, raised_tags(result.raised))
    return result


def is_recorded(client: MlflowClient, run_id: str) -> bool:
    """Whether the store has a run's end, which is the last thing that a run sends."""
    return "canary.rows_lost" in get_run(client, run_id).data.tags


def judge(
    client: MlflowClient,
    model: str,
    session: str,
    config: CanaryConfig,
    results: list[Result],
    scratch: Path,
    lost: str = "",
) -> Decision:
    """Register what the session trained and gate it; a session that broke off has nothing to register. `lost`: why the
    champion's code could not be run beside the runs that broke off."""
    policy = load_policy(config.gate)
    if any(result.failure for result in results):
        return gate_session(client, model, session, policy, lost)
    if not config.register:
        return gate_change(client, model, session, policy)
    version = register_version(
        client,
        model,
        session,
        results[0].run_id,
        weights=Weights.NONE if config.tracking.weights == "none" else Weights.FILES,
        evaluation=results[0].evaluation,
    )
    subject = f"{model} version {version}"
    if governing := governing_policy(client, model):  # the gate uses it, so the plan of looks must too
        policy = governing.policy
    with maker_in_session(client, session, subject, config, scratch) as maker:
        plan = Plan(client=client, model=model, version=version, policy=policy, maker=maker, say=say)
        if policy.top_up:
            return plan.carry_out()
        plan.make_again()
    record_runs(client, session, model)
    return gate(client, model, version, load_policy(config.gate))


def code_of(result: Result) -> int:
    """The exit code for one run's end: 3 if an exception ended it, which the gate weighs."""
    return 3 if result.failure == "error" and result.raised else code_of_failure(result.failure)


def code_of_failure(failure: str) -> int:
    """0 finished, 1 unstable, 2 wrong configuration, 4 broken from outside."""
    if not failure:
        return 0
    return 1 if failure in UNSTABLE else 2 if failure == "config" else 4


def _say_broken(results: list[Result]) -> None:
    for result in results:
        if result.failure:
            say(
                f"the run with seed {result.seed} broke off ({result.failure}): {result.reason}; "
                "no version was registered"
            )
