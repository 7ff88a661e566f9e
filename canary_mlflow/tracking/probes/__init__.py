"""The probes, which measure a run: one protocol, and the list that names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, float]  # canonical name → value, of one optimizer step
BEAT = 4
"""Steps between two that bear what need not be done at each: the sentinel's kernel, which is in no step's time, and
with it the memory's file and the watch. The three between them are left alone."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a probe receives when training begins."""

    model: Any  # torch.nn.Module as the trainer holds it; None: not known, or not yet
    device: str  # torch's device type: cpu, cuda, …
    compiled: bool = False  # under torch.compile; a hook written in Python would break its graph
    ranks: int = 1  # processes that train together
    iterates: bool = False  # PPO: an epoch is an iteration of rollout and updates
    idle_cpu: Callable[[], float]  # CPU seconds of this process that are not training (our own writer)
    algo: str = ""  # sft, dpo, …; "" if unknown
    arguments: Mapping[str, Any] = field(default_factory=dict)  # the trainer's, as TrainingArguments names them
    optimizer: Any = None
    trainer: Any = None  # None where it could not be found
    resumed: bool = False  # from a checkpoint: the policy is no longer where it started
    # Whether the policy equals its reference and its adapter is new, as stated by whoever started the run; None:
    # unknown.
    fresh: bool | None = None
    first_rank: bool = True  # the one that writes
    samples: Any = None  # tracking.reading.samples.Samples, which takes the texts; None: they are not kept
    own: bool = False  # somebody's own script, of whose time the fixed kernels may take little


class Probe:
    """Does nothing; a probe overrides what it needs. An exception switches the probe off and is reported at the end."""

    name = "none"
    essential = False  # without it a run is no evidence

    def start(self, setting: Setting) -> None:
        """Training begins."""

    def blind(self) -> str:
        """Right after start: what this probe should see but missed in its own example; "" if nothing."""
        return ""

    def listens(self, event: str) -> bool:
        """After start: whether the event of this name still means anything to it here. What it no longer hears costs a
        step nothing; it does not hear it again."""
        return getattr(type(self), event) is not getattr(Probe, event)

    def step_began(self) -> None:
        """The batches of an optimizer step are there. TRL's PPOTrainer does not send this event."""

    def micro_step_ended(self) -> None:
        """One of several backward passes of an optimizer step is over, but not the last."""

    def before_optimizer(self) -> None:
        """Gradients are complete (and clipped, if the trainer clips); the optimizer has not moved yet."""

    def after_optimizer(self) -> None:
        """The optimizer has moved."""

    def step_ended(self, row: Row) -> None:
        """An optimizer step is over: add what was measured since the last one."""

    def logged(self) -> None:
        """The trainer has logged; until the next step it now fetches data."""

    def paused(self) -> None:
        """What happened since the last step or pause was not training: evaluation, saving."""

    def iteration_began(self) -> None:
        """An epoch begins, which for PPO is an iteration."""

    def iteration_ended(self, row: Row) -> None:
        """An iteration (PPO) is over: add what was measured over all of it."""

    def row_closed(self, row: Row) -> None:
        """The step's row is complete, with what the trainer logged: derive, correct, count."""

    def ended(self) -> None:
        """Training has reached its end. Stop follows; where training breaks off, it alone."""

    def stop(self) -> None:
        """Training is over, well or not: leave no hook behind."""

    def evaluated(self, row: Row, last: Row) -> None:
        """After stop: an evaluation after the training is over; add what it took. `last`: the row of the last step."""

    def tags(self) -> Mapping[str, str]:
        """After stop: tags for the run."""
        return {}

    def trouble(self) -> str:
        """After stop: a sentence on what went wrong, for the reader of the run; "" if all is well."""
        return ""


WITHOUT_MODEL = ("clock", "memory", "sentinel", "gpu", "clipping", "implied_kl", "finiteness")
"""The probes that measure a loop whose model is not known. With the model they start again, with the others."""


def standard_probes() -> dict[str, Probe]:
    """A fresh set for one run, by name. To add one: a class in this folder, and a line below."""
    from canary_mlflow.tracking.probes.answers import Answers
    from canary_mlflow.tracking.probes.clock import Clock
    from canary_mlflow.tracking.probes.derived import Clipping, ImpliedKL
    from canary_mlflow.tracking.probes.facts import ExactFacts
    from canary_mlflow.tracking.probes.finiteness import Finiteness
    from canary_mlflow.tracking.probes.gradients import Gradients
    from canary_mlflow.tracking.probes.invariants import Invariants
    from canary_mlflow.tracking.probes.memory import Memory
    from canary_mlflow.tracking.probes.parameters import LayerDrift, Parameters
    from canary_mlflow.tracking.probes.phases import Phases
    from canary_mlflow.tracking.probes.sentinel import Sentinel
    from canary_mlflow.tracking.probes.surroundings import GPU
    from canary_mlflow.tracking.probes.tokens import Labels, Tokens
    from canary_mlflow.tracking.probes.trained import Trained

    clock = Clock()  # first: what other probes do after a step is not the step's time
    parameters = Parameters()
    probes: tuple[Probe, ...] = (
        clock,
        Phases(),
        Gradients(),
        Memory(clock),
        Sentinel(clock),  # behind what also works at each beat: its pause takes that out of the step's time
        Tokens(),
        GPU(),
        Clipping(),
        ImpliedKL(),
        Answers(),
        Invariants(),
        Finiteness(),
        parameters,
        LayerDrift(parameters),
        ExactFacts(),
        Labels(),
        Trained(),  # last: it asks the model, which others listen to
    )
    return {probe.name: probe for probe in probes}
