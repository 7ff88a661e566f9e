"""Sessions that were never trained, written into a real store: what the gate, the reports and the pages read."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tiny_weights import safetensors

if TYPE_CHECKING:
    from mlflow import MlflowClient

STEPS = 40  # enough for the smoke policy: 10 warm-up steps, at least 20 more
TAGS = {
    "canary.algo": "dpo",
    "canary.model": "tiny-neox",
    "canary.data": "preferences",
    "canary.tier": "smoke",
    "canary.workload.algo": "dpo",
    "canary.workload.model": "tiny-neox",
    "canary.workload.tier": "smoke",
    "canary.workload.max_steps": str(STEPS),
    "canary.hardware.backend": "cpu",
    "canary.hardware.device": "test CPU",
    "canary.hardware.count": "2",
    "canary.env.torch": "2.13.0",
}
CHILD = {
    "canary.role": "run",
    "canary.completed": "true",
    "canary.last_step": str(STEPS),
    "canary.failure": "",
    "canary.failure_reason": "",
    "canary.nan_steps": "0",
    "canary.inf_steps": "0",
    "canary.learned": "true",
    "canary.learned_reason": "loss fell from 0.693 to 0.412",
    "canary.rows_lost": "0",
}
RAISED = {
    "canary.completed": "false",
    "canary.failure": "error",
    "canary.failure_reason": "AttributeError: 'NoneType' object has no attribute 'apply'",
    "canary.exception": "AttributeError",
    "canary.exception.place": "trl/trainer/utils.py:1638 in apply",
    "canary.exception.outside": "",
}
"""Of a run that an exception of its code ended."""


@dataclass
class Recorded:
    """A store, and what a test writes into it."""

    client: MlflowClient
    uri: str
    experiment: str
    model: str  # a name of the test's own
    seed: int = 0

    def session(
        self,
        *,
        slower: float = 1.0,
        runs: int = 3,
        tags: Mapping[str, str] | None = None,
        nan_at: int | None = None,
        without: Sequence[str] = (),
    ) -> str:
        """A session of `runs` runs whose steps take `slower` times the usual; returns the parent's id."""
        session_id = self.create({**TAGS, "canary.role": "session", **(tags or {})}, "FINISHED")
        for number in range(runs):
            self.run(session_id, number, slower=slower, tags=tags or {}, nan_at=nan_at, without=without)
        return session_id

    def run(
        self,
        session_id: str,
        number: int,
        *,
        slower: float,
        tags: Mapping[str, str],
        nan_at: int | None,
        without: Sequence[str],
        begun: str = "",
    ) -> str:
        """One finished run of a session. `begun`: the id of one that is open."""
        self.seed += 1
        mine = {**TAGS, **CHILD, "canary.seed": str(number), "mlflow.parentRunId": session_id, **tags}
        if nan_at is not None:
            mine |= {"canary.nan_steps": "1", "canary.failure": "instability", "canary.completed": "false"}
            mine |= {"canary.failure_reason": f"loss is NaN at step {nan_at}"}
        status = "FAILED" if nan_at is not None else "FINISHED"
        run_id = self.filled(begun, mine, status) if begun else self.create(mine, status)
        values = series(np.random.default_rng(self.seed), slower, nan_at)
        write(self.uri, run_id, {key: values[key] for key in values if key not in without})
        return run_id

    def create(self, tags: Mapping[str, str], status: str) -> str:
        """A run that has ended; in a database, as MLflow stores it, in a tenth of its time."""
        if not in_database(self.uri):
            run_id: str = self.client.create_run(self.experiment, tags=tags).info.run_id
            self.client.set_terminated(run_id, status)
            return run_id
        if (self.uri, self.experiment) not in PLACES:
            PLACES[self.uri, self.experiment] = self.client.get_experiment(self.experiment).artifact_location
        return insert_run(self.uri, self.experiment, PLACES[self.uri, self.experiment], tags, status)

    def fresh(self, session_id: str, number: int, slower: float = 1.0, tags: Mapping[str, str] | None = None) -> str:
        """A run of the champion's code beside a session's, ordered before it begins."""
        from canary_mlflow.launching.projects import begin
        from canary_mlflow.registry.sessions.orders import order

        begun = begin(self.client, session_id, name="fresh", role="baseline", seed=number)
        order(self.client, session_id, self.model, begun)
        own = {"canary.role": "baseline", **(tags or {})}
        return self.run(session_id, number, slower=slower, tags=own, nan_at=None, without=(), begun=begun)

    def filled(self, run_id: str, tags: Mapping[str, str], status: str) -> str:
        """An open run, with these tags and its end."""
        from canary_mlflow.tracking.stores.session import log_tags

        log_tags(self.client, run_id, tags)
        self.client.set_terminated(run_id, status)
        return run_id

    def version(self, **session: Any) -> str:
        """A registered version whose evidence is a new session."""
        return self.register(self.session(**session))

    def register(self, session_id: str) -> str:
        """A version whose evidence is a recorded session."""
        from canary_mlflow.registry.sessions.registering import register_version

        run_id = self.children(session_id)[0]
        self.weights(run_id)
        return register_version(self.client, self.model, session_id, run_id)

    def version_of(self, content: bytes) -> str:
        """A version whose weights are these bytes, with the fewest runs that a champion needs."""
        from canary_mlflow.registry.sessions.registering import register_version

        session_id = self.session(runs=2)
        run_id = self.children(session_id)[0]
        self.weights(run_id, content)
        return register_version(self.client, self.model, session_id, run_id)

    def weights(self, run_id: str, content: bytes | None = None, name: str = "model.safetensors") -> None:
        """Give a run weights, real ones of a few bytes unless it is said which."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / name
            file.write_bytes(safetensors() if content is None else content)
            self.client.log_artifact(run_id, str(file), "model")

    def children(self, session_id: str) -> list[str]:
        """The ids of a session's runs."""
        found = self.client.search_runs([self.experiment], f"tags.`mlflow.parentRunId` = '{session_id}'")
        return [run.info.run_id for run in found]

    def champion(self) -> str | None:
        """The champion's version number."""
        number = self.client.get_registered_model(self.model).aliases.get("champion")
        return None if number is None else str(number)

    def tags(self, version: str) -> dict[str, str]:
        """A version's tags."""
        return dict(self.client.get_model_version(self.model, version).tags)

    def description(self, version: str) -> str:
        """A version's description."""
        return str(self.client.get_model_version(self.model, version).description)


def series(rng: np.random.Generator, slower: float, nan_at: int | None) -> dict[str, np.ndarray]:
    """MLflow key → values per step (a single one: at the last step)."""
    noise = rng.normal(0, 0.01, STEPS) + rng.normal(0, 0.005)
    time = 0.1 * slower * np.exp(noise)
    loss = 0.69 - 0.3 * np.linspace(0, 1, STEPS) + rng.normal(0, 0.01, STEPS)
    if nan_at is not None:
        loss[nan_at:] = np.nan
    return {
        "perf/step_time": time,
        "perf/step_cpu_time": time * 0.98,
        "perf/step_cost": time * 120,
        "perf/tokens": np.full(STEPS, 1024.0),
        "perf/tokens_per_second": 1024 / time,
        "perf/peak_memory": np.full(STEPS, 900.0) + rng.normal(0, 0.5),
        "stability/loss": loss,
        "stability/grad_norm": np.exp(rng.normal(0, 0.05, STEPS)),
        "stability/nonfinite": np.isnan(loss).astype(float),
        "quality/eval_loss": np.array([0.45 + rng.normal(0, 0.002)]),
        "quality/eval_accuracy": np.array([0.8 + rng.normal(0, 0.005)]),
        "quality/eval_margin": np.array([1.0 + rng.normal(0, 0.01)]),
    }


def in_database(uri: str) -> bool:
    """Whether a store is a database that can be written to here."""
    return uri.startswith(("sqlite:", "postgresql"))


LATEST = [0]  # when the last run that was inserted began
PLACES: dict[tuple[str, str], str] = {}  # store and experiment → where its artifacts are


def insert_run(uri: str, experiment: str, place: str, tags: Mapping[str, str], status: str) -> str:
    """What MLflow's `create_run` and `set_terminated` store. No two begin in one millisecond: they are listed in the
    order in which they began."""
    from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from mlflow.utils.name_utils import _generate_random_name
    from sqlalchemy import insert

    run_id, named = uuid.uuid4().hex, {"mlflow.runName": _generate_random_name(), **tags}
    LATEST[0] = began = max(int(time.time() * 1000), LATEST[0] + 1)
    row = {
        "run_uuid": run_id,
        "name": named["mlflow.runName"],
        "experiment_id": int(experiment),
        "artifact_uri": f"{place}/{run_id}/artifacts",
        "source_type": "UNKNOWN",
        "source_name": "",
        "source_version": "",
        "entry_point_name": "",
        "user_id": "unknown",
        "status": status,
        "start_time": began,
        "end_time": began + 20,
        "lifecycle_stage": "active",
    }
    with SqlAlchemyStore._engine_map[uri].begin() as connection:
        connection.execute(insert(SqlRun), [row])
        connection.execute(insert(SqlTag), [{"run_uuid": run_id, "key": k, "value": v} for k, v in named.items()])
    return run_id


def write(uri: str, run_id: str, values: Mapping[str, np.ndarray]) -> None:
    """Metrics as MLflow's `log_batch` stores them, in a tenth of its time; the last value stands at the last step."""
    if not in_database(uri):
        write_by_request(uri, run_id, values)
        return
    from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy import insert

    rows = {key: points(run_id, key, series) for key, series in values.items()}
    with SqlAlchemyStore._engine_map[uri].begin() as connection:
        connection.execute(insert(SqlMetric), [row for series in rows.values() for row in series])
        connection.execute(insert(SqlLatestMetric), [series[-1] for series in rows.values()])


def write_by_request(uri: str, run_id: str, values: Mapping[str, np.ndarray]) -> None:
    """The same to a server."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    first = {key: STEPS - len(series) + 1 for key, series in values.items()}
    metrics = [
        Metric(key, float(value), 1_700_000_000_000 + step, step)
        for key, series in values.items()
        for step, value in enumerate(series, first[key])
    ]
    for start in range(0, len(metrics), 1000):
        MlflowClient(uri).log_batch(run_id, metrics=metrics[start : start + 1000])


def points(run_id: str, key: str, values: np.ndarray) -> list[dict[str, Any]]:
    """Rows of MLflow's table; it stores a NaN as 0 and says so."""
    first = STEPS - len(values) + 1
    return [
        {
            "run_uuid": run_id,
            "key": key,
            "value": 0.0 if value != value else value,
            "timestamp": 1_700_000_000_000 + step,
            "step": step,
            "is_nan": value != value,
        }
        for step, value in enumerate(values.tolist(), first)
    ]
