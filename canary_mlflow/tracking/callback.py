"""CanaryCallback: one line in any Transformers or TRL script, and the run is measured, recorded and gateable."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import sys
import threading
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from canary_mlflow.errors import StoreError, one_line
from canary_mlflow.tracking import fingerprint, session
from canary_mlflow.tracking.failures import Terminated
from canary_mlflow.tracking.journal import Journal, Target
from canary_mlflow.tracking.metrics_json import plain
from canary_mlflow.tracking.probes import Setting, standard_probes
from canary_mlflow.tracking.store import prepare_store
from canary_mlflow.tracking.workload import algorithm_of, workload_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("canary_mlflow")

WARMUP_STEPS = 5  # left out of metrics.json's timings; the first step alone takes 2 to 5 times as long


class CanaryCallback(TrainerCallback):  # type: ignore[misc]  # Transformers comes without types
    """Records a training run: one row per optimizer step, fingerprint, metrics.json, and how it ended.

    Writes to `run_id`, else to the active MLflow run, else to the one that `mlflow run` made (MLFLOW_RUN_ID), else to
    a run of its own in `experiment`, which it ends. Whosever run it is: one that breaks off reads FAILED after an
    exception, SIGTERM or Ctrl-C, recorded by `close()`, or when the trainer is garbage collected, or when Python ends.
    A process killed with SIGKILL can record nothing; whoever started it should call `tracking.session.close_run`.

    `workload`: what two runs must share to be compared; taken from the trainer's arguments when not given.
    `config`: the composed configuration, kept as config.yaml and in metrics.json. `log_every_step` has a trainer that
    logs by steps log every one of them, on which the series depend. Rank 0 writes; other ranks do nothing.
    """

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
    ) -> None:
        self.run_id = run_id
        self.journal: Journal | None = None
        self._wanted_run = run_id
        self._tracking_uri = tracking_uri
        self._experiment = experiment
        self._run_name = run_name
        self._workload = None if workload is None else dict(workload)
        self._config = dict(config or {})
        self._tags = dict(tags or {})
        self._log_every_step = log_every_step
        self._warmup_steps = warmup_steps
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._sigterm: object = None

    @property
    def rows(self) -> dict[int, dict[str, float]]:
        """Optimizer step → canonical name → value, of the run so far."""
        return {} if self.journal is None else self.journal.rows

    def close(self, error: BaseException | None = None) -> None:
        """End the recording; without `on_train_end` before it, the run broke off with `error` or the one in flight."""
        if self.journal is not None and not self.journal.finished:
            self.journal.fail(error or sys.exception())
        self._let_go()

    def log_artifacts(self, folder: Path, name: str) -> None:
        """Put the files of `folder` under `name` in the run's artifacts. Raises StoreError."""
        from mlflow.exceptions import MlflowException

        client = self.journal.target.client if self.journal else None
        if client is None or self.run_id is None:
            raise StoreError(f"{folder}: no MLflow run to keep it in; expected one that training began; train first")
        try:
            client.log_artifacts(self.run_id, str(folder), name)
        except (MlflowException, OSError) as error:
            raise StoreError(f"{folder}: cannot be kept in run {self.run_id}: {one_line(error)}") from error

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the run, take the fingerprint, start the probes."""
        make_log_honest(args, state, self._log_every_step)  # on every rank: logging gathers from all
        if not state.is_world_process_zero:
            return
        self.close()  # train() called again without the last one having ended
        model = kwargs.get("model")
        target = self._open_target(args, state, model)
        self.journal = Journal(target, standard_probes())
        self.run_id = target.run_id
        # Not a method of self: the finalizer must not keep the callback alive.
        self._finalizer = weakref.finalize(self, self.journal.abandon)
        self._catch_sigterm(self.journal)
        self.journal.begin(
            Setting(
                model=model,
                device=torch.device(args.device).type,
                compiled=bool(getattr(args, "torch_compile", False)),
                ranks=int(getattr(args, "world_size", 1)),
                iterates=target.algo == "ppo",
                idle_cpu=self.journal.cpu_seconds,
            )
        )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """PPO: an iteration begins."""
        if self._recording:
            self._recording.iteration_began()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step is over."""
        if self._recording:
            self._recording.step_ended(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """The trainer logged; also after training, when someone calls evaluate()."""
        if self.journal is not None and logs:
            self.journal.logged(state.global_step, logs)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation is over; its time is no step's."""
        if self._recording:
            self._recording.paused()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint is written; its time is no step's."""
        if self._recording:
            self._recording.paused()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """PPO: an iteration is over."""
        if self._recording:
            self._recording.iteration_ended(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training reached its end: write it down."""
        if self._recording:
            self._recording.finish()
            self._let_go()

    @property
    def _recording(self) -> Journal | None:
        return None if self.journal is None or self.journal.finished else self.journal

    def _open_target(self, args: Any, state: Any, model: Any) -> Target:
        """Find or start the MLflow run. A wrong run id is the caller's mistake; a dead store does not stop training."""
        environment = environment_of(args)
        algo = (self._workload or {}).get("algo") or algorithm_of(args)
        target = Target(
            client=None,
            run_id=self._wanted_run or "",
            owned=False,
            algo=algo,
            config=self._config or plain(args.to_dict()),
            environment=environment,
            warmup_steps=self._warmup_steps,
        )
        try:
            client = prepare_store(self._tracking_uri)
            run_id, owned = self._find_run(client, args)
        except StoreError as error:
            log.warning("canary: %s; training goes on, its numbers stay in memory", one_line(error))
            return target
        target = replace(target, client=client, run_id=run_id, owned=owned)
        workload = self._workload or workload_of(args, state, model, algo)
        self._describe(target, args, workload)
        return target

    def _find_run(self, client: MlflowClient, args: Any) -> tuple[str, bool]:
        """(run id, whether it is ours to end)."""
        import mlflow

        active = mlflow.active_run()
        given = self._wanted_run or (active.info.run_id if active else None) or os.environ.get("MLFLOW_RUN_ID")
        if given:
            session.get_run(client, given)
            return given, False
        name = self._run_name or getattr(args, "run_name", None) or f"{algorithm_of(args)} seed {args.seed}"
        tags = {"canary.role": "run", session.NAME_TAG: name}
        return session.start_run(client, self._find_experiment(client), tags), True

    def _find_experiment(self, client: MlflowClient) -> str:
        """The named one; else the one that mlflow.start_run would use, which is of MLflow's own store alone."""
        if self._experiment is not None or self._tracking_uri is not None:
            return session.find_experiment(client, self._experiment)
        from mlflow.tracking.fluent import _get_experiment_id  # has no public name

        return str(_get_experiment_id())

    def _describe(self, target: Target, args: Any, workload: Mapping[str, str]) -> None:
        """Tags, params and config.yaml, before the first step: a run that dies early still says what it was."""
        from mlflow.exceptions import MlflowException

        client = target.client
        assert client is not None
        hardware = hardware_of(args)
        text = json.dumps(plain(target.config), sort_keys=True)
        tags = {
            "canary.role": "run",
            "canary.algo": target.algo,
            "canary.seed": str(args.seed),
            "canary.completed": "false",
            "canary.config_hash": hashlib.sha256(text.encode()).hexdigest()[:16],
            **{f"canary.workload.{key}": str(value) for key, value in workload.items()},
            **{f"canary.hardware.{key}": value for key, value in hardware.items()},
            **{f"canary.env.{key}": value for key, value in target.environment.items()},
            **self._tags,
        }
        try:
            session.log_tags(client, target.run_id, tags)
            if target.owned:
                params = {f"cfg/{key}": value for key, value in target.config.items()}
                session.log_params(client, target.run_id, params)
            if self._config:
                client.log_dict(target.run_id, plain(self._config), "config.yaml")
        except (MlflowException, OSError) as error:
            log.warning("canary: run %s: not all of its description was written: %s", target.run_id, one_line(error))

    def _catch_sigterm(self, journal: Journal) -> None:
        """Have SIGTERM unwind like an exception, where nobody else has an opinion; its default writes nothing down."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return

        def stop(signum: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not cut the recording short
            error = Terminated(signum)
            journal.fail(error)
            raise error

        signal.signal(signal.SIGTERM, stop)
        self._sigterm = stop

    def _let_go(self) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None
        if self._sigterm is not None and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) is self._sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._sigterm = None


def make_log_honest(args: Any, state: Any, every_step: bool) -> None:
    """Turn off the filter that logs a NaN loss as 0.0, and have a trainer that logs by steps log every one."""
    args.logging_nan_inf_filter = False
    if every_step and getattr(args.logging_strategy, "value", args.logging_strategy) == "steps":
        args.logging_steps = 1
        if hasattr(state, "logging_steps"):
            state.logging_steps = 1


def hardware_of(args: Any) -> dict[str, str]:
    """The class of hardware that this process trains on, with the threads torch uses on a CPU."""
    device = torch.device(args.device)
    if device.type == "cuda":
        count = max(int(args.world_size), int(args.n_gpu))
        return fingerprint.hardware("cuda", device=torch.cuda.get_device_name(device), count=count)
    return {**fingerprint.hardware(device.type), "threads": str(torch.get_num_threads())}


def environment_of(args: Any) -> dict[str, str]:
    """Versions, host and commit, with what only torch knows."""
    facts = fingerprint.environment() | {"torch": torch.__version__}
    return facts | {"cuda": str(torch.version.cuda), "device": str(args.device)}
