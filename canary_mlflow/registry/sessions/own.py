"""Sessions of a user's own scripts: opened by a `with` or by `canary session`, and ended.

The environment variable CANARY_SESSION names the open session, so that processes started meanwhile join it too
(tracking/joining.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import CanaryError, UsageError, one_line, plainly
from canary_mlflow.policies import policy_names
from canary_mlflow.registry.sessions.leftovers import clear
from canary_mlflow.registry.sessions.rows import begin, record_runs
from canary_mlflow.shown import as_html
from canary_mlflow.tags import FAILURE, FAILURE_REASON, LAST_STEP, MODEL_NAME, ROLE, RUN_NAME, SEED, TIER, VERDICT
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.experiment import VARIABLE
from canary_mlflow.tracking.joining import close_trainings, usual_experiment
from canary_mlflow.tracking.probes import clock
from canary_mlflow.tracking.stores import owner
from canary_mlflow.tracking.stores.places import without_password
from canary_mlflow.tracking.stores.session import (
    NOTHING,
    child_runs,
    finish_session,
    get_run,
    held,
    log_tags,
    start_run,
)
from canary_mlflow.tracking.stores.store import prepare_store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from canary_mlflow.tracking.loops.run import LoopRun

FORBIDDEN_IN_NAMES = "/:"  # MLflow's rule for registered models


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session of a user's own scripts. `session_id`: the id of its parent run. `store`: the tracking URI."""

    session_id: str
    model: str
    store: str

    @plainly
    def run(self, *, seed: int, **options: Any) -> LoopRun:
        """For a `with` around a training loop of one's own, inside the session's: `with session.run(seed=0) as run:
        run.log(step, loss=…)`. `options` as for `canary_mlflow.LoopRun`. Raises UsageError, also once the session has
        ended."""
        from canary_mlflow.tracking.loops.run import LoopRun

        if os.environ.get(VARIABLE) != self.session_id:
            raise UsageError(f"run: session {self.session_id} is not open here; expected the call inside its `with`")
        return LoopRun(seed=seed, **options)

    def _repr_html_(self) -> str:
        """In a notebook: its runs, and how they ended."""
        client, columns = prepare_store(self.store), (SEED, LAST_STEP, FAILURE_REASON)
        found, runs = get_run(client, self.session_id), child_runs(client, self.session_id)
        said = [(run.info, expanded(run.data.tags)) for run in runs]
        rows = [[info.run_id, info.status, *(tags.get(key, "") for key in columns)] for info, tags in said]
        title = f"Session {self.session_id} of {self.model}, {found.data.tags.get(VERDICT) or found.info.status}"
        return as_html(title, ("run", "status", "seed", "last step", "why"), rows)


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
        clock.begin()  # what a script imports, it has imported
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
    tags = {ROLE: "session", RUN_NAME: model, MODEL_NAME: model, TIER: policy, **lease}
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
    runs = [run for run in child_runs(client, session_id) if run.data.tags.get(ROLE) == "run"]
    finished = [run for run in runs if run.info.status == "FINISHED"]
    good = whole and bool(runs) and len(finished) == len(runs)
    finish_session(client, session_id, "FINISHED" if good else "FAILED")
    record_runs(client, session_id, get_run(client, session_id).data.tags.get(MODEL_NAME, ""))
    where = f"session {session_id} is in {without_password(client.tracking_uri)}"
    if not runs:
        missing = (
            "no run joined it; expected session.run(…) or callbacks=[CanaryCallback()] that begin while it is open"
        )
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
    broken = [run for run in runs if run.info.status != "FINISHED" or run.data.tags.get(FAILURE)]
    if not broken:
        return ""
    tags = broken[0].data.tags
    why = tags.get(FAILURE_REASON, "")
    said = f" (seed {tags.get(SEED, 'unknown')}: {one_line(why, limit=160)})" if why else ""
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
