"""One more run of a session, launched through MLflow Projects."""

from __future__ import annotations

import os
import sys
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import psutil

from canary_mlflow.errors import CanaryError, NoSource, one_line
from canary_mlflow.interpreter import CHOSEN
from canary_mlflow.launching.runs import Result, RunSpec
from canary_mlflow.launching.sources import ENTRY, Source, on_node
from canary_mlflow.own_cache import own_cache
from canary_mlflow.tags import CLUSTER_NODE, FAILURE, FAILURE_REASON, ROLE, SEED
from canary_mlflow.tracking.describing.failures import raised_from
from canary_mlflow.tracking.signals import apart
from canary_mlflow.tracking.stores.owner import LAUNCHER, scratch, this_process
from canary_mlflow.tracking.stores.session import NOTHING, close_run, create_child_run, get_run, held, log_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True, kw_only=True)
class ProjectRun(RunSpec):
    """A run of the code of `source`, with the configuration of the run `like`, or one composed of `overrides`."""

    makes: ClassVar[str] = "canary_mlflow.launching.projects:launch"
    source: Source
    like: str = ""
    overrides: str = ""


def launch(client: MlflowClient, spec: ProjectRun) -> Result:
    """Make the run. Raises NoSource if its code is not available, or somebody ended the open run before."""
    with on_node(spec.source, spec.name) if CLUSTER_NODE in spec.tags else nullcontext(spec.source) as source:
        run_id = spec.run_id
        if not run_id:
            run_id = begin(client, spec.session, name=spec.name, role=spec.role, seed=spec.seed, tags=spec.tags)
        elif get_run(client, run_id).info.status != "RUNNING":
            raise NoSource(f"{spec.name}: run {run_id} was ended before it could be made; expected it open")
        else:
            log_tags(client, run_id, spec.tags)
        try:
            with held(client, run_id):
                run_project(client, source, run_id, spec)
        except BaseException as error:
            # The run has recorded that itself, unless its process never got so far.
            close_run(client, run_id, *_ending(client, run_id, error))
            if not isinstance(error, CanaryError):
                raise
    found = get_run(client, run_id).data.tags
    failure, reason = found.get(FAILURE, ""), found.get(FAILURE_REASON, "")
    return Result(seed=spec.seed, run_id=run_id, failure=failure, reason=reason, raised=raised_from(found))


def begin(
    client: MlflowClient, session: str, *, name: str, role: str, seed: int, tags: Mapping[str, str] = NOTHING
) -> str:
    """Open a run of the session that nothing has been recorded in, and return its id."""
    return create_child_run(client, session, name, {ROLE: role, SEED: str(seed), **tags}, {})


def run_project(client: MlflowClient, source: Source, run_id: str, spec: ProjectRun) -> None:
    """Run the entry point and wait for its end. Raises CanaryError if it did not end well."""
    import mlflow
    from mlflow.exceptions import ExecutionException, MlflowException

    asked = {"session": spec.session, "seed": str(spec.seed), "role": spec.role}
    mine = {child.pid for child in psutil.Process().children(recursive=True)}
    # MLflow makes a folder for what it downloads, and leaves it.
    with _environment(client, source), scratch("project") as kept:
        try:
            # `run_id`: otherwise MLflow would make its own run, which would then have to become this one.
            apart(
                lambda: mlflow.projects.run(
                    str(source.folder),
                    entry_point=ENTRY,
                    parameters={**asked, "like": spec.like, "overrides": spec.overrides},
                    backend="local",
                    env_manager=source.env_manager,
                    run_id=run_id,
                    storage_dir=str(kept),
                ),
                end=lambda: _end_others(mine),
            )
        except (ExecutionException, MlflowException, OSError) as error:
            raise CanaryError(one_line(error)) from error


def _ending(client: MlflowClient, run_id: str, error: BaseException) -> tuple[str, str]:
    """How a run ended whose process left no message: its environment could not be made, it died, or was stopped."""
    tags = get_run(client, run_id).data.tags
    if FAILURE in tags:
        return tags[FAILURE], tags.get(FAILURE_REASON, "")
    if isinstance(error, CanaryError):
        return "error", str(error)
    return "interrupted", "the launching process was stopped"


@contextmanager
def _environment(client: MlflowClient, source: Source) -> Iterator[None]:
    """Set what MLflow passes on: this client's store, this Python as `python`, the folder's own packages."""
    import mlflow

    paths = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(part for part in (str(source.folder), os.environ.get("PYTHONPATH", "")) if part),
        "GIT_PYTHON_REFRESH": "quiet",
        CHOSEN: source.env_manager,
        LAUNCHER: this_process().to_text(),
        **({} if source.here else own_cache(source.folder.parent / "datasets", os.environ)),
    }
    before = {key: os.environ.get(key) for key in paths}
    # Setting the URI also sets MLFLOW_TRACKING_URI; if it was not set before, it is removed afterwards.
    store = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
    os.environ.update(paths)
    mlflow.set_tracking_uri(client.tracking_uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(store)
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _end_others(mine: Container[int]) -> None:
    """End the processes below this one that are not among these: MLflow itself does so only on Ctrl-C."""
    started = [child for child in psutil.Process().children(recursive=True) if child.pid not in mine]
    for child in started:
        with suppress(psutil.NoSuchProcess):  # it ended by itself meanwhile
            child.terminate()
    psutil.wait_procs(started, timeout=20)
