"""Who makes one more run: of the candidate's code, or of the champion's beside it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from canary_mlflow.errors import BrokeOff, NoSource, UsageError
from canary_mlflow.launching.projects import launch
from canary_mlflow.launching.sources import Source, different_packages, project_folder, source_of
from canary_mlflow.tracking.fingerprint import hardware
from canary_mlflow.tracking.histories import FRESH_TAG, read_runs
from gates.records import Run

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Maker(Protocol):
    """What a plan of looks needs made. Raises NoSource where code or packages cannot be had, CanaryError where a run
    breaks off for a reason outside."""

    def candidate(self, seed: int) -> None:
        """One more run of the candidate."""

    def prepare(self) -> str:
        """See to it that the candidate's code can be had, and say which that is."""

    def prepare_fresh(self, champion: str, runs: tuple[Run, ...]) -> None:
        """See to it that the champion's code can be had; `runs` are those that recorded it."""

    def fresh(self, champion: str, seed: int) -> None:
        """One run of the champion's code, once prepared."""


class Launched:
    """Runs through MLflow Projects, each in a process of its own, from the code that the earlier ones recorded.

    A context manager: worktrees go when it ends.
    """

    def __init__(self, client: MlflowClient, session: str, subject: str, runs: tuple[Run, ...]) -> None:
        self.client, self.session, self.subject, self.runs = client, session, subject, runs
        self._own: Source | None = None
        self._champion: dict[str, tuple[Source, Run]] = {}
        self._worktrees = ExitStack()

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *error: object) -> None:
        self._worktrees.close()

    def source(self) -> Source:
        """The candidate's code. Raises NoSource; UsageError on another machine than its runs were made on."""
        if self._own is None:
            same_hardware(self.subject, self.runs[0])
            self._own = self._worktrees.enter_context(
                source_of(project_folder(), self.runs[0].environment, self.subject)
            )
        return self._own

    def prepare(self) -> str:
        source = self.source()
        return f"commit {source.commit[:10]}, {'this checkout' if source.here else 'in a worktree'}"

    def candidate(self, seed: int) -> None:
        like = self.runs[0].run_id
        name = f"{self.subject} seed {seed}"
        launch(self.client, self.source(), self.session, name=name, role="run", seed=seed, like=like)

    def prepare_fresh(self, champion: str, runs: tuple[Run, ...]) -> None:
        if champion in self._champion:
            return
        if not runs:
            raise NoSource(
                f"champion version {champion}: it has no runs; expected one whose code and configuration are known"
            )
        source = source_of(project_folder(), runs[0].environment, f"champion version {champion}")
        self._champion[champion] = (self._worktrees.enter_context(source), runs[0])

    def fresh(self, champion: str, seed: int) -> None:
        source, like = self._champion[champion]
        name = f"champion version {champion}, seed {seed}, beside {self.subject}"
        try:
            made = launch(
                self.client, source, self.session, name=name, role="baseline", seed=seed, like=like.run_id
            )  # fmt: skip
        except BrokeOff as error:
            self.client.set_tag(error.run_id, FRESH_TAG, champion)  # that this code breaks off too is evidence
            raise NoSource(str(error)) from error
        (run,) = read_runs(self.client, [made], metrics=())
        if other := different_packages(like.environment, run.environment):
            raise NoSource(f"champion version {champion}: its packages could not be had ({', '.join(other[:3])})")
        self.client.set_tag(made, FRESH_TAG, champion)  # from here on it is evidence


def champion_beside(maker: Maker, champion: str, runs: tuple[Run, ...], seed: int) -> str:
    """A run of the champion's code with the seed of a candidate's; why there is none that finished, '' for one."""
    try:
        maker.prepare_fresh(champion, runs)
        maker.fresh(champion, seed)
    except NoSource as error:
        return str(error)
    return ""


def same_hardware(subject: str, run: Run) -> None:
    """Raise UsageError where this is not the hardware of the earlier runs: added ones would not be comparable."""
    here = hardware(run.hardware.get("backend", "cpu"))
    if (found := here["device"]) != (expected := run.hardware.get("device", found)):
        raise UsageError(
            f"{subject}: this machine has {found}; expected {expected}, which its runs were made on; run it there"
        )
