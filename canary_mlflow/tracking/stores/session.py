"""The runs of a session in MLflow: a parent run with its children, through a client and without global state."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import NoSuchRun, StoreError, one_line
from canary_mlflow.gates.facts.check import without_addresses
from canary_mlflow.tags import CELL_NAME, COMPLETED, FAILURE, FAILURE_REASON, PARENT_RUN, ROLE, RUN_NAME, where
from canary_mlflow.tracking.describing.compact import compact
from canary_mlflow.tracking.stores.owner import heartbeat, lease
from canary_mlflow.tracking.stores.places import without_password
from canary_mlflow.tracking.stores.store import experiment_id

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

LONGEST_NAME = 250  # characters of a run's name, for which MLflow's databases have room
LONGEST_PARAM = 500  # characters; MLflow's own limit is 6000, its UI shows far fewer
UNSET = ("None", "")
NOTHING: Mapping[str, str] = MappingProxyType({})


def open_session(
    client: MlflowClient, experiment: str, name: str, tags: Mapping[str, str], *, parent_id: str | None = None
) -> str:
    """Start the parent run of a session (or of a sweep, by its `canary.role` tag), which this process holds open, and
    return its id.

    Under `mlflow run` the run already exists (MLFLOW_RUN_ID) and becomes the session. Raises StoreError.
    """
    own = {ROLE: "session", RUN_NAME: name[:LONGEST_NAME], **lease(), **tags}
    if parent_id is not None:
        own[PARENT_RUN] = parent_id
    given = os.environ.get("MLFLOW_RUN_ID")
    if given and parent_id is None:
        get_run(client, given)
        log_tags(client, given, own)
        return given
    return start_run(client, find_experiment(client, experiment), own)


def name_in_cell(name: str, tags: Mapping[str, str]) -> str:
    """A run's name with that of its cell, if it has one."""
    return ", ".join(filter(None, (tags.get(CELL_NAME, "")[: LONGEST_NAME - len(name) - 2], name)))


def create_child_run(
    client: MlflowClient,
    session_id: str,
    name: str,
    tags: Mapping[str, str],
    params: Mapping[str, object],
    usual: Container[str] = (),
) -> str:
    """Start one run of a session and return its id. `params`, `usual`: as for `log_settings`."""
    experiment = get_run(client, session_id).info.experiment_id
    own = {ROLE: "run", RUN_NAME: name_in_cell(name, tags), PARENT_RUN: session_id, **lease(), **tags}
    run_id = start_run(client, experiment, own)
    log_settings(client, run_id, params, usual)
    return run_id


def describe_run(
    client: MlflowClient,
    run_id: str,
    name: str,
    tags: Mapping[str, str],
    params: Mapping[str, object],
    usual: Container[str] = (),
) -> None:
    """Describe an existing run of a session, as `create_child_run` describes a new one."""
    log_tags(client, run_id, {RUN_NAME: name, **tags})
    log_settings(client, run_id, params, usual)


def close_run(
    client: MlflowClient, run_id: str, failure: str = "", reason: str = "", more: Mapping[str, str] = NOTHING
) -> None:
    """End a run: FINISHED without a failure, else FAILED with it. Another call adds what has become known since.

    `failure`: "" | instability | oom | timeout | interrupted | error (others are the caller's own words).
    `more`: tags that tell more about it.
    """
    run = get_run(client, run_id)
    tags = {FAILURE: failure, FAILURE_REASON: " ".join(reason.split()), **more}
    if failure:
        # A run that trained to its last step but broke while saving has not ended well either.
        log_tags(client, run_id, {COMPLETED: "false", **tags})
    elif FAILURE not in run.data.tags:
        log_tags(client, run_id, tags)
    already_failed = run.info.status == "FAILED" and not failure
    status = "FAILED" if failure or already_failed else "FINISHED"
    if run.info.status != status:
        client.set_terminated(run_id, status)


def finish_session(client: MlflowClient, session_id: str, status: str, tags: Mapping[str, str] | None = None) -> None:
    """End the parent run with FINISHED or FAILED; runs of it that are still open end as FAILED."""
    for run in child_runs(client, session_id):
        if run.info.status in ("RUNNING", "SCHEDULED"):
            close_run(client, run.info.run_id, "interrupted", "the session ended before this run did")
    if tags:
        log_tags(client, session_id, tags)
    client.set_terminated(session_id, status)


def close_killed_session(client: MlflowClient, run_id: str) -> None:
    """End the session of a run if it still reads RUNNING: its process was killed and cannot do so itself.

    A sweep is left alone: other processes may be at work in it.
    """
    parent = get_run(client, get_run(client, run_id).data.tags[PARENT_RUN])
    if parent.info.status == "RUNNING" and parent.data.tags.get(ROLE) == "session":
        finish_session(client, parent.info.run_id, "FAILED")


def child_runs(client: MlflowClient, parent_id: str, *, deleted: bool = False) -> list[Run]:
    """The runs of a session or sweep, oldest first; with `deleted` those in MLflow's bin too. Raises NoSuchRun, and
    StoreError when the store cannot be asked."""
    return children_of(client, get_run(client, parent_id), deleted=deleted)


def children_of(client: MlflowClient, parent: Run, *, deleted: bool = False) -> list[Run]:
    """As `child_runs`, of a parent that was fetched already."""
    from mlflow.entities import ViewType
    from mlflow.exceptions import MlflowException

    parent_id = parent.info.run_id
    view, order = ViewType.ALL if deleted else ViewType.ACTIVE_ONLY, ["attributes.start_time ASC"]
    home, below = [parent.info.experiment_id], where(PARENT_RUN, parent_id)
    try:
        return every_run(client, home, below, order_by=order, run_view_type=view)
    except MlflowException as error:
        raise StoreError(f"runs of session {parent_id!r}: {one_line(error)}") from error


def every_run(client: MlflowClient, experiments: list[str], text: str, **how: Any) -> list[Run]:
    """What a filter finds in these experiments, on however many pages."""
    found: list[Run] = []
    page = None
    while True:
        runs = client.search_runs(experiments, text, page_token=page, **how)
        found += runs
        if not (page := runs.token):
            return found


def minutes_of_runs(client: MlflowClient, session_id: str) -> float | None:
    """The median duration of a session's finished runs, in minutes; None if there is none yet."""
    took = [
        (run.info.end_time - run.info.start_time) / 60_000
        for run in child_runs(client, session_id)
        if run.info.end_time and run.info.status == "FINISHED"
    ]
    return median(took) if took else None


def get_run(client: MlflowClient, run_id: str) -> Run:
    """The run. Raises NoSuchRun if it is not in the store, StoreError if the store cannot be asked."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise NoSuchRun(
                f"run {run_id!r}: not in {without_password(client.tracking_uri)}; expected the id of a run there; "
                "copy it from the MLflow UI, or set MLFLOW_TRACKING_URI"
            ) from error
        raise StoreError(f"run {run_id!r}: {one_line(error)}") from error


def active_run(client: MlflowClient, run_id: str) -> Run:
    """The run; raises NoSuchRun for a deleted one too."""
    run = get_run(client, run_id)
    if run.info.lifecycle_stage != "active":
        raise deleted(run_id)
    return run


def deleted(run_id: str) -> NoSuchRun:
    """The error for a run that is in MLflow's bin."""
    return NoSuchRun(
        f"run {run_id!r}: deleted; expected an active run; mlflow runs restore --run-id {run_id} brings it back"
    )


def log_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    """Set tags, as many at once as MLflow takes."""
    from mlflow.entities import RunTag

    _log(client, run_id, "tags", [RunTag(key, str(value)) for key, value in tags.items()])


def log_params(client: MlflowClient, run_id: str, params: Mapping[str, object]) -> None:
    """Set params, as many at once as MLflow takes, each cut to 500 characters."""
    from mlflow.entities import Param

    _log(client, run_id, "params", [Param(key, cut(str(value))) for key, value in params.items()])


def log_settings(client: MlflowClient, run_id: str, params: Mapping[str, object], usual: Container[str]) -> None:
    """Set params; those that are `usual`, or nothing, only in a tag with all of them: a param is what somebody set."""
    shown = {key: value for key, value in params.items() if key not in usual and str(value) not in UNSET}
    rest = {key: cut(str(value)) for key, value in params.items() if key not in shown}
    log_tags(client, run_id, compact("settings", rest))
    log_params(client, run_id, shown)


def _log(client: MlflowClient, run_id: str, what: str, items: list[Any]) -> None:
    from mlflow.utils.validation import MAX_PARAMS_TAGS_PER_BATCH as MOST

    for start in range(0, len(items), MOST):
        client.log_batch(run_id, **{what: items[start : start + MOST]})


def cut(value: str) -> str:
    """The value as a param holds it: a long one ends in a digest of the whole, by which two that begin alike differ."""
    if len(value) <= LONGEST_PARAM:
        return value
    digest = hashlib.sha256(without_addresses(value).encode(errors="surrogateescape")).hexdigest()
    end = f"… sha256 {digest[:16]}"
    return value[: LONGEST_PARAM - len(end)] + end


def start_run(client: MlflowClient, experiment: str, tags: Mapping[str, str]) -> str:
    """Create a run in the experiment with this id, and return the run's id. Raises StoreError."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracking.context.registry import resolve_tags

    try:
        # MlflowClient, unlike mlflow.start_run, does not record who ran what from which commit.
        run = client.create_run(experiment, tags=resolve_tags(dict(tags)), run_name=tags.get(RUN_NAME))
    except MlflowException as error:
        raise StoreError(f"cannot start a run in {without_password(client.tracking_uri)}: {one_line(error)}") from error
    return str(run.info.run_id)


def find_experiment(client: MlflowClient, name: str | None) -> str:
    """The experiment's id: by MLFLOW_EXPERIMENT_ID or MLFLOW_EXPERIMENT_NAME if set, as for `mlflow run`, else of
    `name`."""
    given = os.environ.get("MLFLOW_EXPERIMENT_ID")
    return given or experiment_id(client, os.environ.get("MLFLOW_EXPERIMENT_NAME") or name or "canary")


# ---- heartbeats ------------------------------------------------------------------------------------------------------


EVERY = 120.0  # seconds between two heartbeats


@contextmanager
def held(client: MlflowClient, *run_ids: str) -> Iterator[None]:
    """Hold runs open for a while. The heartbeat of the first counts for all runs with the same lease."""
    over = threading.Event()
    for run_id in run_ids:
        log_tags(client, run_id, lease() | heartbeat())

    def beat() -> None:
        while not over.wait(EVERY):
            with suppress(Exception):  # a store that is away for a while: the next one will do
                log_tags(client, run_ids[0], heartbeat())

    threading.Thread(target=beat, name="canary-heartbeat", daemon=True).start()
    try:
        yield
    finally:
        over.set()
