"""Makes runs in fresh processes on this machine, each recorded as FINISHED or FAILED whatever happens to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mlflow import MlflowClient

from canary_mlflow.tags import ROLE, ROWS_LOST
from canary_mlflow.tracking.describing.failures import UNSTABLE, raised_tags
from canary_mlflow.tracking.stores.session import NOTHING, close_run, create_child_run, describe_run, get_run
from training.config import CanaryConfig
from training.naming import run_name, run_params, run_tags
from training.plain import to_plain
from training.process import Job, Result, Worker, run

UNRECORDED = (
    "it trained to its end, but its store did not take everything; expected one that answers and has room; fix that, "
    "then canary deliver sends the rest"
)


def train_runs(
    client: MlflowClient,
    session: str,
    config: CanaryConfig,
    crew: Iterator[Worker],
    repeats: int,
    champion: Sequence[str] = (),
    tags: Mapping[str, str] = NOTHING,
    *,
    keep_weights: bool,
    profile: bool,
) -> list[Result]:
    """Make runs of one session, one after the other; stop at the first that breaks off.

    `champion`: ids of the runs with which the watch compares each run while it goes on. `tags`: for each run.
    `keep_weights`, `profile`: whether the first of them does so; the others are evidence alone.
    """
    results: list[Result] = []
    for index in range(repeats):
        seeded = replace(config, seed=config.seed + index)
        place = f"{index + 1}/{repeats}"
        once = {"keep_weights": keep_weights and index == 0, "profile": profile and index == 0}
        made = train_one(client, session, seeded, next(crew), place, champion, tags=tags, **once)
        results.append(made)
        if made.failure:
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
    keep_weights: bool = False,
    profile: bool = False,
    role: str = "run",
    run_id: str | None = None,
    tags: Mapping[str, str] = NOTHING,
    alone: bool = True,
) -> Result:
    """Make one run, recorded as FINISHED or FAILED whatever happens to its process or to this one.

    `place`: its place among the runs, such as 1/3, for people. `keep_weights`: the run's weights are stored with it.
    `profile`: it is also profiled, if its configuration asks for that.
    `run_id`: an existing MLflow run to record into. `tags`: additional tags. `alone`: only this process holds the
    session open; ignored if `run_id` is given.
    """
    plain = to_plain(config)
    params = run_params(config)
    own = {**run_tags(config), ROLE: role, **tags}
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
        keep_weights=keep_weights,
        profile=profile and config.profile,
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
    return ROWS_LOST in get_run(client, run_id).data.tags


def code_of(result: Result) -> int:
    """The exit code for one run's end: 3 if an exception ended it, which the gate weighs."""
    return 3 if result.failure == "error" and result.raised else code_of_failure(result.failure)


def code_of_failure(failure: str) -> int:
    """0 finished, 1 unstable, 2 wrong configuration, 4 broken from outside."""
    if not failure:
        return 0
    return 1 if failure in UNSTABLE else 2 if failure == "config" else 4
