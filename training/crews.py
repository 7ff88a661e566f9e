"""Who makes the runs of a session: this machine, one by one, or a cluster, as many at once as it has room for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from canary_mlflow.launching.cluster import Cluster, Task, Unit, connected, needs_of
from canary_mlflow.launching.on_cluster import forget, node_of_seed, say_units
from canary_mlflow.shown import say
from canary_mlflow.tracking.describing.failures import Raised
from canary_mlflow.tracking.stores.owner import lease
from canary_mlflow.tracking.stores.store import resolve
from training.ahead import workers_of
from training.config import CanaryConfig
from training.plain import to_plain
from training.process import Prepared, Result, Worker
from training.runs import train_one, train_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient


AT_THE_END = ("matplotlib.figure",)
"""What the session's end needs, loaded while the runs' processes load as well: a core is free then, and later none may
be busy, as runs are measured."""


class Crew(Protocol):
    """Makes runs of one configuration that differ only in their seed."""

    @property
    def prepared(self) -> Prepared:
        """What a run reports about its work before anything is recorded."""

    def train(
        self,
        client: MlflowClient,
        session: str,
        config: CanaryConfig,
        repeats: int,
        champion: Sequence[str] = (),
        *,
        first: bool = True,
    ) -> list[Result]:
        """Make runs of a session from `config.seed` on, up to the first that breaks off. `champion`: see
        `train_runs`. `first`: they are the session's first runs, the very first of which is the one whose weights a
        version has, and which is profiled."""

    def train_one(self, client: MlflowClient, session: str, config: CanaryConfig, place: str) -> Result:
        """Make one run of a session. `place`: its place among the runs, such as 1/3."""


@contextmanager
def crew_for(
    config: CanaryConfig, scratch: Path, repeats: int, begun: Iterator[Worker] | None = None
) -> Iterator[Crew]:
    """The crew that the launcher names, for the length of a block; the block's end also ends what the crew has
    begun. `begun`: the processes of `repeats` runs, if whoever calls has started them and will end them."""
    if config.launcher.name == "ray":
        store = resolve(config.tracking.uri)
        with connected(needs_of(to_plain(config)), store, say) as cluster:
            yield ClusterCrew(cluster, config)
        return
    with nullcontext(begun) if begun else workers_of(config, scratch, repeats) as loading:
        for name in AT_THE_END:
            with suppress(ImportError):
                import_module(name)
        yield LocalCrew(loading)


class LocalCrew:
    """Makes runs in processes on this machine."""

    def __init__(self, loading: Iterator[Worker]) -> None:
        first = next(loading)
        self.first, self.loading = first, chain([first], loading)

    @property
    def prepared(self) -> Prepared:
        return self.first.prepared

    def train(
        self,
        client: MlflowClient,
        session: str,
        config: CanaryConfig,
        repeats: int,
        champion: Sequence[str] = (),
        *,
        first: bool = True,
    ) -> list[Result]:
        return train_runs(client, session, config, self.loading, repeats, champion, keep_weights=first, profile=first)

    def train_one(self, client: MlflowClient, session: str, config: CanaryConfig, place: str) -> Result:
        return train_one(client, session, config, next(self.loading), place)


@dataclass(frozen=True)
class ClusterCrew:
    """Makes runs on a cluster, one unit per run."""

    cluster: Cluster
    config: CanaryConfig

    @property
    def prepared(self) -> Prepared:
        """As reported by a process on a node, which then ends: this machine may have another device."""
        task = Task(entry="training.on_node:prepare", arguments={"config": to_plain(self.config)})
        unit = Unit(name="prepare", tasks=(task,))
        for (outcome,) in self.cluster.make([unit], lambda unit_id, why: None):
            return Prepared(**outcome.settle())
        raise AssertionError("one unit, one outcome")

    def train(
        self,
        client: MlflowClient,
        session: str,
        config: CanaryConfig,
        repeats: int,
        champion: Sequence[str] = (),
        *,
        first: bool = True,
    ) -> list[Result]:
        seeded = [replace(config, seed=config.seed + index) for index in range(repeats)]
        units = []
        for index, one in enumerate(seeded):
            once = first and index == 0
            place = f"{index + 1}/{repeats}"
            units.append(unit_of(client, session, one, place, champion, keep_weights=once, profile=once))
        results: list[Result] = []
        for result, _ in trained(self.cluster, client, session, units):
            results.append(result)
            if result.failure:  # as on one machine; other runs that have begun are stopped, and are no evidence
                break
        return results

    def train_one(self, client: MlflowClient, session: str, config: CanaryConfig, place: str) -> Result:
        there = node_of_seed(client, session, config.seed)
        unit = replace(unit_of(client, session, config, place), node=there)
        ((result, _),) = trained(self.cluster, client, session, [unit])
        return result


def unit_of(
    client: MlflowClient,
    session: str,
    config: CanaryConfig,
    place: str,
    champion: Sequence[str] = (),
    *,
    keep_weights: bool = False,
    profile: bool = False,
) -> Unit:
    """One run of a session, as a unit for a node."""
    arguments = {
        "config": to_plain(config),
        "store": client.tracking_uri,
        "session": session,
        "place": place,
        "champion": list(champion),
        "keep_weights": keep_weights,
        "profile": profile,
        "holder": lease(),
    }
    task = Task(entry="training.on_node:train", arguments=arguments)
    return Unit(name=f"{config.algo.name} seed {config.seed} ({place})", tasks=(task,))


def trained(
    cluster: Cluster, client: MlflowClient, session: str, units: Sequence[Unit]
) -> Iterator[tuple[Result, dict[str, str]]]:
    """The end of each run, and the work that it did."""
    say_units(cluster, units)
    for (outcome,) in cluster.make(units, partial(forget, client, [session])):
        said = outcome.settle()
        result = result_from(said["result"])
        how = f"broke off ({result.failure}): {result.reason}" if result.failure else "finished"
        say(f"seed {result.seed} on node {outcome.node[:8]}: {how}")
        yield result, said["work"]


def result_from(said: dict[str, Any]) -> Result:
    """The Result that a node sent as JSON."""
    raised = Raised(**said["raised"]) if said["raised"] else None
    return Result(**{**said, "raised": raised})
