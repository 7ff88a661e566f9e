"""Passes what a trainer tells its callbacks during a training to the probes and the journal."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from canary_mlflow.tracking.journal import Journal
from canary_mlflow.tracking.probes.running import RunningProbes
from canary_mlflow.tracking.probes.surroundings import running_batch


class Hooks(TrainerCallback):  # type: ignore[misc]  # Transformers comes without types
    """The events of Transformers' Trainer; TRL's trainers and our own PPO send the same ones."""

    def __init__(self) -> None:
        self.journal: Journal | None = None  # on the first rank
        self._probes: RunningProbes | None = None  # the journal's on the first rank, their own on the others

    def look(self) -> None:
        """Between two pieces of work: what came from outside is obeyed here."""

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """PPO: an iteration begins."""
        self._tell("iteration_began")

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The batches of an optimizer step are there."""
        self.look()
        self._tell("step_began")

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """One of several micro-batches is done."""
        self.look()
        self._tell("micro_step_ended")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Gradients are complete; nothing has moved yet."""
        if self._probes is not None:
            self._probes.before_optimizer()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has moved."""
        self._tell("after_optimizer")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """The trainer logged; also after training, when someone calls evaluate()."""
        if self.journal is not None and logs:
            data = getattr(kwargs.get("eval_dataloader"), "dataset", None)
            self.journal.logged(state.global_step, logs, data, kwargs.get("model"))

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A batch was evaluated, or predicted; while training goes on, a probe sees what reaches the model. Of several
        ranks each has a share, by the size of a batch."""
        self.look()
        if self.journal is not None and self.journal.finished and args.world_size == 1:
            self.journal.evaluated.see(running_batch())

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """A prediction is over, which no metric is of."""
        if self.journal is not None:
            self.journal.evaluated.see(None)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation is over; its time belongs to no step."""
        self._tell("paused")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint is written; its time belongs to no step."""
        self._tell("paused")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """PPO: an iteration is over."""
        if self._probes is None:
            return
        if self.journal is None:
            self._probes.iteration_ended({})
        else:
            self.journal.iteration_ended(state.global_step)

    def _tell(self, event: str) -> None:
        if self._probes is not None:
            self._probes.emit(event)
