"""The process of one run: prepare, wait for its turn, make it (one_run.py), record how it ended."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow import tags
from canary_mlflow.errors import StoreError, UsageError, one_line
from canary_mlflow.loading import quiet_4_bit, without_collecting
from canary_mlflow.tracking.describing.failures import classify, is_full, raised, raised_tags
from canary_mlflow.tracking.signals import expect, notice
from canary_mlflow.training import algorithms, peers
from canary_mlflow.training.errors import SetupError, Stopped
from canary_mlflow.training.memory import ADVICE
from canary_mlflow.training.one_run import WEIGHTS, Loaded, note_on, train
from canary_mlflow.training.peers import End
from canary_mlflow.training.process import CONFIG, FROM_TERMINAL, JOB, READY, OwnRun, reserve_result, write_result

if TYPE_CHECKING:
    from canary_mlflow.training.config import CanaryConfig

LIBRARIES = (
    "canary_mlflow.tracking.callback",
    "mlflow.store.tracking.sqlalchemy_store",  # MLflow imports it when it first opens a database, for 2 s
    "canary_mlflow.training.plain",
    "canary_mlflow.training.parts",
    "transformers.trainer",
)

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
    expect()
    signal.signal(signal.SIGTERM, notice)
    if peers.leads():
        reserve_result(folder)
    threading.Thread(target=_follow_the_session, daemon=True).start()
    return train_job(folder, loaded)


def prepare(folder: Path, algo: str) -> Loaded:
    """Load the libraries and the data that `folder`/config.json asks for, and report which work that is, before
    anything is recorded. Wrong use is reported; any other error is left to the run, whose record has room for a
    traceback."""
    loaded, prepared = Loaded(), dict[str, Any]()
    try:
        load(algo)
        import_module("canary_mlflow.tracking.probes.clock").begin()
        prepared = _read_inputs(folder, loaded)
    except UsageError as error:
        prepared = {"failure": "config", "reason": str(error)}
    except Exception as error:  # noqa: BLE001 - a failed import is recorded like one that breaks later
        loaded.broken = error
    peers.arrive(folder)
    if not peers.leads():
        return loaded
    draft = folder / f"{READY}.draft"
    draft.write_text(json.dumps(prepared))
    draft.replace(folder / READY)  # atomic: whoever waits for the file must not read half of it
    return loaded


def _read_inputs(folder: Path, loaded: Loaded) -> dict[str, Any]:
    from canary_mlflow.training.building import build_ahead, is_small
    from canary_mlflow.training.devices import settle
    from canary_mlflow.training.parts import prepare_inputs
    from canary_mlflow.training.plain import read_back
    from canary_mlflow.training.workload import describe

    plain = json.loads((folder / CONFIG).read_text())
    config = read_back(plain)
    loaded.device = device = settle(config.hardware)
    loaded.inputs = inputs = prepare_inputs(config)
    refuse_unequal_ranks(config, inputs.data.eval_rows, device.ranks)
    if is_small(inputs, device):
        loaded.ahead = build_ahead(plain, config, inputs, device, folder)
    return {"workload": describe(config, inputs, device), "note": note_on(inputs, device)}


def refuse_unequal_ranks(config: CanaryConfig, rows: int, ranks: int) -> None:
    """Raise SetupError if some held-out rows would count twice: the data may have fewer rows than were asked for."""
    from canary_mlflow.training.arguments import evaluation_rows

    if ranks > 1 and rows % (each := ranks * evaluation_rows(config, ranks)):
        raise SetupError(
            f"data={config.data.name} has {rows} held-out rows for {ranks} ranks; expected a multiple of {each}, so "
            f"that none counts twice; write tier.eval_rows={rows - rows % ranks or ranks}"
        )


def train_job(folder: Path, loaded: Loaded) -> int:
    """Train `folder`/job.json in this process; return 0 if the run finished, else 1."""
    job = OwnRun(**json.loads((folder / JOB).read_text()))
    end = _attempt(job, folder, loaded)
    if not peers.leads():
        return 1 if end.failure else 0
    _say_end(job, end)
    if job.keep_weights and not end.failure:
        _keep_weights(job, end, folder / WEIGHTS)
    if not end.lost:  # else training.ranks reports it, which sees how that rank ended
        write_result(folder, end.failure, end.reason, end.raised, end.evaluation)
    return 1 if end.failure else 0


def _say_end(job: OwnRun, end: End) -> None:
    try:
        _record_end(job, end)
    except Exception as error:  # noqa: BLE001 - the store takes nothing any more: the session says so in one line
        end.failure, end.raised = end.failure or "error", None
        end.reason = f"its end could not be recorded: {one_line(error)}"


def _keep_weights(job: OwnRun, end: End, saved: Path) -> None:
    """Store the weights after the run's end, so that an artifact store that fails, or is slow, costs no metrics."""
    from canary_mlflow.tracking.delivery.uploading import upload
    from canary_mlflow.tracking.stores.store import prepare_store

    try:
        upload(prepare_store(job.store), job.run_id, saved, WEIGHTS, scratch=True)
    except BaseException as error:  # noqa: BLE001 - signals too: without kept weights there is no version
        end.failure, said = classify(error)
        end.reason = f"its weights were not kept: {error if isinstance(error, StoreError) else said}"
        _say_end(job, end)


def load(algo: str) -> None:
    """Import what the run will need: most of a smoke run's wall time, but not part of what is measured."""
    quiet_4_bit()
    with without_collecting():
        for name in LIBRARIES:
            import_module(name)
        algorithms.load(algo)


def _follow_the_session() -> None:
    """End this run when the session's process is gone: its end of the pipe closes, however it died."""
    sys.stdin.read()
    SESSION_GONE.set()
    os.kill(os.getpid(), signal.SIGTERM)


def _attempt(job: OwnRun, folder: Path, loaded: Loaded) -> End:
    """Train, and return how the run ended; whatever is raised becomes part of the End."""
    end = End()
    try:
        if loaded.broken is not None:
            raise loaded.broken
        train(job, folder, loaded, end)
    except UsageError as error:
        end.failure, end.reason = "config", str(error)
    except Stopped as error:
        end.failure, end.reason = "instability", str(error)
    except BaseException as error:  # noqa: BLE001 - whatever user code or a library raises is recorded, not lost
        _explain(end, peers.first_failure(folder, error), lambda: planned(job, loaded))
        if not peers.leads():
            end.secondary = peers.may_be_secondary(error)
            peers.leave(folder, end)
        return end
    if not peers.leads():
        end.secondary = bool(end.failure)
        peers.leave(folder, end)
    return end


def planned(job: OwnRun, loaded: Loaded) -> str:
    """What `canary plan` counts for a run that ran out of memory; "" where it makes no plan."""
    with suppress(Exception):
        from canary_mlflow.training.devices import settle
        from canary_mlflow.training.footprint import footprint
        from canary_mlflow.training.plain import read_back
        from canary_mlflow.training.planning import config_folder, size

        config = read_back(job.config)
        device = loaded.device or settle(config.hardware)
        return f"; canary plan counts {size(footprint(config, config_folder(config.model), device).total)}"
    return ""


def _explain(end: End, error: BaseException, plan: Callable[[], str]) -> None:
    """Put into `end` why the run broke off, in this rank or in another. `plan`: see `planned`."""
    if isinstance(error, peers.PeerFailed):
        theirs = error.end
        end.failure, end.reason, end.raised, end.trace = theirs.failure, theirs.reason, theirs.raised, theirs.trace
        return
    end.failure, end.reason = classify(error, end.nonfinite)
    end.raised = None if is_full(error) else raised(error)
    end.reason += NO_ROOM if is_full(error) else plan() + ADVICE if end.failure == "oom" else ""
    end.trace = "" if end.failure == "interrupted" else "".join(traceback.format_exception(error))
    if isinstance(error, peers.RankLost):
        end.failure, end.reason, end.lost = "error", str(error), True


def _record_end(job: OwnRun, end: End) -> None:
    """Write the run's end to its store; the session's process does so if this one dies.

    Conversely, the run ends a session whose process was killed.
    """
    from mlflow.exceptions import MlflowException

    from canary_mlflow.tracking.describing.compact import compact
    from canary_mlflow.tracking.stores.session import close_killed_session, close_run
    from canary_mlflow.tracking.stores.store import prepare_store

    client = prepare_store(job.store)
    more = {}
    if end.trace:
        with suppress(OSError, MlflowException):  # the run's end matters more, and needs only the database
            client.log_text(job.run_id, end.trace, "traceback.txt")
        # A run that broke off before its training began has not yet recorded its work.
        work = compact("end", {f"{tags.WORKLOAD}{key}": value for key, value in end.workload.items()})
        more = {**work, **raised_tags(end.raised)}
    close_run(client, job.run_id, end.failure, end.reason, more)
    if SESSION_GONE.is_set() and job.alone_in_session:
        close_killed_session(client, job.run_id)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
