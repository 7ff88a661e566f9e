"""Makes runs on a Ray cluster: one task per pair, repeated as a whole if its node is lost, ended with this process.

The only module that imports Ray, and only if it is asked for.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from canary_mlflow.errors import CanaryError, UsageError, one_line
from canary_mlflow.launching import on_node
from canary_mlflow.tracking import signals

HANDED_ON = ("MLFLOW_", "CANARY_", "HF_", "AWS_", "TRANSFORMERS_")  # environment variables passed on to the nodes
KEPT_HERE = ("MLFLOW_RUN_ID", "CANARY_LAUNCHER", "CANARY_PARENT_RUN_ID")
GRACE = 40.0  # seconds that a node has to end its runs and record that
POLL = 1.0  # seconds
ROOT = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a pair takes on its node, and how the cluster is reached. `cpus` None: more than half of the largest node,
    so that no two pairs share a node and disturb each other's clocks. `gpus` None: one, if the cluster has any."""

    address: str = "auto"
    cpus: float | None = None
    gpus: float | None = None
    host_class: str | None = None
    attempts: int = 3
    wait_minutes: float = 10
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run: a function of an installed module, `package.module:name`, and its arguments as JSON values."""

    entry: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What is made on one node, in this order. `node`: the id of the preferred one, as long as it exists."""

    name: str
    tasks: tuple[Task, ...]
    node: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


Lost = Callable[[str, str], None]
"""Called with the id of a unit whose node is lost, and why, before the unit is repeated."""


def needs_of(plain: Mapping[str, Any]) -> Needs:
    """What a composed canary asks of a cluster."""
    hardware, launcher = plain.get("hardware") or {}, plain.get("launcher") or {}
    known = {key: launcher[key] for key in ("cpus", "attempts", "wait_minutes", "runtime_env") if key in launcher}
    return Needs(
        address=launcher.get("address") or "auto",
        gpus={"cpu": 0.0, "cuda": float(hardware.get("gpus", 1))}.get(hardware.get("device", "auto")),
        host_class=hardware.get("host_class"),
        threads=int(hardware.get("threads", 1)),
        **known,
    )


def require_ray() -> None:
    """Raise UsageError if Ray is not installed."""
    if find_spec("ray") is None:
        raise UsageError('launcher=ray: Ray is not installed; expected it; pip install "canary-mlflow[ray]"')


@contextmanager
def connected(needs: Needs, store: str, say: Callable[[str], None]) -> Iterator[Cluster]:
    """A cluster, for the length of a block; a nested block gets the same connection.

    Raises UsageError if there is none, or if its nodes cannot reach the store.
    """
    require_ray()
    import ray

    outermost = not ray.is_initialized()
    if outermost:
        _connect(ray, needs)
    try:
        cluster = Cluster(ray, needs, say)
        cluster.require_common(store)
        yield cluster
    finally:
        if outermost:
            ray.shutdown()


def _connect(ray: Any, needs: Needs) -> None:
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(
            address=needs.address,
            runtime_env=dict(needs.runtime_env) or None,
            log_to_driver=True,
            logging_level="ERROR",
        )
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise UsageError(
            f"launcher=ray: no cluster at {needs.address} ({one_line(error, 120)}); expected one; ray start --head, or "
            "set RAY_ADDRESS or launcher.address"
        ) from error
    finally:
        with suppress(ValueError):  # not in the main thread; then Ray leaves its signals alone
            for each, handler in handlers.items():
                signal.signal(each, handler)


class Cluster:
    """A connection to a cluster."""

    def __init__(self, ray: Any, needs: Needs, say: Callable[[str], None]) -> None:
        self.ray, self.needs, self.say = ray, needs, say

    def nodes(self) -> dict[str, Mapping[str, Any]]:
        """The nodes that are alive, by id."""
        return {str(node["NodeID"]): node for node in self.ray.nodes() if node["Alive"]}

    def require_common(self, store: str) -> None:
        """Raise UsageError if nodes on other machines would have to write into a file on this one."""
        hosts = {str(node["NodeManagerHostname"]) for node in self.nodes().values()}
        if not store.startswith(("sqlite:", "file:")) or hosts <= {os.uname().nodename}:
            return
        raise UsageError(
            f"launcher=ray: the store {store} is a file of this machine, and the cluster has {len(hosts)} of them; "
            "expected a server or PostgreSQL, which all can reach; set MLFLOW_TRACKING_URI"
        )

    def resources(self) -> dict[str, Any]:
        """What a unit takes on its node, in Ray's terms."""
        total = [node["Resources"] for node in self.nodes().values()]
        gpus = self.needs.gpus
        if gpus is None:
            gpus = 1.0 if any(one.get("GPU", 0) >= 1 for one in total) else 0.0
        cpus = self.needs.cpus
        if cpus is None:
            largest = max((one.get("CPU", 0.0) for one in total), default=0.0)
            cpus = float(self.needs.threads) if gpus else max(float(self.needs.threads), largest // 2 + 1)
        own = {self.needs.host_class: 1.0} if self.needs.host_class else {}
        return {"num_cpus": cpus, "num_gpus": gpus, "resources": own}

    def fits(self, wanted: Mapping[str, Any]) -> bool:
        """Whether any live node has as much, free or not."""
        asked = {"CPU": wanted["num_cpus"], "GPU": wanted["num_gpus"], **wanted["resources"]}
        return any(
            all(node["Resources"].get(key, 0.0) >= value for key, value in asked.items() if value)
            for node in self.nodes().values()
        )

    def make(self, units: Sequence[Unit], lost: Lost) -> Iterator[list[on_node.Outcome]]:
        """How each unit's runs ended, in the order of the units; all are made at once, as far as there is room.

        The end of the iteration also ends what is still being made. Raises CanaryError for a unit whose nodes were lost
        `attempts` times, and if no node fits for `wait_minutes`.
        """
        running = {unit.name: self._submit(unit) for unit in units}
        attempts = dict.fromkeys(running, 1)
        units_by_name = {unit.name: unit for unit in units}
        waiting = Waiting(self)
        try:
            for unit in units:
                while True:
                    self._follow(list(running.values()), running[unit.name], waiting)
                    try:
                        found = self.ray.get(running[unit.name])
                        break
                    except self._losses() as error:
                        why = one_line(error, 160)
                    now = units_by_name[unit.name]
                    lost(now.id, why)
                    if attempts[unit.name] >= self.needs.attempts:
                        raise CanaryError(
                            f"{unit.name}: its node was lost {attempts[unit.name]} times ({why}); expected nodes that "
                            "stay; look at the cluster's events"
                        )
                    attempts[unit.name] += 1
                    self.say(f"{unit.name}: its node was lost; making it again, whole")
                    units_by_name[unit.name] = replace(now, id=uuid.uuid4().hex, node="")
                    running[unit.name] = self._submit(units_by_name[unit.name])
                del running[unit.name]
                yield [on_node.Outcome(**one) for one in found]
        finally:
            self._end(list(running.values()))

    def _submit(self, unit: Unit) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        near = unit.node in self.nodes()
        strategy = NodeAffinitySchedulingStrategy(unit.node, soft=True) if near else "SPREAD"
        options = {**self.resources(), "scheduling_strategy": strategy, "name": unit.name}
        # A fresh process for each, so that no unit inherits what another left in the environment.
        remote = self.ray.remote(max_retries=0, max_calls=1, **options)(_on_node())
        return remote.remote(ROOT, json_of(unit))

    def _follow(self, all_of_them: Sequence[Any], wanted: Any, waiting: Waiting) -> None:
        """Wait until the wanted task has ended, watching over all of them for want of nodes."""
        with signals.waiting():
            while not self.ray.wait([wanted], timeout=POLL)[0]:
                waiting.look(len(self.ray.wait(list(all_of_them), num_returns=len(all_of_them), timeout=0)[1]))

    def _losses(self) -> tuple[type[Exception], ...]:
        """Ray's exceptions for a node, or a Ray process on it, that is gone."""
        errors = self.ray.exceptions
        return (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.LocalRayletDiedError,
            errors.ObjectLostError,
            errors.TaskUnschedulableError,
            errors.OutOfMemoryError,
        )

    def _end(self, running: Sequence[Any]) -> None:
        """Let the nodes end their runs and record that, and wait for them.

        None that has ended is cancelled: its value can be here before Ray's own books are closed, and Ray 2.60 then
        aborts this process, with exit code 1.
        """
        for ref in self._not_ended(running, 0):
            with suppress(Exception):  # it has ended meanwhile, or the cluster has
                self.ray.cancel(ref)
        with suppress(Exception):
            for ref in self._not_ended(running, GRACE):
                self.ray.cancel(ref, force=True)

    def _not_ended(self, tasks: Sequence[Any], seconds: float) -> list[Any]:
        """Those that run after so many seconds, or until all have ended."""
        if not tasks:
            return []
        return list(self.ray.wait(list(tasks), num_returns=len(tasks), timeout=seconds)[1])


class Waiting:
    """Tracks for how long no node has fitted."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.since, self.said = cluster, time.monotonic(), False

    def look(self, left: int) -> None:
        """Raise CanaryError after `wait_minutes` in which no node fitted."""
        wanted = self.cluster.resources()
        if self.cluster.fits(wanted):
            self.since, self.said = time.monotonic(), False
            return
        asked = {"CPU": wanted["num_cpus"], "GPU": wanted["num_gpus"], **wanted["resources"]}
        what = ", ".join(f"{key} {value:g}" for key, value in asked.items() if value)
        minutes = self.cluster.needs.wait_minutes
        if not self.said:
            self.cluster.say(f"no node of the cluster has {what}; waiting up to {minutes:g} minutes for one")
            self.said = True
        if time.monotonic() - self.since > minutes * 60:
            raise CanaryError(
                f"launcher=ray: no node had {what} for {minutes:g} minutes, and {left} units are left; expected one; "
                "add nodes, or set hardware.host_class, hardware.gpus or launcher.cpus to what they have"
            )


def json_of(unit: Unit) -> dict[str, Any]:
    """What is sent to the node."""
    handed_on = {key: value for key, value in os.environ.items() if key.startswith(HANDED_ON) and key not in KEPT_HERE}
    return {
        "id": unit.id,
        "environment": handed_on,
        "folder": str(Path.cwd()),
        "tasks": [{"entry": task.entry, "arguments": dict(task.arguments)} for task in unit.tasks],
    }


def _on_node() -> Callable[[str, Mapping[str, Any]], list[dict[str, Any]]]:
    """The function that a node calls. It is sent by value, as the package need not be on the path of the node's
    Python."""

    def perform(root: str, unit: Mapping[str, Any]) -> list[dict[str, Any]]:
        import ray

        if root not in sys.path and Path(root, "canary_mlflow").is_dir():
            sys.path.insert(0, root)
        from canary_mlflow.launching.on_node import perform as carry_out

        return carry_out(unit, ray.get_runtime_context().get_node_id())

    return perform
