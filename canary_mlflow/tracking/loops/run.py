"""A run of a loop of one's own: it logs each step, and has the same rows, watch, end and gate as a trainer's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import torch

from canary_mlflow.errors import UsageError, plainly
from canary_mlflow.files.names import name_of_column
from canary_mlflow.tracking.delivery.thread_clock import writing_seconds
from canary_mlflow.tracking.describing.evaluations import PREFIX
from canary_mlflow.tracking.describing.fact_tags import jsonable
from canary_mlflow.tracking.describing.schema import FOREIGN, as_number
from canary_mlflow.tracking.describing.workload import adapter_of, model_of
from canary_mlflow.tracking.journal import Journal
from canary_mlflow.tracking.opening import Options, Training, describe
from canary_mlflow.tracking.probes import Setting, clock
from canary_mlflow.tracking.probes.surroundings import environment_of, hardware_of, trains_at
from canary_mlflow.tracking.recording import Recording


class LoopRun(Recording):
    """For a `with` around a training loop: one run with one seed, in the session that CANARY_SESSION names, if any.

    `max_steps`: the optimizer steps that are planned, which the watch asks for; 0 if nobody knows. `algo`: what kind of
    training it is ("sft", "ppo", …), if it is one of those; it says whether losses or rewards tell if it learned.
    `workload`: what two runs must share to be compared, beside algorithm, steps and model: `{"data": "…",
    "batch_size": "8"}`. `config`: the settings to be shown and compared, such as the learning rate. `options`:
    `run_name`, `watch`, `tags`, `sinks`, `system_metrics`, `folder`, `experiment` and `tracking_uri` as for
    CanaryCallback.

    Leaving the `with` ends the run: FINISHED, or FAILED with the exception that left it. Without one, `begin()` and
    `end()` do the same. Of several ranks the first one is recorded; on the others nothing happens. `stopped` says why
    the watch wants the loop to end, if its policy lets it (`on_critical: stop`), and is "" until then. Raises
    UsageError and StoreError as CanaryCallback does.
    """

    of_loop = True

    @plainly
    def __init__(
        self,
        *,
        seed: int,
        max_steps: int = 0,
        algo: str = "loop",
        workload: Mapping[str, object] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        for what, value in {"seed": seed, "max_steps": max_steps}.items():
            if not isinstance(value, int) or value < 0:
                raise UsageError(f"run: {what} is {value!r}; expected a whole number from 0")
        clock.begin()
        super().__init__(Options(config=dict(config or {}), **options))
        self._seed, self._planned = seed, max_steps
        steps = {"max_steps": max_steps} if max_steps else {}
        self._work = {key: str(value) for key, value in {"algo": algo, **steps, **(workload or {})}.items()}
        self._optimizer: Any = None
        self._shift = 0  # from the loop's steps to rows, which begin with 1
        self._within = self._elsewhere = False  # in a `with`; one of several ranks, and not the first

    @plainly
    def begin(self) -> Self:
        """Open the run, as `with` does."""
        if self.journal is not None:
            raise UsageError("run: it has begun already; expected a new one for each training: run(seed=…)")
        ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
        self._elsewhere = int(torch.distributed.get_rank() if ranks else os.environ.get("RANK", "0")) > 0
        if not self._elsewhere:
            device = "cuda" if torch.cuda.is_initialized() else "cpu"
            self._open(self._training(device), lambda frame: trains_at(frame, LoopRun))
            self._begin(self._setting(device))
        return self

    @plainly
    def watch(self, model: torch.nn.Module, optimizer: Any = None) -> None:
        """Add what the model and its optimizer tell, from here on: gradients, parameters, tokens, the learning rate,
        first facts, and the model in the workload. To be called before the first step, with both as the loop uses
        them. Raises UsageError, and BlindProbe where gradients could not be seen."""
        if self._elsewhere:
            return
        journal = self._journal("watch")
        if not isinstance(model, torch.nn.Module):
            raise UsageError(f"watch: the model is a {type(model).__name__}; expected a torch.nn.Module")
        if journal.last_step:
            raise UsageError(f"watch: step {journal.last_step} was logged already; expected it before the first step")
        device = next((one.device.type for one in model.parameters()), "cpu")
        self._work = {"model": model_of(model), "adapter": adapter_of(model), **self._work}
        self._optimizer = optimizer
        journal.target = replace(journal.target, workload=self._work)
        if journal.target.client is not None:
            describe(journal.target.client, journal.target, self._options, self._training(device))
        self._begin(self._setting(device, model, optimizer))

    @plainly
    def log(self, step: int, values: Mapping[str, Any] | None = None, **more: Any) -> None:
        """An optimizer step is over, and this was measured: numbers, tensors and arrays of one number, under any name.

        `loss`, `reward`, `kl`, `eval_loss` and other known names (docs/tracking.md) are judged; the rest is kept. Each
        step is logged once or more, in rising order; a loop that counts from 0 has its first step in row 1. What in
        `values` is no number is left out, as in a dictionary of statistics. Raises UsageError for a step that is over,
        and for a keyword that is no number."""
        if self._elsewhere:
            return
        journal = self._journal("log")
        self.look()
        found = numbers(values or {}, more)
        if step == 0 and not journal.rows:  # an evaluation before the first step, or a loop that counts from 0
            self._shift = int(not all(key.startswith(PREFIX) for key in found))
        row = step + self._shift
        if not isinstance(step, int) or step < 0 or row < journal.last_step:
            raise UsageError(
                f"log: step is {step!r}, after step {journal.last_step - self._shift}; expected whole numbers that rise"
            )
        if row > journal.last_step:
            self._step_ended(row)
            if groups := getattr(self._optimizer, "param_groups", None):
                found.setdefault("learning_rate", float(groups[0]["lr"]))
        journal.logged(row, found)
        self.look()

    def end(self, error: BaseException | None = None) -> None:
        """End the run, as leaving the `with` does; `error`: what broke it off."""
        self._finish() if error is None else self.close(error)

    def __enter__(self) -> Self:
        self._within = True
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error)

    @property
    def left(self) -> bool:
        """Whether it was begun without a `with`, and never ended."""
        return self.open and not self._within

    def _journal(self, what: str) -> Journal:
        if self.journal is None or not self.open:
            state = "has ended" if self.journal is not None else "has not begun"
            raise UsageError(f"{what}: the run {state}; expected one that is open: with session.run(seed=…) as run")
        return self.journal

    def _training(self, device: str) -> Training:
        place = SimpleNamespace(device=device, world_size=int(os.environ.get("WORLD_SIZE", "1")), n_gpu=1)
        return Training(
            algo=self._work["algo"], seed=self._seed, name=f"{self._work['algo']} seed {self._seed}",
            max_steps=self._planned, config=jsonable(dict(self._options.config)), workload=lambda: self._work,
            hardware=hardware_of(place), environment=environment_of(place),
        )  # fmt: skip

    def _setting(self, device: str, model: Any = None, optimizer: Any = None) -> Setting:
        return Setting(
            model=model, device=device, compiled=hasattr(model, "_orig_mod"), idle_cpu=writing_seconds, own=True,
            algo=self._work["algo"], arguments=self._options.config, optimizer=optimizer,
        )  # fmt: skip


def numbers(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, float]:
    """All numbers by the names that we give them; what a file calls a metric, a loop may too. Raises UsageError for one
    of `more` that is none, and if there are none at all."""
    for key in (key for key, value in more.items() if as_number(value) is None):
        said = f"{type(more[key]).__name__} of shape {tuple(getattr(more[key], 'shape', ()))}".removesuffix(
            " of shape ()"
        )
        raise UsageError(f"log: {key} is a {said}; expected one number, such as loss.mean()")
    given = sorted({**values, **more}.items(), key=lambda one: usual(one[0]) == one[0])  # our own names count
    found = {usual(key): number for key, value in given if (number := as_number(value)) is not None}
    if not found:
        raise UsageError("log: nothing that is a number; expected log(step, loss=…) or log(step, {'loss': …})")
    return found


@cache
def usual(key: str) -> str:
    """`eval_loss` of val_loss, and so on, as in a file."""
    return name_of_column(key).removeprefix(FOREIGN)
