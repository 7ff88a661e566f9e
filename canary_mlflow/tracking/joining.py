"""What a training does in an open session of a user's own scripts: it joins the one that CANARY_SESSION names, and is
closed by it if the script breaks off; in a notebook, by the end of the cell that broke off."""

from __future__ import annotations

import logging
import os
import sys
from inspect import getattr_static
from traceback import walk_tb
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from canary_mlflow import tags
from canary_mlflow.errors import NoSuchRun, UsageError
from canary_mlflow.tracking.experiment import EXPERIMENT, FALLBACK, VARIABLE
from canary_mlflow.tracking.stores.places import without_password
from canary_mlflow.tracking.stores.session import active_run, find_experiment, get_run, log_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from canary_mlflow.tracking.recording import Recording

log = logging.getLogger("canary_mlflow")


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
    if found.data.tags.get(tags.ROLE) != "session":
        raise UsageError(f"{source}: run {session_id} is no session; expected the id that canary session start printed")
    if found.info.status != "RUNNING":
        raise UsageError(
            f"{source}: session {session_id} has ended ({found.info.status}); expected an open one; "
            f"unset {VARIABLE}, or start another: canary session start NAME"
        )
    return found


def child_for(client: MlflowClient, parent: Run, given: str | None) -> str | None:
    """The given run, put into the session. None if the training needs a new run: none is given, or the given one is the
    session itself, has already recorded a training, or belongs elsewhere, where the script's own run stays. A trial
    stays below the script's outer run, as the session then is there itself."""
    session_id = parent.info.run_id
    if given in (None, session_id, parent.data.tags.get(tags.PARENT_RUN)):
        return None
    run = get_run(client, given)
    if run.data.tags.get(tags.ROLE) == "run":
        return None
    above, home = run.data.tags.get(tags.PARENT_RUN, session_id), run.info.experiment_id
    if home == parent.info.experiment_id and (above == session_id or _goes_below(client, parent, above)):
        log_tags(client, given, {tags.PARENT_RUN: session_id})
        return given
    where = f"nested in run {above}" if above != session_id else f"in experiment {home}"
    log.warning("canary: run %s is %s and stays there; session %s gets a run of its own", given, where, session_id)
    return None


def _goes_below(client: MlflowClient, session: Run, outer: str) -> bool:
    """Put the session below a script's outer run, whose trials it then holds; False if either belongs elsewhere."""
    if (above := session.data.tags.get(tags.PARENT_RUN)) is not None:
        return bool(above == outer)
    found = get_run(client, outer)
    if tags.ROLE in found.data.tags or found.info.experiment_id != session.info.experiment_id:
        return False
    log_tags(client, session.info.run_id, {tags.PARENT_RUN: outer})
    return True


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


_RECORDING: WeakSet[Recording] = WeakSet()


def recording(one: Recording) -> None:
    """Note that this records a training of this process from now on. In a notebook it hears of the end of each cell."""
    _RECORDING.add(one)
    notebook: Any = sys.modules.get("IPython")
    if (shell := notebook and notebook.get_ipython()) is not None:
        shell.events.register("post_run_cell", cell_ended)  # IPython keeps one of equal ones


def close_trainings(error: BaseException, *, loops: bool = True) -> None:
    """End the recording of the trainings that this exception broke off. Its traceback still holds their trainers, so
    without this their runs would read as interrupted instead of telling what broke them. `loops`: also those of loops,
    which no traceback shows."""
    left = [frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__)]
    handlers = [getattr_static(one, "callback_handler", None) for one in left]  # runs no code of the script
    inside = [callback for handler in handlers for callback in getattr(handler, "callbacks", ())]
    for callback in list(_RECORDING):
        if any(callback is one for one in inside) or (loops and callback.of_loop):
            callback.close(error)


def close_left(*, loops: bool = True) -> None:
    """End the recordings whose training is over though nobody said so; `loops`: also those of loops."""
    for one in list(_RECORDING):
        if one.left and (loops or not one.of_loop):
            one.close(getattr(sys, "last_value", None))


def cell_ended(result: Any) -> None:
    """A cell is over, and the trainings that it broke off; a thread goes on, and a loop may have several cells."""
    if result.error_in_exec is not None:
        close_trainings(result.error_in_exec, loops=False)
    close_left(loops=False)
