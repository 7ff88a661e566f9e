"""Makers of single runs: from the candidate's code, or from the champion's beside it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from canary_mlflow import tags
from canary_mlflow.errors import BrokeOff, NoSource, Refused, UsageError
from canary_mlflow.launching.missing_runs import Turn
from canary_mlflow.launching.projects import begin, launch
from canary_mlflow.launching.sources import Source, different_packages, project_folder, source_of
from canary_mlflow.registry.sessions.orders import order
from canary_mlflow.tracking.describing.fingerprint import hardware
from canary_mlflow.tracking.reading.histories import read_runs
from canary_mlflow.tracking.stores.session import get_run
from gates.model.records import Run

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Maker(Protocol):
    """Makes the runs that a plan of looks needs. Raises NoSource if code or packages are not available, CanaryError if
    a run breaks off for an outside reason."""

    at_once: bool  # the runs of a look are made side by side: one may have ended before its turn comes

    def candidate(self, seed: int) -> None:
        """Make one more run of the candidate."""

    def prepare(self) -> str:
        """Make the candidate's code available, and say which code it is."""

    def prepare_fresh(self, champion: str, runs: tuple[Run, ...]) -> None:
        """Make the champion's code available. `runs`: those that recorded it."""

    def fresh(self, champion: str, seed: int) -> None:
        """Make one run of the champion's code, once prepared."""

    def turns(self, wanted: Iterable[tuple[Turn, int]], champion: str | None) -> Iterator[tuple[Turn, int, Made]]:
        """The runs of a look, by side and seed, in this order, each with a function. Calling the function makes sure
        that the run is made, or raises as `candidate` or `fresh` do. A maker may already have begun several."""

    def can_reuse_machine(self, run: Run) -> bool:
        """Whether another run can be made on the machine where this one was made."""

    def is_elsewhere(self, run: Run) -> bool:
        """Whether the next run may be made on another machine than this one."""


Made = Callable[[], None]


class OneByOne:
    """Makes the runs of a look one by one, when they are called for, on this machine."""

    at_once = False

    def turns(
        self: Maker, wanted: Iterable[tuple[Turn, int]], champion: str | None
    ) -> Iterator[tuple[Turn, int, Made]]:
        for turn, seed in wanted:
            if turn is Turn.CANDIDATE:
                yield turn, seed, partial(self.candidate, seed)
            elif champion is not None:
                yield turn, seed, partial(self.fresh, champion, seed)

    def can_reuse_machine(self, run: Run) -> bool:
        return run.environment.get("host") == platform.node()

    def is_elsewhere(self, run: Run) -> bool:
        return not OneByOne.can_reuse_machine(self, run)


class Launched(OneByOne):
    """Makes runs through MLflow Projects, each in a separate process, from the code that the earlier ones recorded.

    A context manager that removes its worktrees at the end.
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
        """The candidate's code. Raises NoSource; UsageError on another machine than that of its runs."""
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
        launch(self.client, session=self.session, **self.asked(seed))

    def asked(self, seed: int) -> dict[str, Any]:
        """A run of the candidate: what `launch` is to be told."""
        name = f"{self.subject} seed {seed}"
        return {"source": self.source(), "name": name, "role": "run", "seed": seed, "like": self.runs[0].run_id}

    def asked_fresh(self, champion: str, seed: int) -> dict[str, Any]:
        """The same for a run of the champion's code, once prepared: the run is open, and the ledger says what it will
        be. Raises NoSource where the registry does not let this person say so."""
        source, like = self._champion[champion]
        what: dict[str, Any] = {
            "name": f"champion version {champion}, seed {seed}, beside {self.subject}",
            "role": "baseline",
            "seed": seed,
        }
        model = get_run(self.client, self.session).data.tags.get(tags.MODEL_NAME, "")
        run_id = begin(self.client, self.session, **what)
        try:
            order(self.client, self.session, model, run_id)
        except (Refused, UsageError) as error:
            self.client.set_tag(run_id, tags.ROLE, "not ordered")
            self.client.delete_run(run_id)
            raise NoSource(str(error)) from error
        return {"source": source, "like": like.run_id, "begun": run_id, **what}

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
        asked = self.asked_fresh(champion, seed)
        self.take_fresh(champion, lambda: launch(self.client, session=self.session, **asked))

    def take_fresh(self, champion: str, make: Callable[[], str]) -> None:
        """Mark the run whose id `make` returns, if it has the champion's packages."""
        _, like = self._champion[champion]
        try:
            made = make()
        except BrokeOff as error:  # which is evidence that this code breaks off too
            self.client.set_tag(error.run_id, tags.BASELINE_OF, champion)
            raise NoSource(str(error)) from error
        (run,) = read_runs(self.client, [made], metrics=())
        if other := different_packages(like.environment, run.environment):
            raise NoSource(f"champion version {champion}: its packages could not be had ({', '.join(other[:3])})")
        self.client.set_tag(made, tags.BASELINE_OF, champion)


def run_champion(maker: Maker, champion: str, runs: tuple[Run, ...], seed: int) -> str:
    """Make a run of the champion's code with the seed of a candidate's; return why it did not finish, or ''."""
    try:
        maker.prepare_fresh(champion, runs)
        maker.fresh(champion, seed)
    except NoSource as error:
        return str(error)
    return ""


def same_hardware(subject: str, run: Run) -> None:
    """Raise UsageError if this is not the hardware of the earlier runs: added runs would not be comparable."""
    here = hardware(run.hardware.get("backend", "cpu"))
    if (found := here["device"]) != (expected := run.hardware.get("device", found)):
        raise UsageError(
            f"{subject}: this machine has {found}; expected {expected}, which its runs were made on; run it there"
        )
