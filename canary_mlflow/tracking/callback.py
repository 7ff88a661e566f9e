"""CanaryCallback: one line in any Transformers or TRL script, and the run is measured, recorded and gateable."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from canary_mlflow.errors import plainly
from canary_mlflow.tracking.console import Console
from canary_mlflow.tracking.delivery.thread_clock import writing_seconds
from canary_mlflow.tracking.describing.workload import algorithm_of
from canary_mlflow.tracking.opening import WARMUP_STEPS, Options, training_of
from canary_mlflow.tracking.probes import Setting, clock
from canary_mlflow.tracking.probes.surroundings import (
    environment_of,
    hardware_of,
    is_running,
    make_log_honest,
    running_batch,
    running_trainer,
    trains_at,
)
from canary_mlflow.tracking.reading.samples import Samples
from canary_mlflow.tracking.recording import Recording
from canary_mlflow.tracking.sinks import USUAL


class Hooks(Recording, TrainerCallback):  # type: ignore[misc]  # Transformers comes without types
    """The events of Transformers' Trainer; TRL's trainers and our own PPO send the same ones."""

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
        self.before_optimizer()

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


class CanaryCallback(Hooks):
    """Records a training run: one row per optimizer step, fingerprint, metrics.json, and how it ended.

    Writes to `run_id`, else to the active MLflow run, else to the one that `mlflow run` made (MLFLOW_RUN_ID), else to
    a new run in `experiment` (by default the one chosen for MLflow, else `canary`), which it also ends. While a session
    is open (`canary_mlflow.session`, CANARY_SESSION), that run joins it. Any run that breaks off by an exception,
    SIGTERM or Ctrl-C reads FAILED; this is recorded by `close()`, when the trainer is garbage collected, or when Python
    ends. A process killed with SIGKILL can record nothing; whoever started it should call
    `tracking.stores.session.close_run`.

    `watch`: the policy of the warnings during the run (a name, a file, its keys; None for no watch); at level STOP it
    ends the training if the policy says so, and `stopped` says why. `champion_runs`: ids of runs that are good so far;
    the watch then also warns of what leaves their band. `fail_fast`: facts and invariants that block
    beside those runs end the training in its first steps.

    `workload`: what two runs must share to be compared; by default taken from the trainer's arguments, model and data.
    `config`: the composed configuration, kept as config.yaml and in metrics.json. `log_every_step` makes a trainer that
    logs by steps log every step, as the series need; all other callbacks keep its `logging_steps`. `starts_fresh`:
    whether the policy equals its reference and its adapter is new, which must then show in the first step; None to find
    out. With several ranks all measure and the first one writes.

    `samples`: whether texts are kept: for GRPO, RLOO and PPO the best and the worst answers over time
    (tracking/reading/samples.py, at most 256 KiB); False if they are private.
    `sinks`: what keeps the rows (docs/tracking.md); without "mlflow" no run is opened, but an existing run still gets
    its description and its end. `system_metrics`: also record the machine's load. `folder`, by default `canary` in the
    trainer's output_dir, takes what MLflow does not hold, or not yet.
    """

    @plainly
    def __init__(
        self,
        run_id: str | None = None,
        *,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        run_name: str | None = None,
        workload: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        log_every_step: bool = True,
        warmup_steps: int = WARMUP_STEPS,
        sinks: Sequence[str] = USUAL,
        system_metrics: bool = True,
        folder: Path | None = None,
        watch: str | Path | Mapping[str, Any] | None = "default",
        champion_runs: Sequence[str] = (),
        fail_fast: bool = False,
        starts_fresh: bool | None = None,
        samples: bool = True,
    ) -> None:
        clock.begin()  # as a session does, where one is open
        options = Options(
            run_id=run_id,
            tracking_uri=tracking_uri,
            experiment=experiment,
            run_name=run_name,
            workload=None if workload is None else dict(workload),
            config=dict(config or {}),
            tags=dict(tags or {}),
            warmup_steps=warmup_steps,
            folder=folder,
            sinks=sinks,
            system_metrics=system_metrics,
            watch=watch,
            champion_runs=champion_runs,
            fail_fast=fail_fast,
        )
        super().__init__(options, Samples() if samples else None)
        self._log_every_step = log_every_step
        self._starts_fresh = starts_fresh
        self._console: Console | None = None
        self._trainer: weakref.ref[Any] | None = None

    @property
    def left(self) -> bool:
        """Whether nobody runs its trainer any more, which an exception left before its end and whose traceback keeps
        it: a stopped cell of a notebook."""
        trainer = None if self._trainer is None else self._trainer()
        return self.open and trainer is not None and not is_running(trainer)

    @property
    def nonfinite_steps(self) -> int:
        """The number of steps so far at which a value that must be finite was NaN or infinite."""
        return 0 if self.journal is None else self.journal.nan_steps + self.journal.inf_steps

    @plainly
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the run, take the fingerprint, start the probes. Raises BlindProbe, which ends the training."""
        every = make_log_honest(args, state, self._log_every_step)  # on every rank: logging gathers from all
        self.close()  # train() was called again before the last call had ended
        trainer = running_trainer()
        self._console = Console(trainer, every, Hooks)
        if state.is_world_process_zero:
            self._trainer = None if trainer is None else weakref.ref(trainer)
            said = hardware_of(args), environment_of(args)
            self._open(training_of(self._options, args, state, kwargs.get("model"), trainer, *said), trains_at)
        algo = algorithm_of(args, trainer) if self.journal is None else self.journal.target.algo
        setting = Setting(
            model=kwargs.get("model"),
            device=torch.device(args.device).type,
            compiled=bool(getattr(args, "torch_compile", False)),
            ranks=int(getattr(args, "world_size", 1)),
            iterates=algo == "ppo",
            idle_cpu=writing_seconds,
            algo=algo,
            arguments=vars(args),
            optimizer=kwargs.get("optimizer"),
            trainer=trainer,
            resumed=state.global_step > 0,
            fresh=self._starts_fresh,
            first_rank=state.is_world_process_zero,
            samples=self.samples,
            own=self._options.run_id is None,
        )
        self._begin(setting)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step is over."""
        self.look()
        if self._step_ended(state.global_step):
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training reached its end: write it down."""
        self._finish()

    def _let_go(self) -> None:
        if self._console is not None:
            self._console.restore()
            self._console = None
        super()._let_go()
