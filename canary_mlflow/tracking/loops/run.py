"""A run of a loop of one's own: it logs each step, and has the same rows, watch, end and gate as a trainer's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import torch

from canary_mlflow import tags as names
from canary_mlflow.errors import UsageError, plainly
from canary_mlflow.files.names import RENAMED
from canary_mlflow.gates.model.metrics import METRICS
from canary_mlflow.policies import load_watch
from canary_mlflow.tracking.delivery.thread_clock import writing_seconds
from canary_mlflow.tracking.describing.evaluations import PREFIX
from canary_mlflow.tracking.describing.fact_tags import jsonable
from canary_mlflow.tracking.describing.schema import as_number, canonical
from canary_mlflow.tracking.describing.workload import adapter_of, model_of
from canary_mlflow.tracking.journal import Journal
from canary_mlflow.tracking.opening import WARMUP_STEPS, Options, Training
from canary_mlflow.tracking.probes import Setting, clock
from canary_mlflow.tracking.probes.surroundings import environment_of, hardware_of, trains_at
from canary_mlflow.tracking.recording import Recording
from canary_mlflow.tracking.sinks import USUAL, check_names
from canary_mlflow.tracking.stores.session import log_tags


class LoopRun(Recording):
    """For a `with` around a training loop: one run with one seed, in the session that CANARY_SESSION names, if any.

    `max_steps`: the optimizer steps that are planned, which the watch asks for; 0 if nobody knows. `algo`: what kind of
    training it is ("sft", "ppo", …), if it is one of those; it says whether losses or rewards tell if it learned.
    `workload`: what two runs must share to be compared, beside algorithm, steps and model: `{"data": "…",
    "batch_size": "8"}`. `config`: the settings to be shown and compared, such as the learning rate. `watch`, `tags`,
    `sinks`, `system_metrics`, `folder`, `experiment` and `tracking_uri` as for CanaryCallback. `name`: the run's.

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
        name: str = "",
        tags: Mapping[str, str] | None = None,
        watch: str | Path | Mapping[str, Any] | None = "default",
        sinks: Sequence[str] = USUAL,
        system_metrics: bool = True,
        folder: Path | None = None,
        experiment: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        for what, value in {"seed": seed, "max_steps": max_steps}.items():
            if not isinstance(value, int) or value < 0:
                raise UsageError(f"run: {what} is {value!r}; expected a whole number from 0")
        clock.begin()
        options = Options(
            tracking_uri=tracking_uri,
            experiment=experiment,
            run_name=name or None,
            config=dict(config or {}),
            tags=dict(tags or {}),
            warmup_steps=WARMUP_STEPS,
            folder=folder,
            sinks=check_names(sinks),
            system_metrics=system_metrics,
            watch=None if watch is None else load_watch(watch),
            champion_runs=(),
        )
        super().__init__(options)
        self._seed, self._planned = seed, max_steps
        steps = {"max_steps": max_steps} if max_steps else {}
        self._work = {key: str(value) for key, value in {"algo": algo, **steps, **(workload or {})}.items()}
        self._stated = frozenset(workload or {})
        self._optimizer: Any = None
        self._shift = 0  # from the loop's steps to rows, which begin with 1
        self._within = False
        self._elsewhere = False  # one of several ranks, and not the first

    @plainly
    def begin(self) -> Self:
        """Open the run, as `with` does."""
        if self.journal is not None:
            raise UsageError("run: it has begun already; expected a new one for each training: run(seed=…)")
        self._elsewhere = not is_first_rank()
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
        found = {"model": model_of(model), "adapter": adapter_of(model)}
        self._work |= {key: value for key, value in found.items() if key not in self._stated}
        self._optimizer = optimizer
        journal.target = replace(journal.target, workload=dict(self._work))
        if journal.target.client is not None:
            hardware = hardware_of(self._place(device))
            said = {f"{names.WORKLOAD}{key}": value for key, value in self._work.items()}
            said |= {f"{names.HARDWARE}{key}": value for key, value in hardware.items()}
            log_tags(journal.target.client, journal.target.run_id, said)
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

    def is_new(self, step: int) -> bool:
        """Whether this step has not been logged, and may be."""
        return self.journal is not None and self.open and step + self._shift > self.journal.last_step

    def step_began(self) -> None:
        """The batches of a step are there: from here on it computes. Without this there is no `data_wait`."""
        self._tell("step_began")

    def before_optimizer(self) -> None:
        """Gradients are complete, and nothing has moved; for an optimizer whose own hooks come at another moment."""
        if self._probes is not None:
            self._probes.before_optimizer()

    def end(self, error: BaseException | None = None) -> None:
        """End the run, as leaving the `with` does; `error`: what broke it off."""
        if error is None:
            self._finish()
        else:
            self.close(error)

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
        place = self._place(device)
        return Training(
            algo=self._work["algo"],
            seed=self._seed,
            name=f"{self._work['algo']} seed {self._seed}",
            max_steps=self._planned,
            config=jsonable(dict(self._options.config)),
            workload=lambda: self._work,
            hardware=hardware_of(place),
            environment=environment_of(place),
            folder=Path("canary"),
        )

    def _setting(self, device: str, model: Any = None, optimizer: Any = None) -> Setting:
        return Setting(
            model=model,
            device=device,
            compiled=hasattr(model, "_orig_mod"),
            ranks=1,
            iterates=False,
            idle_cpu=writing_seconds,
            algo=self._work["algo"],
            arguments=self._options.config,
            optimizer=optimizer,
            own=True,
        )

    def _place(self, device: str) -> Any:
        """As TrainingArguments tell of the device."""
        return SimpleNamespace(device=device, world_size=int(os.environ.get("WORLD_SIZE", "1")), n_gpu=1)


def is_first_rank() -> bool:
    """Whether this process is the one of several ranks that records."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank()) == 0
    return os.environ.get("RANK", "0") == "0"


def numbers(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, float]:
    """All numbers by the names that we give them; what a file calls a metric, a loop may too. Raises UsageError for one
    of `more` that is none, and if there are none at all."""
    found = {key: number for key, value in values.items() if (number := as_number(value)) is not None}
    for key, value in more.items():
        number = as_number(value)
        if number is None:
            raise UsageError(f"log: {key} is a {described(value)}; expected one number, such as loss.mean()")
        found[key] = number
    if not found:
        raise UsageError("log: nothing that is a number; expected log(step, loss=…) or log(step, {'loss': …})")
    renamed = {key: usual(key) for key in found}
    return {new: found[key] for key, new in sorted(renamed.items(), key=lambda both: both[0] == both[1])}


def usual(key: str) -> str:
    """`eval_loss` of val_loss, and so on. What we measure ourselves is not replaced."""
    known = RENAMED.get(key)
    return known if known and canonical(key) is None and METRICS[known].group != "perf" else key


def described(value: Any) -> str:
    """`Tensor of shape (2, 3)`."""
    shape = getattr(value, "shape", None)
    return type(value).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")
