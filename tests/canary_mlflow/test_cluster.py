"""Units on a cluster, with a Ray that is made up: no unit is cancelled that has ended, and a lost one is made again.

What a real Ray does is in tests/training/test_on_ray.py.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from canary_mlflow.errors import CanaryError
from canary_mlflow.launching.cluster import Cluster, Needs, Task, Unit

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


def cluster(ray: MadeUp, said: list[str] | None = None) -> Cluster:
    return Cluster(ray, Needs(attempts=2), (said if said is not None else []).append)


def units(count: int) -> list[Unit]:
    return [Unit(name=f"seed {number}", tasks=(Task(entry="m:f", arguments={}),)) for number in range(count)]


def test_only_what_still_runs_is_cancelled() -> None:
    ray = MadeUp([{"node": "n", "returned": 1}], [{"node": "n", "returned": 2}], None)
    for (outcome,) in cluster(ray).make(units(3), lambda unit, why: None):
        assert outcome.returned == 1
        break  # as one does whose run broke off; the second has ended unseen, the third runs
    assert set(ray.cancelled) == {2}


def test_a_unit_of_a_lost_node_is_made_again_under_another_id() -> None:
    gone = MadeUp.exceptions.NodeDiedError("the node died")
    ray, lost, said = MadeUp(gone, [{"node": "n", "returned": 1}]), [], list[str]()
    ((outcome,),) = cluster(ray, said).make(units(1), lambda unit, why: lost.append((unit, why)))
    assert outcome.returned == 1
    assert lost == [(ray.units[0], "the node died")]
    assert ray.units[1] != ray.units[0]
    assert said == ["seed 0: its node was lost; making it again, whole"]


def test_nodes_that_are_lost_again_and_again_end_the_session() -> None:
    gone = MadeUp.exceptions.NodeDiedError("the node died")
    with pytest.raises(CanaryError, match="its node was lost 2 times"):
        list(cluster(MadeUp(gone, gone)).make(units(1), lambda unit, why: None))
