"""What measures a run: one probe per file, one protocol, and the dict that names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, float]  # canonical name → value, of one optimizer step


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a probe is told when training begins."""

    model: Any  # torch.nn.Module as the trainer holds it
    device: str  # torch's device type: cpu, cuda, …
    compiled: bool  # under torch.compile; a hook written in Python would break its graph
    ranks: int  # processes that train together
    iterates: bool  # PPO: an epoch is an iteration of rollout and updates
    idle_cpu: Callable[[], float]  # CPU seconds of this process that are not training (our own writer)


class Probe:
    """Does nothing; a probe overrides what it needs. An exception switches the probe off and is said at the end."""

    name = "none"

    def start(self, setting: Setting) -> None:
        """Training begins."""

    def step_ended(self, row: Row) -> None:
        """An optimizer step is over: add what was measured since the last one."""

    def paused(self) -> None:
        """What happened since the last step or pause was no training: evaluation, saving."""

    def iteration_began(self) -> None:
        """An epoch begins, which for PPO is an iteration."""

    def iteration_ended(self, row: Row) -> None:
        """An iteration (PPO) is over: add what was measured over all of it."""

    def row_closed(self, row: Row) -> None:
        """The step's row is complete, with what the trainer logged: derive, correct, count."""

    def stop(self) -> None:
        """Training is over, well or not: leave no hook behind."""


def standard_probes() -> dict[str, Probe]:
    """A fresh set for one run, by name. To add one: a file here, and a line below."""
    from canary_mlflow.tracking.probes.clock import Clock
    from canary_mlflow.tracking.probes.finiteness import Finiteness
    from canary_mlflow.tracking.probes.memory import Memory
    from canary_mlflow.tracking.probes.parameters import Parameters
    from canary_mlflow.tracking.probes.sentinel import Sentinel
    from canary_mlflow.tracking.probes.tokens import Tokens

    clock = Clock()  # first: what other probes do after a step is not the step's time
    probes: tuple[Probe, ...] = (clock, Sentinel(clock), Tokens(), Memory(), Finiteness(), Parameters())
    return {probe.name: probe for probe in probes}
