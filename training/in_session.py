"""Makes more runs in a session that is still going on, if its plan of looks or its machine requires them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from canary_mlflow.errors import BrokeOff, CanaryError
from canary_mlflow.launching.cluster import Cluster, connected, needs_of
from canary_mlflow.launching.makers import Launched
from canary_mlflow.launching.on_cluster import Delegated, OnCluster
from canary_mlflow.shown import say
from training.ahead import workers_of
from training.config import CanaryConfig
from training.crews import LocalCrew, result_from, unit_of
from training.plain import to_plain
from training.process import Result
from training.runs import code_of

if TYPE_CHECKING:
    from mlflow import MlflowClient


class InSession(Launched):
    """Makes the session's runs as its first ones, from the running code; the champion's through MLflow Projects."""

    def __init__(self, client: MlflowClient, session: str, subject: str, config: CanaryConfig, scratch: Path) -> None:
        super().__init__(client, session, subject, ())
        self.config, self.scratch, self.made = config, scratch, 0

    def prepare(self) -> str:
        return "the code that is running"

    def candidate(self, seed: int) -> None:
        self.made += 1
        seeded = replace(self.config, seed=seed)
        with workers_of(seeded, self.scratch / f"added-{self.made}", 1) as loading:
            require_end(LocalCrew(loading).train_one(self.client, self.session, seeded, f"added {self.made}"))


class InSessionOnCluster(OnCluster):
    """The same on the nodes of a cluster, if the session's first runs were made there."""

    def __init__(
        self, client: MlflowClient, session: str, subject: str, config: CanaryConfig, cluster: Cluster
    ) -> None:
        super().__init__(client, session, subject, (), cluster)
        self.config = config

    def prepare(self) -> str:
        return "the code that is running"

    def own(self, seed: int) -> Delegated:
        unit = unit_of(self.client, self.session, replace(self.config, seed=seed), "added")
        return Delegated(task=unit.tasks[0], settle=lambda returned: require_end(result_from(returned()["result"])))


@contextmanager
def maker_in_session(
    client: MlflowClient, session: str, subject: str, config: CanaryConfig, scratch: Path
) -> Iterator[Launched]:
    """The maker of more runs for the running session, at the place where its launcher makes runs."""
    if config.launcher.name == "ray":
        with (
            connected(needs_of(to_plain(config)), client.tracking_uri, say) as cluster,
            InSessionOnCluster(client, session, subject, config, cluster) as maker,
        ):
            yield maker
        return
    with InSession(client, session, subject, config, scratch) as here:
        yield here


def require_end(result: Result) -> None:
    """Raise BrokeOff for a run that an exception of its code ended, CanaryError for one that broke off otherwise."""
    if code_of(result) not in (0, 1):
        said = f"the run with seed {result.seed} broke off ({result.failure}): {result.reason}"
        raise BrokeOff(said, result.run_id) if result.raised else CanaryError(said)
