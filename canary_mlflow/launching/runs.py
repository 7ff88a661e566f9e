"""Runs that are to be made, how they ended, and who makes them."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from canary_mlflow.errors import BrokeOff, CanaryError, NoSource
from canary_mlflow.tracking.describing.failures import UNSTABLE

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.gates.model.records import Raised, Run

NO_SOURCE = "source"
"""The failure of a run that could not be made, as its code or its packages are not available."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """A run that is to be made.

    `makes`: the function that makes it, as an entry point, because who names a run has not always loaded what makes it.
    `name`: for people. `run_id`: the run, if it is already open. `tags`: more tags for it.
    """

    makes: ClassVar[str]
    name: str
    store: str
    session: str
    seed: int
    role: str = "run"  # or baseline: made beside a candidate's, with the champion's code
    run_id: str = ""
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended. failure: "" | instability | oom | timeout | interrupted | error | config, or NO_SOURCE.

    `raised`: the exception that ended it; None also if its process left no message. `evaluation`: what
    training.evaluation.repeat_evaluation found, if the run kept its weights. `workload`: what two runs must share to be
    compared; empty if its data could not be prepared, or other code did so. `note`: what a reader should know of it.
    `certain`: the check that its session fails with it, whatever its other runs show.
    """

    seed: int
    run_id: str = ""
    failure: str = ""
    reason: str = ""
    raised: Raised | None = None
    evaluation: dict[str, Any] | None = None
    workload: dict[str, str] = field(default_factory=dict)
    note: str = ""
    certain: str = ""

    @property
    def broke_off(self) -> bool:
        """Whether it ended before its time; not so if it became unstable, which tells something about its code."""
        return bool(self.failure) and self.failure not in UNSTABLE

    def require_end(self, spec: RunSpec) -> None:
        """Raise BrokeOff if an exception of its code ended the run, NoSource if it could not be made, CanaryError if
        it broke off otherwise."""
        if self.failure == NO_SOURCE:
            raise NoSource(self.reason)
        if self.broke_off:
            why = self.reason or "its own output above may say why"
            said = f"{spec.name}: run {self.run_id} broke off ({self.failure}): {why}"
            raise BrokeOff(said) if self.raised else CanaryError(said)


class Runner(Protocol):
    """Makes runs."""

    at_once: bool  # they are made side by side: one may have ended before its turn comes

    def make(self, specs: Iterable[RunSpec]) -> Iterator[tuple[RunSpec, Result]]:
        """Make the runs, and tell in their order how they ended; the end of the iteration also ends what is still being
        made. Raises CanaryError for what no run has recorded."""

    def can_reuse_machine(self, run: Run) -> bool:
        """Whether another run can be made on the machine where this one was made."""

    def is_elsewhere(self, run: Run) -> bool:
        """Whether the next run may be made on another machine than this one."""


class Here:
    """Makes runs on this machine, each when its result is asked for, which is also when its spec is."""

    at_once = False

    def __init__(self, client: MlflowClient) -> None:
        self.client = client

    def make(self, specs: Iterable[RunSpec]) -> Iterator[tuple[RunSpec, Result]]:
        for spec in specs:
            yield spec, self.one(spec)

    def one(self, spec: RunSpec) -> Result:
        """Make one run."""
        return made(self.client, spec)

    def can_reuse_machine(self, run: Run) -> bool:
        return run.environment.get("host") == platform.node()

    def is_elsewhere(self, run: Run) -> bool:
        return not self.can_reuse_machine(run)


def made(client: MlflowClient, spec: RunSpec) -> Result:
    """Make the run in this process, or in one that it starts."""
    module, _, name = spec.makes.partition(":")
    try:
        result: Result = getattr(import_module(module), name)(client, spec)
    except NoSource as error:
        return Result(seed=spec.seed, run_id=spec.run_id, failure=NO_SOURCE, reason=str(error))
    return result


def make_one(runner: Runner, spec: RunSpec) -> Result:
    """Make one run."""
    ((_, result),) = runner.make([spec])
    return result
