"""Watching a run from outside: finds it and reads it again and again until it has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from canary_mlflow import tags
from canary_mlflow.errors import NoSuchRun
from canary_mlflow.gates.model.records import Series
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.describing.schema import mlflow_key
from canary_mlflow.tracking.reading.facts import Latest, RunFacts
from canary_mlflow.tracking.reading.histories import read_points
from canary_mlflow.tracking.reading.records import series_of
from canary_mlflow.tracking.stores.places import without_password
from canary_mlflow.tracking.stores.session import active_run, child_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What was seen at one moment: the run, and the requested series that it has, by canonical name.

    `session`: the session that is followed, if any; `number`: which of its runs this is, counted from 1.
    """

    run: RunFacts
    series: Mapping[str, Series] = field(default_factory=dict)
    session: RunFacts | None = None
    number: int = 0

    @property
    def ended(self) -> bool:
        """Whether what is followed is over."""
        return not (self.session or self.run).running


def newest_running(client: MlflowClient) -> str:
    """The id of the latest run that is still going on; of a session or sweep only if none of its runs is.

    Raises NoSuchRun if nothing is going on.
    """
    experiments = [one.experiment_id for one in client.search_experiments()]
    found = client.search_runs(
        experiments, "attributes.status = 'RUNNING'", order_by=["attributes.start_time DESC"], max_results=100
    )
    if not found:
        raise NoSuchRun(
            f"{without_password(client.tracking_uri)}: nothing is running there; expected a run in progress; "
            "canary watch RUN shows one that has ended, --tracking-uri names another store"
        )
    alone = [run for run in found if run.data.tags.get(tags.ROLE) not in ("session", "sweep")]
    return str((alone or found)[0].info.run_id)


def look(client: MlflowClient, run_id: str, names: Sequence[str]) -> Sight:
    """What is seen of a run, or of the current run of a session. `names`: canonical names of the series. Raises
    NoSuchRun, StoreError."""
    found = active_run(client, run_id)
    if found.data.tags.get(tags.ROLE) not in ("session", "sweep"):
        return sight(client, found, names)
    session = facts_of(found, {})
    children = [run for run in child_runs(client, run_id) if run.data.tags.get(tags.ROLE) != "baseline"]
    if not children:
        return Sight(run=session, session=session)
    number, present = max(enumerate(children, 1), key=lambda one: (one[1].info.status == "RUNNING", one[0]))
    return sight(client, present, names, session, number)


def sight(
    client: MlflowClient, run: MlflowRun, names: Sequence[str], session: RunFacts | None = None, number: int = 0
) -> Sight:
    """A run with its series."""
    run_id = run.info.run_id
    keys = {name: mlflow_key(name) for name in names if mlflow_key(name) in run.data.metrics}
    points = read_points(client, {run_id: list(keys.values())})[run_id]
    some = {name: points[key] for name, key in keys.items() if len(points[key])}
    latest = {
        keys[name]: Latest(step=int(last[0]), value=float(last[2]), timestamp=int(last[1]))
        for name, rows in some.items()
        for last in (rows[rows[:, 0].argmax()],)
    }
    series = {name: series_of(name, rows) for name, rows in some.items()}
    return Sight(run=facts_of(run, latest), series=series, session=session, number=number)


def facts_of(run: MlflowRun, latest: Mapping[str, Latest]) -> RunFacts:
    """What MLflow's client tells about a run."""
    return RunFacts(
        run_id=run.info.run_id,
        name=run.info.run_name or "",
        status=run.info.status,
        started=run.info.start_time or 0,
        ended=run.info.end_time,
        deleted=run.info.lifecycle_stage != "active",
        experiment=str(run.info.experiment_id),
        artifacts=run.info.artifact_uri or "",
        tags=expanded(run.data.tags),
        latest=latest,
    )
