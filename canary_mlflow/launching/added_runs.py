"""Runs that are added to a session: of the candidate's code, and of the champion's beside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import yaml

from canary_mlflow import tags
from canary_mlflow.errors import CanaryError, NoSource, Refused, UsageError, one_line
from canary_mlflow.files.documents import parse_yaml
from canary_mlflow.gates.model.records import Run
from canary_mlflow.launching.projects import ProjectRun, begin
from canary_mlflow.launching.runs import Result, Runner, RunSpec, make_one
from canary_mlflow.launching.sources import Source, different_packages, project_folder, source_of
from canary_mlflow.registry.sessions.orders import order
from canary_mlflow.tracking.describing.fingerprint import hardware
from canary_mlflow.tracking.reading.histories import read_runs
from canary_mlflow.tracking.stores.session import get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient


class AddedRuns:
    """The specs of runs that are added to a session; each raises NoSource if its code or packages are not available.

    `runs`: those of the candidate that recorded its code. `running`: in a session that still goes on, makes the spec of
    a seed from the code that is running instead. A context manager that removes its worktrees at the end.
    """

    def __init__(
        self,
        client: MlflowClient,
        session: str,
        subject: str,
        runs: tuple[Run, ...] = (),
        running: Callable[[int], RunSpec] | None = None,
    ) -> None:
        self.client, self.session, self.subject, self.runs, self.running = client, session, subject, runs, running
        self._own: Source | None = None
        self._champion: dict[str, tuple[Source, Run]] = {}
        self._worktrees = ExitStack()

    def __enter__(self) -> AddedRuns:
        return self

    def __exit__(self, *error: object) -> None:
        self._worktrees.close()

    def prepare(self) -> str:
        """Make the candidate's code available, and say which code it is."""
        if self.running is not None:
            return "the code that is running"
        source = self._source()
        return f"commit {source.commit[:10]}, {'this checkout' if source.here else 'in a worktree'}"

    def _source(self) -> Source:
        """The candidate's code. Raises UsageError on another machine than that of its runs."""
        if self._own is None:
            same_hardware(self.subject, self.runs[0])
            self._own = self._worktrees.enter_context(
                source_of(project_folder(), self.runs[0].environment, self.subject)
            )
        return self._own

    def candidate(self, seed: int) -> RunSpec:
        """One more run of the candidate."""
        if self.running is not None:
            return self.running(seed)
        return ProjectRun(
            name=f"{self.subject} seed {seed}",
            store=self.client.tracking_uri,
            session=self.session,
            seed=seed,
            source=self._source(),
            like=self.runs[0].run_id,
        )

    def prepare_fresh(self, champion: str, runs: tuple[Run, ...]) -> None:
        """Make the champion's code available. `runs`: those that recorded it."""
        if champion in self._champion:
            return
        if not runs:
            raise NoSource(
                f"champion version {champion}: it has no runs; expected one whose code and configuration are known"
            )
        source = source_of(project_folder(), runs[0].environment, f"champion version {champion}")
        self._champion[champion] = (self._worktrees.enter_context(source), runs[0])

    def fresh(self, champion: str, seed: int) -> RunSpec:
        """A run of the champion's code, once prepared: the run is open, and the ledger says what it will be. Raises
        NoSource also where the registry does not let this person say so."""
        source, like = self._champion[champion]
        name = f"champion version {champion}, seed {seed}, beside {self.subject}"
        model = get_run(self.client, self.session).data.tags.get(tags.MODEL_NAME, "")
        run_id = begin(self.client, self.session, name=name, role="baseline", seed=seed)
        try:
            order(self.client, self.session, model, run_id)
        except (Refused, UsageError) as error:
            self.client.set_tag(run_id, tags.ROLE, "not ordered")
            self.client.delete_run(run_id)
            raise NoSource(str(error)) from error
        return ProjectRun(
            name=name,
            store=self.client.tracking_uri,
            session=self.session,
            seed=seed,
            role="baseline",
            run_id=run_id,
            source=source,
            like=like.run_id,
        )

    def take_fresh(self, champion: str, spec: RunSpec, result: Result) -> None:
        """Mark a run as one of the champion's code. Raises NoSource if it has other packages or broke off, which a
        policy may do without."""
        try:
            result.require_end(spec)
        except CanaryError as error:
            if result.raised:  # which is evidence that this code breaks off too
                self.client.set_tag(result.run_id, tags.BASELINE_OF, champion)
            raise NoSource(str(error)) from error
        _, like = self._champion[champion]
        (run,) = read_runs(self.client, [result.run_id], metrics=())
        if other := different_packages(like.environment, run.environment):
            raise NoSource(f"champion version {champion}: its packages could not be had ({', '.join(other[:3])})")
        self.client.set_tag(result.run_id, tags.BASELINE_OF, champion)


def run_champion(added: AddedRuns, runner: Runner, champion: str, runs: tuple[Run, ...], seed: int) -> str:
    """Make a run of the champion's code with the seed of a candidate's; return why it did not finish, or ''."""
    try:
        added.prepare_fresh(champion, runs)
        spec = added.fresh(champion, seed)
        added.take_fresh(champion, spec, make_one(runner, spec))
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


def configuration_of(client: MlflowClient, run_id: str) -> dict[str, Any]:
    """The configuration of a run of ours. Raises UsageError for any other run: only the script that made it can make it
    again."""
    from mlflow.artifacts import load_text
    from mlflow.exceptions import MlflowException

    run = get_run(client, run_id)
    try:
        if all(file.path != "config.yaml" for file in client.list_artifacts(run_id)):
            raise UsageError(
                f"run {run_id}: a script of your own made it, or its config.yaml is gone; expected a run that `canary "
                "run` made; only the script can make it again, for more seeds or under torch.profiler"
            )
        found = parse_yaml(load_text(f"{run.info.artifact_uri}/config.yaml"))
    except (MlflowException, OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(
            f"run {run_id}: no configuration of a canary ({one_line(error)}); expected config.yaml among its "
            "artifacts; a script of your own must make more runs itself"
        ) from error
    if not isinstance(found, dict) or "algo" not in found:
        raise UsageError(f"run {run_id}: its config.yaml is no canary's; expected keys such as algo and tier")
    return found
