"""Sessions of a user's own scripts: opened by a `with` or by `canary session`, and joined by every callback until they
end.

The environment variable CANARY_SESSION names the open session, so that processes started meanwhile join it too.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from inspect import getattr_static
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from canary_mlflow.errors import CanaryError, NoSuchRun, UsageError, one_line, plainly
from canary_mlflow.policies import policy_names
from canary_mlflow.tracking import owner
from canary_mlflow.tracking.experiment import EXPERIMENT, FALLBACK, VARIABLE
from canary_mlflow.tracking.leftovers import clear, held
from canary_mlflow.tracking.places import without_password
from canary_mlflow.tracking.session import (
    NAME_TAG,
    NOTHING,
    PARENT_TAG,
    active_run,
    child_runs,
    find_experiment,
    finish_session,
    get_run,
    log_tags,
    start_run,
)
from canary_mlflow.tracking.store import prepare_store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

log = logging.getLogger("canary_mlflow")

FORBIDDEN_IN_NAMES = "/:"  # MLflow's rule for registered models


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session of a user's own scripts. `session_id`: the id of its parent run. `store`: the tracking URI."""

    session_id: str
    model: str
    store: str


def session(
    model: str, *, policy: str = "smoke", experiment: str | None = None, tracking_uri: str | None = None
) -> AbstractContextManager[Session]:
    """For a `with`: every training inside, in this process and in processes started from it, becomes one run of a new
    session.

    `model`: the registered model that the session is about; it need not exist yet. `policy`: the shipped policy that
    judges the session (`canary gate --policy` overrides it). `experiment`: the experiment's name; by default the one
    that was chosen (`mlflow.set_experiment`, MLFLOW_EXPERIMENT_NAME), else `canary`. The trainers need only
    `CanaryCallback()`. The session ends as FINISHED if all its runs finished, else as FAILED. Raises UsageError for
    wrong names, and StoreError.
    """
    return _Sessions(model, policy, experiment, tracking_uri)


class _Sessions(AbstractContextManager[Session]):
    """Opens a session and ends it."""

    def __init__(self, model: str, policy: str, experiment: str | None, tracking_uri: str | None) -> None:
        self._asked = model, policy, experiment, tracking_uri
        self._around = ExitStack()

    @plainly
    def __enter__(self) -> Session:
        model, policy, experiment, tracking_uri = self._asked
        refuse_ranks()
        refuse_second()
        check_name(model)
        client = prepare_store(tracking_uri)
        home = usual_experiment(client, experiment, tracking_uri)
        opened = start(client, model, policy=policy, experiment=home, lease=owner.lease())
        with ExitStack() as around:
            around.push(partial(_end, client, opened.session_id))
            around.enter_context(held(client, opened.session_id))
            around.enter_context(_in_environment({VARIABLE: opened.session_id, "MLFLOW_TRACKING_URI": opened.store}))
            self._around = around.pop_all()
        return opened

    @plainly
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._around.__exit__(kind, error, trace)


def _end(
    client: MlflowClient,
    session_id: str,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """End a session and say what it holds. A problem here never replaces the script's own error."""
    if error is not None:
        close_trainings(error)
    try:
        line = end(client, session_id, whole=error is None)
    except CanaryError as problem:
        if error is None:
            raise
        line = str(problem)
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # nobody reads it any more
            sys.stderr.write(f"canary: {line}\n")


class Recording(Protocol):
    """A callback that records a training."""

    def close(self, error: BaseException | None = None) -> None:
        """End the recording of a training that broke off with `error`."""


_RECORDING: WeakSet[Recording] = WeakSet()


def recording(callback: Recording) -> None:
    """Note that this callback records a training of this process from now on."""
    _RECORDING.add(callback)


def close_trainings(error: BaseException) -> None:
    """End the recording of the trainings that this exception broke off. Its traceback still holds their trainers, so
    without this their runs would read as interrupted instead of telling what broke them."""
    left = [frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__)]
    handlers = [getattr_static(one, "callback_handler", None) for one in left]  # runs no code of the script
    inside = [callback for handler in handlers for callback in getattr(handler, "callbacks", ())]
    for callback in list(_RECORDING):
        if any(callback is one for one in inside):
            callback.close(error)


def start(
    client: MlflowClient, model: str, *, policy: str, experiment: str, lease: Mapping[str, str] = NOTHING
) -> Session:
    """Open a session in the experiment with this id. Under `mlflow run`, its run becomes the session. `lease`: the tags
    of the process that holds the session open; without them it stays open until somebody ends it."""
    check_name(model)
    if policy not in policy_names():
        raise UsageError(
            f"policy {policy!r}: a session takes one of the shipped ones ({', '.join(policy_names())}); a file of your "
            "own goes to canary gate --policy FILE"
        )
    from canary_mlflow.registry.session_rows import begin

    tags = {"canary.role": "session", NAME_TAG: model, "canary.model_name": model, "canary.tier": policy, **lease}
    clear(client)
    if opened := os.environ.get("MLFLOW_RUN_ID"):
        get_run(client, opened)
        log_tags(client, opened, tags)
    else:
        opened = start_run(client, experiment, tags)
    begin(client, opened, model)
    return Session(session_id=opened, model=model, store=str(client.tracking_uri))


def check_name(model: str) -> None:
    """Raise UsageError for a name that MLflow does not accept for a registered model, such as a folder's path."""
    if model.strip() and not any(mark in model for mark in FORBIDDEN_IN_NAMES):
        return
    path = "; weights are given to register (weights=…, --weights)" if "/" in model else ""
    raise UsageError(f"model name {model!r}: expected a name without '/' and ':'; choose another{path}")


def end(client: MlflowClient, session_id: str, *, whole: bool = True) -> str:
    """End a session, and return one line on what it holds and what to do next. `whole`: the script around its runs did
    not break off."""
    from canary_mlflow.registry.session_rows import record_runs

    runs = [run for run in child_runs(client, session_id) if run.data.tags.get("canary.role") == "run"]
    finished = [run for run in runs if run.info.status == "FINISHED"]
    good = whole and bool(runs) and len(finished) == len(runs)
    finish_session(client, session_id, "FINISHED" if good else "FAILED")
    record_runs(client, session_id, get_run(client, session_id).data.tags.get("canary.model_name", ""))
    where = f"session {session_id} is in {without_password(client.tracking_uri)}"
    if not runs:
        missing = "no run joined it; expected trainers with callbacks=[CanaryCallback()] that begin while it is open"
        return f"{where}: {missing}; there is nothing to register"
    what = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}"
    register = f"canary register {session_id} [--weights FOLDER]"
    if broken := broken_off(runs):
        return f"{where}: {what}, {broken}; see why and train again, or have it judged as it is: {register}"
    if not whole:
        return f"{where}: {what}, all finished, and the script broke off after them; {register}"
    return f"{where}: {what}; {register}"


def broken_off(runs: Sequence[Run]) -> str:
    """`1 of them broke off (seed 1: ValueError: no rows)`, with the first one's reason; '' if all finished."""
    broken = [run for run in runs if run.info.status != "FINISHED" or run.data.tags.get("canary.failure")]
    if not broken:
        return ""
    tags = broken[0].data.tags
    why = tags.get("canary.failure_reason", "")
    said = f" (seed {tags.get('canary.seed', 'unknown')}: {one_line(why, limit=160)})" if why else ""
    return f"{len(broken)} of them broke off{said}"


def refuse_ranks() -> None:
    """Raise UsageError in one of several ranks: each would open its own session."""
    ranks = os.environ.get("WORLD_SIZE", "")
    if ranks.isdigit() and int(ranks) > 1:
        raise UsageError(
            f"session: this script is one of {ranks} ranks (WORLD_SIZE); expected one process that opens it, where "
            f"they are launched: export {VARIABLE}=$(canary session start NAME)"
        )


def refuse_second() -> None:
    """Raise UsageError while a session is open: its runs would be divided between two."""
    if found := os.environ.get(VARIABLE):
        raise UsageError(
            f"{VARIABLE} names session {found} already; expected none; end that one (canary session end) and unset "
            f"{VARIABLE}, or leave out the new one"
        )


def open_one(client: MlflowClient) -> Run | None:
    """The session that CANARY_SESSION names; None if it is not set. Raises UsageError unless the session is open."""
    name = os.environ.get(VARIABLE)
    return named(client, name, VARIABLE) if name else None


def named(client: MlflowClient, session_id: str, source: str) -> Run:
    """The open session with this id. Raises UsageError, with a message that begins with `source`, for anything else."""
    try:
        found = active_run(client, session_id)
    except NoSuchRun as error:
        store = without_password(client.tracking_uri)
        raise UsageError(
            f"{source}: run {session_id} is not in {store}, where this process records; expected a session there; "
            f"start it there (canary session start NAME --tracking-uri {store}), or unset {VARIABLE}"
        ) from error
    if found.data.tags.get("canary.role") != "session":
        raise UsageError(f"{source}: run {session_id} is no session; expected the id that canary session start printed")
    if found.info.status != "RUNNING":
        raise UsageError(
            f"{source}: session {session_id} has ended ({found.info.status}); expected an open one; "
            f"unset {VARIABLE}, or start another: canary session start NAME"
        )
    return found


def child_for(client: MlflowClient, parent: Run, given: str | None) -> str | None:
    """The given run, put into the session. None if the training needs a new run: none is given, or the given one is the
    session itself, has already recorded a training, or belongs elsewhere, where the script's own run stays."""
    session_id = parent.info.run_id
    if given in (None, session_id):
        return None
    run = get_run(client, given)
    if run.data.tags.get("canary.role") == "run":
        return None
    above, home = run.data.tags.get(PARENT_TAG, session_id), run.info.experiment_id
    if above == session_id and home == parent.info.experiment_id:
        log_tags(client, given, {PARENT_TAG: session_id})
        return given
    where = f"nested in run {above}" if above != session_id else f"in experiment {home}"
    log.warning("canary: run %s is %s and stays there; session %s gets a run of its own", given, where, session_id)
    return None


def usual_experiment(client: MlflowClient, name: str | None, tracking_uri: str | None) -> str:
    """The id of the named experiment; else, in MLflow's own store, of the one chosen for mlflow.start_run
    (mlflow.set_experiment, MLFLOW_EXPERIMENT_NAME, a notebook's); else of `canary`, never of MLflow's `Default`."""
    if name is not None or tracking_uri is not None:
        return find_experiment(client, name)
    from mlflow.tracking.fluent import _get_experiment_id  # there is no public function

    chosen = any(
        os.environ.get(key) for key in ("MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")
    )  # set_experiment too
    usual = str(_get_experiment_id())
    return usual if chosen or usual != FALLBACK else find_experiment(client, EXPERIMENT)


@contextmanager
def _in_environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
