"""A callback for Lightning: each optimizer step of a fit becomes a row."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:  # the same under its older name
    from pytorch_lightning import Callback

from canary_mlflow.tracking.loops.run import LoopRun


class LightningCallback(Callback):  # type: ignore[misc]  # Lightning comes without types
    """`Trainer(callbacks=[LightningCallback()])`: one `fit` becomes one run.

    A row has the loss that `training_step` returned and what the module logged; after each validation also what that
    logged (`val_loss` is `eval_loss`). `seed`: by default that of `seed_everything`. `options` as for LoopRun; planned
    steps and hyper-parameters come from the trainer and the module. The first rank is recorded. `run` is the LoopRun,
    None before the fit.
    """

    def __init__(self, *, seed: int | None = None, **options: Any) -> None:
        super().__init__()
        self.run: LoopRun | None = None
        self._seed, self._options = seed, options
        self._validated, self._trained = set[str](), set[str]()  # names that validations log, and that steps do

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        seed = int(os.environ.get("PL_GLOBAL_SEED", "0")) if self._seed is None else self._seed
        planned = trainer.estimated_stepping_batches  # infinite, or -1, if nobody knows
        steps = int(planned) if 0 < planned < 2**31 else 0
        told = {"max_steps": steps, "config": dict(pl_module.hparams), **self._options}
        self.run = LoopRun(seed=seed, **told).begin()
        self.run.watch(pl_module, trainer.optimizers[0] if len(trainer.optimizers) == 1 else None)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self.run is not None:
            self.run.before_optimizer()  # and before clipping

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.run is None or trainer.global_step in (0, *self.run.rows):
            return  # the optimizer has not moved
        values = {key: value for key, value in trainer.callback_metrics.items() if key not in self._validated}
        self._trained |= values.keys()
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self.run.log(trainer.global_step, {**values, **({} if loss is None else {"loss": loss})})
        trainer.should_stop |= bool(self.run.stopped)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self.run is None or trainer.sanity_checking:
            return
        values = {key: value for key, value in trainer.callback_metrics.items() if key not in self._trained}
        self._validated |= values.keys()
        if values and self.run.open:
            self.run.log(trainer.global_step, values)
        self.run.paused()  # its time belongs to no step

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.run is not None:
            self.run.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.run is not None:
            self.run.end(exception)
