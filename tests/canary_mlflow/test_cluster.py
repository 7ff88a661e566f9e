"""Units on a cluster, with a Ray that is made up: no unit is cancelled that has ended, and a lost one is made again.

What a real Ray does is in tests/training/test_on_ray.py.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from canary_mlflow.errors import CanaryError
from canary_mlflow.launching.cluster import Cluster, Needs
from canary_mlflow.launching.runs import Result, RunSpec
from canary_mlflow.tags import CLUSTER_UNIT
from canary_mlflow.tracking.stores.session import child_runs

NODE = {"NodeID": "n", "Alive": True, "Resources": {"CPU": 2.0}, "NodeManagerHostname": "here"}
LOSSES = (
    "WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError", "ObjectLostError", "TaskUnschedulableError",
    "OutOfMemoryError",
)  # fmt: skip


class MadeUp:
    """Tasks end as told, in the order in which they are submitted: with a value, with an error, or never (None)."""

    exceptions = SimpleNamespace(**{name: type(name, (Exception,), {}) for name in LOSSES})

    def __init__(self, *ends: Any) -> None:
        self.ends, self.units, self.cancelled = ends, [], []

    def nodes(self) -> list[dict[str, Any]]:
        return [NODE]

    def remote(self, **options: Any) -> Any:
        return lambda function: SimpleNamespace(remote=self._submit)

    def _submit(self, root: str, unit: dict[str, Any]) -> int:
        self.units.append(unit["id"])
        return len(self.units) - 1

    def wait(self, tasks: list[int], num_returns: int = 1, timeout: float = 0) -> tuple[list[int], list[int]]:
        ended = [task for task in tasks if self.ends[task] is not None]
        return ended, [task for task in tasks if task not in ended]

    def get(self, task: int) -> Any:
        if isinstance(self.ends[task], Exception):
            raise self.ends[task]
        return self.ends[task]

    def cancel(self, task: int, force: bool = False) -> None:
        self.cancelled.append(task)


@pytest.fixture(autouse=True)
def _strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ray", "ray.util", "ray.util.scheduling_strategies"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["ray.util.scheduling_strategies"].NodeAffinitySchedulingStrategy = object  # type: ignore[attr-defined]


def cluster(ray: MadeUp, client: Any = None, said: list[str] | None = None) -> Cluster:
    return Cluster(ray, client, Needs(attempts=2), (said if said is not None else []).append)


def specs(count: int, session: str = "") -> list[RunSpec]:
    return [RunSpec(name=f"run {seed}", store="", session=session, seed=seed) for seed in range(count)]


def ended(*seeds: int, error: CanaryError | None = None) -> Any:
    return "n", [Result(seed=seed, run_id=str(seed)) for seed in seeds], error


def test_only_what_still_runs_is_cancelled() -> None:
    ray = MadeUp(ended(0), ended(1), None)
    for _, result in cluster(ray).make(specs(3)):
        assert result.run_id == "0"
        break  # as one does whose run broke off; the second has ended unseen, the third runs
    assert set(ray.cancelled) == {2}


def test_the_sides_of_a_seed_go_to_one_node_and_an_error_there_ends_them() -> None:
    ray = MadeUp(ended(0, 0), ended(1, error=CanaryError("its store is full")))
    made = cluster(ray).make([*specs(1), *specs(2), specs(2)[1]])
    assert [next(made)[1].seed for _ in range(3)] == [0, 0, 1]
    with pytest.raises(CanaryError, match="its store is full"):
        next(made)
    assert len(ray.units) == 2


def test_a_unit_of_a_lost_node_is_made_again_under_another_id(recorded: Any) -> None:
    session = recorded.session(runs=0)

    class Losing(MadeUp):
        def get(self, task: int) -> Any:
            tags = {CLUSTER_UNIT: self.units[task]}
            recorded.run(session, 0, slower=1.0, tags=tags, nan_at=None, without=())
            return super().get(task)

    gone, said = MadeUp.exceptions.NodeDiedError("the node died"), list[str]()
    ray = Losing(gone, ended(0))
    ((_, result),) = cluster(ray, recorded.client, said).make(specs(1, session))
    assert result.run_id == "0"
    assert ray.units[1] != ray.units[0]
    assert "run 0: its node was lost; making it again, whole" in said
    tags = [run.data.tags for run in child_runs(recorded.client, session)]
    assert [tag.get("canary.failure", "") for tag in tags if tag[CLUSTER_UNIT] == ray.units[0]] == ["interrupted"]
    assert [tag.get("canary.failure", "") for tag in tags if tag[CLUSTER_UNIT] == ray.units[1]] == [""]


def test_nodes_that_are_lost_again_and_again_end_the_session() -> None:
    gone = MadeUp.exceptions.NodeDiedError("the node died")
    with pytest.raises(CanaryError, match="its node was lost 2 times"):
        list(cluster(MadeUp(gone, gone)).make(specs(1)))
