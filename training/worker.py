"""One run in its own process: prepare, build, train, evaluate, save, record how it ended."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import StoreError, UsageError, one_line
from canary_mlflow.loading import quiet_4_bit, without_collecting
from canary_mlflow.tracking.exceptions import Raised, raised, raised_tags
from canary_mlflow.tracking.failures import classify, is_full, terminate
from training import algorithms, peers
from training.compiling import load_4_bit
from training.errors import SetupError, Stopped
from training.leaving import leave
from training.memory import ADVICE
from training.process import CONFIG, FROM_TERMINAL, READY, Job, Prepared, reserve_result, write_result
from training.sparing import spared

if TYPE_CHECKING:
    from training.building import Ahead
    from training.config import CanaryConfig
    from training.devices import Device
    from training.parts import Inputs

LIBRARIES = (
    "canary_mlflow.tracking.callback",
    "mlflow.store.tracking.sqlalchemy_store",  # MLflow imports it when it first opens a database, for 2 s
    "training.plain",
    "training.parts",
    "transformers.trainer",
)

WEIGHTS = "model"  # in a run's scratch folder, and among its artifacts

NO_ROOM = "; expected room on each disk that a run writes to; canary doctor shows which has none"
SESSION_GONE = threading.Event()


def main(folder: Path, algo: str) -> int:
    """Load libraries and data, wait for this run's turn, train `folder`/job.json and write `folder`/result.json."""
    for each in FROM_TERMINAL:
        signal.signal(each, signal.SIG_IGN)  # blocked until here (training.process): the session handles them
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FROM_TERMINAL)
    # Until its turn, SIGTERM ends this process silently: there is nothing to record yet, and an exception that a signal
    # handler throws into torch's C++ during import aborts with a page of frames.
    peers.stay_with_launcher()
    loaded = prepare(folder, algo)
    if not peers.turn(folder):
        return 0  # the session ended before this run's turn
    signal.signal(signal.SIGTERM, terminate)
    if peers.leads():
        reserve_result(folder)
    threading.Thread(target=_follow_the_session, daemon=True).start()
    return train_job(folder, loaded)


@dataclass
class Loaded:
    """What a run's process has before its turn: its data, or the exception that its libraries raised."""

    inputs: Inputs | None = None
    broken: Exception | None = None
    ahead: Ahead | None = None  # its trainer, if that was to be built before its turn


def prepare(folder: Path, algo: str) -> Loaded:
    """Load the libraries and the data that `folder`/config.json asks for, and report which work that is, before
    anything is recorded. Wrong use is reported; any other error is left to the run, whose record has room for a
    traceback."""
    loaded, prepared = Loaded(), Prepared()
    try:
        load(algo)
        prepared = _read_inputs(folder, loaded)
    except UsageError as error:
        prepared = Prepared(refusal=str(error))
    except Exception as error:  # noqa: BLE001 - a failed import is recorded like one that breaks later
        loaded.broken = error
    peers.arrive(folder)
    if not peers.leads():
        return loaded
    draft = folder / f"{READY}.draft"
    draft.write_text(json.dumps(asdict(prepared)))
    draft.replace(folder / READY)  # atomic: whoever waits for the file must not read half of it
    return loaded


def _read_inputs(folder: Path, loaded: Loaded) -> Prepared:
    from training.building import build_ahead, is_small
    from training.devices import settle
    from training.parts import prepare_inputs
    from training.plain import read_back
    from training.workload import describe

    plain = json.loads((folder / CONFIG).read_text())
    config = read_back(plain)
    device = settle(config.hardware)
    loaded.inputs = inputs = prepare_inputs(config)
    refuse_unequal_ranks(config, inputs.data.eval_rows, device.ranks)
    if is_small(inputs, device):
        loaded.ahead = build_ahead(plain, config, inputs, device, folder)
    return Prepared(workload=describe(config, inputs, device), note=_note(inputs, device))


def refuse_unequal_ranks(config: CanaryConfig, rows: int, ranks: int) -> None:
    """Raise SetupError if some held-out rows would count twice: the data may have fewer rows than were asked for."""
    from training.arguments import evaluation_rows

    if ranks > 1 and rows % (each := ranks * evaluation_rows(config, ranks)):
        raise SetupError(
            f"data={config.data.name} has {rows} held-out rows for {ranks} ranks; expected a multiple of {each}, so "
            f"that none counts twice; write tier.eval_rows={rows - rows % ranks or ranks}"
        )


def _note(inputs: Inputs, device: Device) -> str:
    """What a reader of the results should know about data and device."""
    return "; ".join(note for note in (inputs.data.note, device.note) if note)


def train_job(folder: Path, loaded: Loaded) -> int:
    """Train `folder`/job.json in this process; return 0 if the run finished, else 1."""
    job = Job(**json.loads((folder / "job.json").read_text()))
    end = _attempt(job, folder, loaded)
    if not peers.leads():
        return 1 if end.failure else 0
    _say_end(job, end)
    if job.keep_weights and not end.failure:
        _keep_weights(job, end, folder / WEIGHTS)
    if not end.lost:  # else training.ranks reports it, which sees how that rank ended
        write_result(folder, end.failure, end.reason, end.raised, end.evaluation)
    return 1 if end.failure else 0


def _say_end(job: Job, end: End) -> None:
    try:
        _record_end(job, end)
    except Exception as error:  # noqa: BLE001 - the store takes nothing any more: the session says so in one line
        end.failure, end.raised = end.failure or "error", None
        end.reason = f"its end could not be recorded: {one_line(error)}"


def _keep_weights(job: Job, end: End, saved: Path) -> None:
    """Store the weights after the run's end, so that an artifact store that fails, or is slow, costs no metrics."""
    from canary_mlflow.tracking.store import prepare_store
    from canary_mlflow.tracking.uploading import upload

    try:
        upload(prepare_store(job.tracking_uri), job.run_id, saved, WEIGHTS, scratch=True)
    except BaseException as error:  # noqa: BLE001 - signals too: without kept weights there is no version
        end.failure, said = classify(error)
        end.reason = f"its weights were not kept: {error if isinstance(error, StoreError) else said}"
        _say_end(job, end)


def load(algo: str) -> None:
    """Import what the run will need: most of a smoke run's wall time, but not part of what is measured."""
    quiet_4_bit()
    with without_collecting(), spared():
        load_4_bit()
        for name in LIBRARIES:
            import_module(name)
        algorithms.load(algo)


def _follow_the_session() -> None:
    """End this run when the session's process is gone: its end of the pipe closes, however it died."""
    sys.stdin.read()
    SESSION_GONE.set()
    os.kill(os.getpid(), signal.SIGTERM)


@dataclass
class End:
    """How the run ended, and what was known by then; the reasons are empty if it finished."""

    failure: str = ""
    reason: str = ""
    raised: Raised | None = None
    trace: str = ""
    workload: dict[str, str] = field(default_factory=dict)
    nonfinite: int = 0  # steps
    evaluation: dict[str, Any] | None = None  # of the weights that it saved
    lost: bool = False  # another rank is gone and left no message


def _attempt(job: Job, folder: Path, loaded: Loaded) -> End:
    """Train, and return how the run ended; whatever is raised becomes part of the End."""
    end = End()
    try:
        if loaded.broken is not None:
            raise loaded.broken
        _train(job, folder, loaded, end)
    except UsageError as error:
        end.failure, end.reason = "config", str(error)
    except Stopped as error:
        end.failure, end.reason = "instability", str(error)
    except BaseException as error:  # noqa: BLE001 - whatever user code or a library raises is recorded, not lost
        _explain(end, peers.first_failure(folder, error))
        if not peers.leads():
            own = {"failure": end.failure, "reason": end.reason, "raised": end.raised, "trace": end.trace}
            peers.leave(folder, peers.RankEnd(**own, secondary=peers.may_be_secondary(error)))
        return end
    if not peers.leads():
        peers.leave(folder, peers.RankEnd(failure=end.failure, reason=end.reason, secondary=bool(end.failure)))
    return end


def _explain(end: End, error: BaseException) -> None:
    """Put into `end` why the run broke off, in this rank or in another."""
    if isinstance(error, peers.PeerFailed):
        theirs = error.end
        end.failure, end.reason, end.raised, end.trace = theirs.failure, theirs.reason, theirs.raised, theirs.trace
        return
    end.failure, end.reason = classify(error, end.nonfinite)
    end.raised = None if is_full(error) else raised(error)
    end.reason += NO_ROOM if is_full(error) else ADVICE if end.failure == "oom" else ""
    end.trace = "" if end.failure == "interrupted" else "".join(traceback.format_exception(error))
    if isinstance(error, peers.RankLost):
        end.failure, end.reason, end.lost = "error", str(error), True


def _train(job: Job, folder: Path, loaded: Loaded, end: End) -> None:
    import gc

    from tqdm.contrib.logging import logging_redirect_tqdm

    from canary_mlflow.tracking.callback import CanaryCallback
    from canary_mlflow.tracking.histories import RUN_NOTE_TAG
    from canary_mlflow.tracking.sinks import SINKS
    from training.building import build_run, put_in_place
    from training.devices import settle
    from training.evaluation import repeat_evaluation
    from training.memory import rounding
    from training.mlflow_model import evidence_only, read_model, write_model
    from training.parts import prepare_inputs
    from training.plain import read_back
    from training.progress import ProgressBar
    from training.samples import FixedPrompts
    from training.workload import describe

    config = read_back(job.config)
    device = settle(config.hardware)
    inputs = loaded.inputs or prepare_inputs(config)
    end.workload = describe(config, inputs, device)
    ahead, loaded.ahead = loaded.ahead, None
    built = (ahead and ahead.take(job.config)) or build_run(config, inputs, device, folder)
    parts, trainer = built.parts, built.trainer
    canary = CanaryCallback(
        run_id=job.run_id,
        tracking_uri=job.tracking_uri,
        workload=end.workload,
        config=job.config,
        tags={
            "canary.role": job.role,
            **{f"canary.data.{key}": str(value) for key, value in asdict(inputs.data).items()},
            **({RUN_NOTE_TAG: note} if (note := _note(inputs, device)) else {}),
        },
        sinks=[name for name in SINKS if getattr(config.tracking, name)],
        system_metrics=config.tracking.system_metrics,
        watch=job.config["watch"],
        champion_runs=job.champion_runs,
        samples=config.tracking.samples,
        starts_fresh=True,  # every canary builds its reference from the start model, and a new adapter
    )
    progress = ProgressBar(job.label)
    callbacks = [canary, progress, built.evaluate]
    if canary.samples is not None and config.algo.head == "language":
        callbacks.append(FixedPrompts(config, parts.eval_dataset, canary.samples, canary.paused, trainer))
    put_in_place(trainer, built.evaluate, callbacks)
    # One full collection costs 0.3 s once torch and transformers are loaded; without this it would fall into some step.
    gc.collect()
    gc.freeze()
    try:
        with logging_redirect_tqdm([logging.getLogger("canary_mlflow")]):  # a warning must not break the bar's line
            trainer.train()
    except BaseException as error:
        found = peers.first_failure(folder, error)
        canary.close(found)
        if found is error:
            raise
        raise found from error
    finally:
        progress.close()
        canary.close()
        end.nonfinite = canary.nonfinite_steps
    if stopped := peers.from_first_rank(canary.stopped):
        raise Stopped(stopped)
    if job.keep_weights:
        saved = folder / WEIGHTS
        if config.tracking.weights == "none":
            evidence_only(saved)
        else:
            write_model(trainer, parts, config, saved, job.run_id)
        peers.from_first_rank("written")  # what follows is read by all ranks
    # Every rank evaluates its share. Sharded weights are not read back.
    if job.keep_weights and config.tracking.weights == "log" and config.parallel.name != "fsdp2":
        end.evaluation = repeat_evaluation(
            trainer,
            lambda: read_model(config, parts.tokenizer, device, saved),
            rounding(config, device),
        )
    if not peers.leads():
        return
    _record_work(job, trainer)
    if config.tier.variants:
        _record_variants(job, config, inputs, device, folder / "variants")
    if job.profile:
        _record_profile(job, config, inputs, device, folder / "profiled")


def _record_work(job: Job, trainer: Any) -> None:
    """Count what a step does. After everything measured, as it trains further and turns off compilation."""
    from canary_mlflow.tracking.fact_tags import to_tags
    from canary_mlflow.tracking.probes.work.fixture import work_facts
    from canary_mlflow.tracking.session import log_tags
    from canary_mlflow.tracking.store import prepare_store

    log_tags(prepare_store(job.tracking_uri), job.run_id, to_tags({"work": work_facts(trainer)}))


def _record_variants(job: Job, config: CanaryConfig, inputs: Inputs, device: Device, scratch: Path) -> None:
    """Train the tier's variants after the run, and keep their facts with it."""
    from canary_mlflow.shown import say
    from canary_mlflow.tracking.session import log_tags
    from canary_mlflow.tracking.store import prepare_store
    from training.variant_facts import variant_tags

    found = variant_tags(config, inputs, device, scratch, say)
    log_tags(prepare_store(job.tracking_uri), job.run_id, found)


def _record_profile(job: Job, config: CanaryConfig, inputs: Inputs, device: Device, scratch: Path) -> None:
    """Train a few more steps under the profiler, after everything that is measured."""
    from canary_mlflow.registry.profiled import PROFILED_TAG
    from canary_mlflow.tracking.profile import FOLDER, TRACE
    from canary_mlflow.tracking.session import log_tags
    from canary_mlflow.tracking.store import prepare_store
    from canary_mlflow.tracking.uploading import upload
    from training.profiling import profile_training

    profile_training(config, inputs, device, scratch)
    client = prepare_store(job.tracking_uri)
    upload(client, job.run_id, scratch / FOLDER, FOLDER, scratch=True)
    log_tags(client, job.run_id, {PROFILED_TAG: TRACE})


def _record_end(job: Job, end: End) -> None:
    """Write the run's end to its store; the session's process does so if this one dies.

    Conversely, the run ends a session whose process was killed.
    """
    from mlflow.exceptions import MlflowException

    from canary_mlflow.tracking.session import close_killed_session, close_run
    from canary_mlflow.tracking.store import prepare_store

    client = prepare_store(job.tracking_uri)
    more = {}
    if end.trace:
        with suppress(OSError, MlflowException):  # the run's end matters more, and needs only the database
            client.log_text(job.run_id, end.trace, "traceback.txt")
        # A run that broke off before its training began has not yet recorded its work.
        more = {**{f"canary.workload.{key}": value for key, value in end.workload.items()}, **raised_tags(end.raised)}
    close_run(client, job.run_id, end.failure, end.reason, more)
    if SESSION_GONE.is_set() and job.alone_in_session:
        close_killed_session(client, job.run_id)


if __name__ == "__main__":
    ended = main(Path(sys.argv[1]), sys.argv[2])
    if peers.world() > 1:
        sys.exit(ended)  # its ranks' group ends itself
    leave(ended)
