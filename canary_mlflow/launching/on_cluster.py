"""Makes more runs of a version on a cluster: the pairs of a look at once, both sides of a seed on one node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import yaml

from canary_mlflow.errors import NoSource, UsageError
from canary_mlflow.files.documents import parse_yaml
from canary_mlflow.launching.cluster import Cluster, Task, Unit, connected, needs_of
from canary_mlflow.launching.makers import Launched, Made
from canary_mlflow.launching.missing_runs import Turn
from canary_mlflow.launching.sources import Source, project_folder
from canary_mlflow.tags import CLUSTER_NODE, CLUSTER_UNIT, SEED
from canary_mlflow.tracking.stores.session import child_runs, close_run, get_run
from gates.model.records import Run
from gates.model.wording import counted, listed

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True, kw_only=True)
class Delegated:
    """A task of a unit, and what to do with the value that it returned or the error that it raised."""

    task: Task
    settle: Callable[[Callable[[], Any]], None]


class OnCluster(Launched):
    """As `Launched`, but on the nodes of a cluster."""

    at_once = True

    def __init__(
        self, client: MlflowClient, session: str, subject: str, made: tuple[Run, ...], cluster: Cluster
    ) -> None:
        super().__init__(client, session, subject, made)
        self.cluster = cluster

    def side(self, turn: Turn, seed: int, champion: str | None) -> Delegated:
        """One run of one side."""
        if turn is Turn.CANDIDATE:
            return self.own(seed)
        assert champion is not None
        task = project_task(self.client, self.session, **self.asked_fresh(champion, seed))
        return Delegated(task=task, settle=partial(self.take_fresh, champion))

    def own(self, seed: int) -> Delegated:
        """One run of the candidate."""
        task = project_task(self.client, self.session, **self.asked(seed))
        return Delegated(task=task, settle=lambda returned: returned())

    def candidate(self, seed: int) -> None:
        self._alone(seed, self.own(seed))

    def fresh(self, champion: str, seed: int) -> None:
        self._alone(seed, self.side(Turn.FRESH, seed, champion))

    def turns(self, wanted: Iterable[tuple[Turn, int]], champion: str | None) -> Iterator[tuple[Turn, int, Made]]:
        pairs = [
            (seed, [turn for turn, _ in turns if turn is Turn.CANDIDATE or champion is not None])
            for seed, turns in groupby(wanted, key=itemgetter(1))
        ]
        try:
            sides = {seed: [self.side(turn, seed, champion) for turn in turns] for seed, turns in pairs}
        except NoSource as error:  # the ledger takes no order: only the candidate's runs are made
            yield Turn.FRESH, pairs[0][0], partial(raised, error)
            pairs = [(seed, [Turn.CANDIDATE]) for seed, turns in pairs if Turn.CANDIDATE in turns]
            sides = {seed: [self.own(seed)] for seed, _ in pairs}
        units = [self._unit(seed, sides[seed]) for seed, _ in pairs]
        for (seed, turns), settled in zip(pairs, self._made(units, sides), strict=False):
            for turn, made in zip(turns, settled, strict=False):
                yield turn, seed, made

    def can_reuse_machine(self, run: Run) -> bool:
        return node_of(self.client, run.run_id) in self.cluster.nodes()

    def is_elsewhere(self, run: Run) -> bool:
        return len(self.cluster.nodes()) > 1 or not self.can_reuse_machine(run)

    def _alone(self, seed: int, side: Delegated) -> None:
        for settled in self._made([self._unit(seed, [side])], {seed: [side]}):
            for made in settled:
                made()

    def _unit(self, seed: int, sides: Sequence[Delegated]) -> Unit:
        there = node_of_seed(self.client, self.session, seed)
        return Unit(name=f"seed {seed}", tasks=tuple(side.task for side in sides), node=there)

    def _made(self, units: Sequence[Unit], sides: dict[int, list[Delegated]]) -> Iterator[list[Made]]:
        say_units(self.cluster, units)
        outcomes = self.cluster.make(units, partial(forget, self.client, [self.session]))
        for own, found in zip(sides.values(), outcomes, strict=True):
            yield [
                partial(side.settle, outcome.settle) for side, outcome in zip(own, found, strict=False)
            ]  # fewer outcomes than sides: the last of them raises


def raised(error: Exception) -> None:
    """Raise it: in the turn of the run that cannot be made."""
    raise error


def project_task(client: MlflowClient, session: str, source: Source, **own: Any) -> Task:
    """A run that MLflow Projects makes on a node, which has this checkout by the same path; `own`: as for
    `canary_mlflow.launching.projects.launch`."""
    place = {
        "store": client.tracking_uri,
        "project": str(source.folder if source.here else project_folder()),
        "commit": source.commit,
        "here": source.here,
        "manager": source.env_manager,
        "session": session,
    }
    return Task(entry="canary_mlflow.launching.on_node:project_run", arguments={**place, **own})


def forget(client: MlflowClient, sessions: Sequence[str], unit: str, why: str) -> None:
    """Discard what a lost node made of a unit: it is no evidence, as a pair is repeated as a whole."""
    for session in sessions:
        for run in child_runs(client, session):
            if run.data.tags.get(CLUSTER_UNIT) == unit:
                close_run(client, run.info.run_id, "interrupted", f"its node was lost ({why}); it is made again")


def say_units(cluster: Cluster, units: Sequence[Unit]) -> None:
    """Print what goes to the cluster."""
    made = counted(sum(len(unit.tasks) for unit in units), "run")
    cluster.say(f"making {made} on the cluster: {listed([unit.name for unit in units], most=9)}")


def node_of(client: MlflowClient, run_id: str) -> str:
    """The node on which a run was made; '' if it was not made on a cluster."""
    return str(get_run(client, run_id).data.tags.get(CLUSTER_NODE, ""))


def node_of_seed(client: MlflowClient, session: str, seed: int) -> str:
    """The node of the last run of a seed; its other side belongs beside it."""
    found = [run.data.tags for run in child_runs(client, session) if run.data.tags.get(SEED) == str(seed)]
    return next((tags[CLUSTER_NODE] for tags in reversed(found) if tags.get(CLUSTER_NODE)), "")


@contextmanager
def maker_for(
    launcher: str,
    client: MlflowClient,
    session: str,
    subject: str,
    made: tuple[Run, ...],
    say: Callable[[str], None],
    *,
    connect: bool,
) -> Iterator[Launched]:
    """The maker of more runs of a version: this machine, or a cluster with the settings of the existing runs.

    `connect`: false if nothing will be made, as in a dry run.
    """
    if launcher != "ray" or not connect:
        with Launched(client, session, subject, made) as maker:
            yield maker
        return
    needs = needs_of(configuration_of(client, made[0].run_id))
    with (
        connected(needs, client.tracking_uri, say) as cluster,
        OnCluster(client, session, subject, made, cluster) as maker,
    ):
        yield maker


def configuration_of(client: MlflowClient, run_id: str) -> dict[str, Any]:
    """The configuration of a run. Raises UsageError if it is not recorded."""
    from mlflow.artifacts import load_text
    from mlflow.exceptions import MlflowException

    try:
        found = parse_yaml(load_text(f"{get_run(client, run_id).info.artifact_uri}/config.yaml"))
    except (MlflowException, OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(
            f"run {run_id}: no configuration of a canary; expected config.yaml among its artifacts"
        ) from error
    return found if isinstance(found, dict) else {}
