"""What a run does: build, train, save, evaluate what was saved, and count and profile its steps."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow import tags
from canary_mlflow.tracking.signals import obey
from canary_mlflow.training import peers
from canary_mlflow.training.errors import Stopped
from canary_mlflow.training.peers import End
from canary_mlflow.training.process import OwnRun

if TYPE_CHECKING:
    from canary_mlflow.tracking.callback import CanaryCallback
    from canary_mlflow.training.building import Ahead, Built
    from canary_mlflow.training.config import CanaryConfig
    from canary_mlflow.training.devices import Device
    from canary_mlflow.training.parts import Inputs

WEIGHTS = "model"  # in a run's scratch folder, and among its artifacts


@dataclass
class Loaded:
    """What a run's process has before its turn: its device and data, or the exception that its libraries raised."""

    device: Device | None = None
    inputs: Inputs | None = None
    broken: Exception | None = None
    ahead: Ahead | None = None  # its trainer, if that was to be built before its turn


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run and all that it is made of. `folder`: its scratch folder."""

    job: OwnRun
    folder: Path
    config: CanaryConfig
    device: Device
    inputs: Inputs
    built: Built

    @property
    def weights(self) -> Path:
        """The folder into which it saves what it trained."""
        return self.folder / WEIGHTS


def train(job: OwnRun, folder: Path, loaded: Loaded, end: End) -> None:
    """Train, save, evaluate what was saved, and record the rest. `end` has what is known, also if this raises."""
    run = _build(job, folder, loaded, end)
    canary = _watch_of(run, end.workload)
    obey()  # here and below: a signal ends a run between two pieces of its work
    _fit(run, canary, end)
    if stopped := peers.from_first_rank(canary.stopped):
        raise Stopped(stopped)
    if job.keep_weights:
        obey()
        _save(run)
        obey()
        end.evaluation = _evaluate_saved(run)
    if not peers.leads():
        return
    obey()
    _record_work(run)
    if run.config.tier.variants:
        obey()
        _record_variants(run)
    if job.profile:
        obey()
        _record_profile(run)


def _build(job: OwnRun, folder: Path, loaded: Loaded, end: End) -> Run:
    """The run with its trainer, which may have been built ahead. `end` has its work before the trainer is built."""
    from canary_mlflow.training.building import build_run
    from canary_mlflow.training.devices import settle
    from canary_mlflow.training.parts import prepare_inputs
    from canary_mlflow.training.plain import read_back
    from canary_mlflow.training.workload import describe

    config = read_back(job.config)
    device = loaded.device or settle(config.hardware)
    inputs = loaded.inputs or prepare_inputs(config)
    end.workload = describe(config, inputs, device)
    ahead, loaded.ahead = loaded.ahead, None
    built = (ahead and ahead.take(job.config)) or build_run(config, inputs, device, folder)
    return Run(job=job, folder=folder, config=config, device=device, inputs=inputs, built=built)


def _watch_of(run: Run, workload: dict[str, str]) -> CanaryCallback:
    """The callback that records and watches the run."""
    from canary_mlflow.tracking.callback import CanaryCallback
    from canary_mlflow.tracking.sinks import SINKS

    job, tracking = run.job, run.config.tracking
    return CanaryCallback(
        run_id=job.run_id,
        tracking_uri=job.store,
        workload=workload,
        config=job.config,
        tags={
            tags.ROLE: job.role,
            **{f"{tags.DATA}{key}": str(value) for key, value in asdict(run.inputs.data).items()},
            **({tags.NOTE: note} if (note := note_on(run.inputs, run.device)) else {}),
        },
        sinks=[name for name in SINKS if getattr(tracking, name)],
        system_metrics=tracking.system_metrics,
        watch=job.config["watch"],
        champion_runs=job.champion_runs,
        fail_fast=job.fail_fast,
        samples=tracking.samples,
        starts_fresh=True,  # every canary builds its reference from the start model, and a new adapter
    )


def _fit(run: Run, canary: CanaryCallback, end: End) -> None:
    """Train to the last step. What breaks it off is raised as the rank knows it that failed first."""
    import gc

    from tqdm.contrib.logging import logging_redirect_tqdm

    from canary_mlflow.training.building import put_in_place
    from canary_mlflow.training.callbacks import FixedPrompts, ProgressBar

    config, built, trainer = run.config, run.built, run.built.trainer
    progress = ProgressBar(run.job.name)
    callbacks = [canary, progress, built.evaluate]
    if canary.samples is not None and config.algo.head == "language":
        callbacks.append(FixedPrompts(config, built.parts.eval_dataset, canary.samples, canary.paused, trainer))
    put_in_place(trainer, built.evaluate, callbacks)
    # One full collection costs 0.3 s once torch and transformers are loaded; without this it would fall into some step.
    gc.collect()
    gc.freeze()
    try:
        with logging_redirect_tqdm([logging.getLogger("canary_mlflow")]):  # a warning must not break the bar's line
            trainer.train()
    except BaseException as error:
        found = peers.first_failure(run.folder, error)
        canary.close(found)
        if found is error:
            raise
        raise found from error
    finally:
        progress.close()
        canary.close()
        end.nonfinite = canary.nonfinite_steps


def _save(run: Run) -> None:
    """Write what was trained, or a note in its place, into the run's folder."""
    from canary_mlflow.training.mlflow_model import evidence_only, write_model

    if run.config.tracking.weights == "none":
        evidence_only(run.weights)
    else:
        write_model(run.built.trainer, run.built.parts, run.config, run.weights, run.job.run_id)
    peers.from_first_rank("written")  # what follows is read by all ranks


def _evaluate_saved(run: Run) -> dict[str, Any] | None:
    """The evaluation of the weights as they were saved; every rank evaluates its share. None without weights, and for
    sharded ones, which are not read back."""
    from canary_mlflow.training.evaluation import repeat_evaluation
    from canary_mlflow.training.memory import rounding
    from canary_mlflow.training.mlflow_model import read_model

    if run.config.tracking.weights != "log" or run.config.parallel.name == "fsdp2":
        return None
    return repeat_evaluation(
        run.built.trainer,
        lambda: read_model(run.config, run.built.parts.tokenizer, run.device, run.weights),
        rounding(run.config, run.device),
    )


def _record_work(run: Run) -> None:
    """Count what a step does. After everything measured, as it trains further and turns off compilation."""
    from canary_mlflow.tracking.describing.compact import compact
    from canary_mlflow.tracking.describing.fact_tags import to_tags
    from canary_mlflow.tracking.probes.work import work_facts
    from canary_mlflow.tracking.stores.session import log_tags
    from canary_mlflow.tracking.stores.store import prepare_store

    found = compact("work", to_tags({"work": work_facts(run.built.trainer)}))
    log_tags(prepare_store(run.job.store), run.job.run_id, found)


def _record_variants(run: Run) -> None:
    """Train the tier's variants after the run, and keep their facts with it."""
    from canary_mlflow.shown import say
    from canary_mlflow.tracking.describing.compact import compact
    from canary_mlflow.tracking.stores.session import log_tags
    from canary_mlflow.tracking.stores.store import prepare_store
    from canary_mlflow.training.variant_facts import variant_tags

    found = variant_tags(run.config, run.inputs, run.device, run.folder / "variants", say)
    log_tags(prepare_store(run.job.store), run.job.run_id, compact("variants", found))


def _record_profile(run: Run) -> None:
    """Train a few more steps under the profiler, after everything that is measured."""
    from canary_mlflow.tracking.delivery.uploading import upload
    from canary_mlflow.tracking.reading.profile import FOLDER, TRACE
    from canary_mlflow.tracking.stores.session import log_tags
    from canary_mlflow.tracking.stores.store import prepare_store
    from canary_mlflow.training.profiling import profile_training

    scratch, client, run_id = run.folder / "profiled", prepare_store(run.job.store), run.job.run_id
    profile_training(run.config, run.inputs, run.device, scratch)
    upload(client, run_id, scratch / FOLDER, FOLDER, scratch=True)
    log_tags(client, run_id, {tags.PROFILED: TRACE})


def note_on(inputs: Inputs, device: Device) -> str:
    """What a reader of the results should know about data and device."""
    return "; ".join(note for note in (inputs.data.note, device.note) if note)
