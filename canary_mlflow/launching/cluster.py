"""Makes runs on a Ray cluster: a unit per seed, repeated as a whole if its node is lost, ended with this process.

The only module that imports Ray, and only if it is asked for.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import CanaryError, UsageError, one_line
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.wording import counted, listed
from canary_mlflow.launching.runs import Here, Result, Runner, RunSpec, made
from canary_mlflow.tags import CELL, CLUSTER_NODE, CLUSTER_UNIT, SEED
from canary_mlflow.tracking import signals
from canary_mlflow.tracking.stores.session import child_runs, close_run, get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient

HANDED_ON = ("MLFLOW_", "CANARY_", "HF_", "AWS_", "TRANSFORMERS_")  # environment variables passed on to the nodes
KEPT_HERE = ("MLFLOW_RUN_ID", "CANARY_LAUNCHER", "CANARY_PARENT_RUN_ID")
GRACE = 40.0  # seconds that a node, or a job of a sweep, has to end its runs and record that
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
class Unit:
    """What is made on one node, in this order. `node`: the id of the preferred one, as long as it exists."""

    specs: tuple[RunSpec, ...]
    node: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def name(self) -> str:
        """For people."""
        first, *others = self.specs
        return f"seed {first.seed}" if others else first.name


Ended = tuple[str, list[Result], CanaryError | None]
"""What a node answers: its id, how the unit's runs ended, and the error that ended the unit before its last run."""


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
def runner_at(
    launcher: str, client: MlflowClient, config: Callable[[], Mapping[str, Any]], say: Callable[[str], None]
) -> Iterator[Runner]:
    """What makes runs where a launcher does: this machine, or a cluster as the composed canary `config` asks for it."""
    if launcher != "ray":
        yield Here(client)
        return
    with connected(needs_of(config()), client, say) as cluster:
        yield cluster


@contextmanager
def connected(needs: Needs, client: MlflowClient, say: Callable[[str], None]) -> Iterator[Cluster]:
    """A cluster, for the length of a block; a nested block gets the same connection.

    Raises UsageError if there is none, or if its nodes cannot reach the store.
    """
    require_ray()
    import ray

    outermost = not ray.is_initialized()
    if outermost:
        _connect(ray, needs)
    try:
        cluster = Cluster(ray, client, needs, say)
        cluster.require_common(client.tracking_uri)
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
    """A connection to a cluster, on which runs are made all at once, as far as there is room; those of one seed, as the
    two sides of a pair, on one node in turn."""

    at_once = True

    def __init__(self, ray: Any, client: MlflowClient, needs: Needs, say: Callable[[str], None]) -> None:
        self.ray, self.client, self.needs, self.say = ray, client, needs, say

    def make(self, specs: Iterable[RunSpec]) -> Iterator[tuple[RunSpec, Result]]:
        pairs = groupby(specs, key=lambda spec: (spec.seed, spec.tags.get(CELL)))
        units = [self._unit(tuple(both)) for _, both in pairs]
        if runs := sum(bool(spec.session) for unit in units for spec in unit.specs):
            names = listed([unit.name for unit in units], most=9)
            self.say(f"making {counted(runs, 'run')} on the cluster: {names}")
        for unit, (node, results, error) in zip(units, self._ended(units), strict=True):
            for spec, result in zip(unit.specs, results, strict=False):  # fewer, if an error ended the unit
                if spec.session:
                    how = f"broke off ({result.failure}): {result.reason}" if result.failure else "finished"
                    self.say(f"{spec.name} on node {node[:8]}: {how}")
                yield spec, result
            if error is not None:
                raise error

    def can_reuse_machine(self, run: Run) -> bool:
        return str(get_run(self.client, run.run_id).data.tags.get(CLUSTER_NODE, "")) in self.nodes()

    def is_elsewhere(self, run: Run) -> bool:
        return len(self.nodes()) > 1 or not self.can_reuse_machine(run)

    def _unit(self, specs: tuple[RunSpec, ...]) -> Unit:
        """Where the last run of its seed was made, beside which its other side belongs."""
        sessions = {spec.session for spec in specs if spec.session}
        found = [run.data.tags for session in sessions for run in child_runs(self.client, session)]
        there = [tags.get(CLUSTER_NODE, "") for tags in found if tags.get(SEED) == str(specs[0].seed)]
        return Unit(specs=specs, node=next(filter(None, reversed(there)), ""))

    def _forget(self, unit: Unit, why: str) -> None:
        """Discard what a lost node made of a unit: it is no evidence, as a pair is repeated as a whole."""
        for session in {spec.session for spec in unit.specs if spec.session}:
            for run in child_runs(self.client, session):
                if run.data.tags.get(CLUSTER_UNIT) == unit.id:
                    reason = f"its node was lost ({why}); it is made again"
                    close_run(self.client, run.info.run_id, "interrupted", reason)

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

    def resources(self) -> dict[str, float]:
        """What a unit takes on its node, in the words of Ray's nodes."""
        total = [node["Resources"] for node in self.nodes().values()]
        gpus = self.needs.gpus
        if gpus is None:
            gpus = 1.0 if any(one.get("GPU", 0) >= 1 for one in total) else 0.0
        cpus = self.needs.cpus
        if cpus is None:
            largest = max((one.get("CPU", 0.0) for one in total), default=0.0)
            cpus = float(self.needs.threads) if gpus else max(float(self.needs.threads), largest // 2 + 1)
        own = {self.needs.host_class: 1.0} if self.needs.host_class else {}
        return {"CPU": cpus, "GPU": gpus, **own}

    def fits(self, wanted: Mapping[str, float]) -> bool:
        """Whether any live node has as much, free or not."""
        return any(
            all(node["Resources"].get(key, 0.0) >= value for key, value in wanted.items() if value)
            for node in self.nodes().values()
        )

    def _ended(self, units: Sequence[Unit]) -> Iterator[Ended]:
        """How each unit ended, in their order.

        The end of the iteration also ends what is still being made. Raises CanaryError for a unit whose nodes were lost
        `attempts` times, and if no node fits for `wait_minutes`.
        """
        running = {unit.id: self._submit(unit) for unit in units}
        waiting = Waiting(self)
        try:
            for unit in units:
                for attempt in range(1, self.needs.attempts + 1):
                    self._follow(list(running.values()), running[unit.id], waiting)
                    try:
                        found: Ended = self.ray.get(running.pop(unit.id))
                        break
                    except self._losses() as error:
                        why = one_line(error, 160)
                    self._forget(unit, why)
                    if attempt == self.needs.attempts:
                        raise CanaryError(
                            f"{unit.name}: its node was lost {attempt} times ({why}); expected nodes that stay; look "
                            "at the cluster's events"
                        )
                    self.say(f"{unit.name}: its node was lost; making it again, whole")
                    unit = replace(unit, id=uuid.uuid4().hex, node="")
                    running[unit.id] = self._submit(unit)
                yield found
        finally:
            self._end(list(running.values()))

    def _submit(self, unit: Unit) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        near = unit.node in self.nodes()
        strategy = NodeAffinitySchedulingStrategy(unit.node, soft=True) if near else "SPREAD"
        own = self.resources()
        taken = {"num_cpus": own.pop("CPU"), "num_gpus": own.pop("GPU"), "resources": own}
        options = {**taken, "scheduling_strategy": strategy, "name": unit.name}
        # A fresh process for each, so that no unit inherits what another left in the environment.
        remote = self.ray.remote(max_retries=0, max_calls=1, **options)(_on_node())
        return remote.remote(ROOT, wired(unit))

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
        what = ", ".join(f"{key} {value:g}" for key, value in wanted.items() if value)
        minutes = self.cluster.needs.wait_minutes
        if not self.said:
            self.cluster.say(f"no node of the cluster has {what}; waiting up to {minutes:g} minutes for one")
            self.said = True
        if time.monotonic() - self.since > minutes * 60:
            raise CanaryError(
                f"launcher=ray: no node had {what} for {minutes:g} minutes, and {left} units are left; expected one; "
                "add nodes, or set hardware.host_class, hardware.gpus or launcher.cpus to what they have"
            )


def wired(unit: Unit) -> dict[str, Any]:
    """What is sent to the node. The specs are opaque until the node has our package on its path."""
    handed_on = {key: value for key, value in os.environ.items() if key.startswith(HANDED_ON) and key not in KEPT_HERE}
    folder = str(Path.cwd())
    return {"id": unit.id, "environment": handed_on, "folder": folder, "specs": pickle.dumps(unit.specs)}


def _on_node() -> Callable[[str, Mapping[str, Any]], Ended]:
    """The function that a node calls. It is sent by value, as the package need not be on the path of the node's
    Python."""

    def perform(root: str, unit: Mapping[str, Any]) -> Ended:
        import ray

        if root not in sys.path and Path(root, "canary_mlflow").is_dir():
            sys.path.insert(0, root)
        from canary_mlflow.launching.cluster import carry_out

        return carry_out(unit, ray.get_runtime_context().get_node_id())

    return perform


def carry_out(unit: Mapping[str, Any], node: str) -> Ended:
    """Make a unit's runs on this node, in turn. An error that no run has recorded ends the unit; a run that broke off,
    or code that is not available, does not: the other side of a pair is still needed."""
    from canary_mlflow.tracking.stores.store import prepare_store

    os.environ.update(unit["environment"])
    if Path(unit["folder"]).is_dir():  # by a shared path; else where the runtime environment has put the code
        os.chdir(unit["folder"])
    tags = {CLUSTER_NODE: node, CLUSTER_UNIT: str(unit["id"])}
    results: list[Result] = []
    try:
        for spec in pickle.loads(unit["specs"]):
            results.append(made(prepare_store(spec.store), replace(spec, tags={**spec.tags, **tags})))
    except CanaryError as error:
        return node, results, error
    return node, results, None
