"""A comparison of two revisions on a cluster: its pairs at once, each on one node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter

from canary_mlflow.launching.cluster import Cluster, Unit, connected, needs_of
from canary_mlflow.launching.composing import composed
from canary_mlflow.launching.on_cluster import forget, node_of_seed, project_task, say_units
from canary_mlflow.launching.revisions import SIDES, Trial


@contextmanager
def on(launcher: str, trial: Trial, say: Callable[[str], None]) -> Iterator[Trial]:
    """The trial, with its runs made where the launcher makes them. Raises UsageError if there is no cluster."""
    if launcher != "ray":
        yield trial
        return
    needs = needs_of(composed(trial.sources[SIDES[1]], trial.overrides))
    with connected(needs, trial.client.tracking_uri, say) as cluster:
        yield OnNodes(**vars(trial), cluster=cluster)


@dataclass(frozen=True, kw_only=True)
class OnNodes(Trial):
    """As `Trial`, but on the nodes of a cluster."""

    cluster: Cluster

    def turns(self, wanted: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int, Callable[[], None]]]:
        pairs = [(seed, [side for side, _ in turns]) for seed, turns in groupby(wanted, key=itemgetter(1))]
        units = [self._unit(seed, sides) for seed, sides in pairs]
        say_units(self.cluster, units)
        outcomes = self.cluster.make(units, partial(forget, self.client, list(self.sessions.values())))
        for (seed, sides), found in zip(pairs, outcomes, strict=True):
            for side, outcome in zip(sides, found, strict=False):
                yield side, seed, partial(_settle, outcome.settle)

    def make(self, side: str, seed: int) -> None:
        for _, _, made in self.turns([(side, seed)]):
            made()

    def _unit(self, seed: int, sides: Sequence[str]) -> Unit:
        tasks = tuple(
            project_task(
                self.client,
                self.sessions[side],
                self.sources[side],
                name=f"{side} seed {seed}",
                role="run",
                seed=seed,
                overrides=self.overrides,
            )
            for side in sides
        )
        places = (node_of_seed(self.client, session, seed) for session in self.sessions.values())
        return Unit(name=f"seed {seed}", tasks=tasks, node=next(filter(None, places), ""))


def _settle(returned: Callable[[], object]) -> None:
    returned()
