"""More runs of a session that is still going on, where its plan of looks or its machine asks for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from canary_mlflow.errors import BrokeOff, CanaryError
from canary_mlflow.launching.makers import Launched
from canary_mlflow.shown import echo
from training.config import CanaryConfig

if TYPE_CHECKING:
    from mlflow import MlflowClient


class InSession(Launched):
    """Its own runs by its own means, from the code that is running; the champion's through MLflow Projects."""

    def __init__(self, client: MlflowClient, session: str, subject: str, config: CanaryConfig, scratch: Path) -> None:
        super().__init__(client, session, subject, ())
        self.config, self.scratch, self.made = config, scratch, 0

    def prepare(self) -> str:
        return "the code that is running"

    def candidate(self, seed: int) -> None:
        from training import launch

        self.made += 1
        seeded = replace(self.config, seed=seed)
        with launch.crew_of(seeded, self.scratch / f"added-{self.made}", 1) as crew:
            result = launch.train_one(self.client, self.session, seeded, next(crew), f"added {self.made}")
        if launch.code_of(result) not in (0, 1):
            said = f"the run with seed {seed} broke off ({result.failure}): {result.reason}"
            raise BrokeOff(said, result.run_id) if result.raised else CanaryError(said)


def say(line: str) -> None:
    """What goes on, for people."""
    echo(f"canary: {line}", err=True)
