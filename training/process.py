"""A run's own process: started, waited for, ended with the session, never left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from canary_mlflow.tracking.exceptions import Raised
from training import devices, peers

GRACE = 20.0  # seconds a run has to record its end after SIGTERM
AHEAD = 3  # processes that load their libraries at the same time, half a GiB each
GO = b"go\n"
FROM_TERMINAL = (signal.SIGINT, signal.SIGHUP)  # signals that are the session's to answer
RESULT, ROOM = "result.json", 16_384  # in a run's scratch folder: its word on its end, and the characters kept for it
CONFIG, READY = "config.json", "ready.json"  # in a run's scratch folder: what it is to prepare, and its word on that


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a run's process needs to know; travels as JSON."""

    config: dict[str, Any]  # training.compose.to_plain
    run_id: str
    tracking_uri: str
    label: str  # for the progress bar
    keep_weights: bool
    champion_runs: list[str] = field(default_factory=list)  # what the watch compares with, step by step
    role: str = "run"  # or baseline: made beside a candidate's, of the champion's code
    alone_in_session: bool = False  # nobody but the process that waits for this run has the session open


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended. failure: "" | instability | oom | timeout | interrupted | error | config.

    `evaluation`: of a run that kept its weights, what training.evaluation.repeat_evaluation found.
    """

    run_id: str
    seed: int
    failure: str = ""
    reason: str = ""
    raised: Raised | None = None  # None too where its process left no word
    evaluation: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a run's process says of its work before anything is recorded."""

    workload: dict[str, str] = field(default_factory=dict)  # empty where it could not be prepared
    note: str = ""  # what a reader of the results should know, in one sentence
    refusal: str = ""  # why it cannot be done, in one line


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A fresh process that has its libraries and its data, no model yet; and its scratch folder."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def prepared(self) -> Prepared:
        """Its word on the work; an empty one of a process that died before."""
        path = self.folder / READY
        return Prepared(**json.loads(path.read_text())) if path.exists() else Prepared()


@contextmanager
def workers(folders: Sequence[Path], config: Mapping[str, Any], algo: str, threads: int) -> Iterator[Iterator[Worker]]:
    """One fresh process per folder, in order; whatever ends the block ends those that are left.

    A process of its own per run, so that memory peaks and warm-up mean the same every time. Loading torch and trl
    takes longer than a smoke run: a few processes do it side by side, and none trains before all of them are done,
    so that no run is measured while another loads. `config`: what they are to train, as a job has it; only the seed
    may be another in the end.
    """
    started: list[Worker] = []
    ranks = devices.ranks(config.get("hardware", {}))
    ahead = max(1, AHEAD // ranks)

    def start(first: int) -> list[Worker]:
        batch = [_start(folder, config, algo, threads, ranks) for folder in folders[first : first + ahead]]
        started.extend(batch)
        return batch

    def ready(batch: list[Worker]) -> Iterator[Worker]:
        while batch:
            for worker in batch:
                while worker.process.poll() is None and not (worker.folder / READY).exists():
                    time.sleep(0.02)
            yield from batch
            batch = start(len(started))

    try:
        yield ready(start(0))
    finally:
        for worker in started:
            _stop(worker.process)


def run(worker: Worker, job: Job, timeout_seconds: float) -> Result:
    """Have a worker train the job and wait for its end."""
    seed = int(job.config["seed"])
    if refusal := worker.prepared.refusal:
        return Result(run_id=job.run_id, seed=seed, failure="config", reason=refusal)
    (worker.folder / "job.json").write_text(json.dumps(asdict(job)))
    assert worker.process.stdin
    try:
        worker.process.stdin.write(GO)
        worker.process.stdin.flush()
        code = worker.process.wait(timeout_seconds)
    except BrokenPipeError:
        code = worker.process.wait()
    except subprocess.TimeoutExpired:
        _stop(worker.process)
        reason = f"not finished after {timeout_seconds / 60:g} minutes"
        return Result(run_id=job.run_id, seed=seed, failure="timeout", reason=reason)
    path = worker.folder / RESULT
    if path.exists() and path.read_text(encoding="utf-8").strip():
        return read_result(path, job.run_id, seed)
    return Result(run_id=job.run_id, seed=seed, failure="error", reason=ending_of(code))


def reserve_result(folder: Path) -> None:
    """Take the room for the word now: a disk may be full when it is to be written."""
    (folder / RESULT).write_text(" " * ROOM)


def write_result(
    folder: Path, failure: str, reason: str, raised: Raised | None, evaluation: dict[str, Any] | None
) -> None:
    """What a run's process leaves for the one that waits for it."""
    said = {
        "failure": failure,
        "reason": reason,
        "raised": asdict(raised) if raised else None,
        "evaluation": evaluation,
    }
    path = folder / RESULT
    path.touch()
    with path.open("r+", encoding="utf-8") as file:  # in place, which takes no more room
        file.write(json.dumps(said).ljust(ROOM))
        file.truncate()


def read_result(path: Path, run_id: str, seed: int) -> Result:
    """What `write_result` wrote."""
    said = json.loads(path.read_text())
    raised = Raised(**said.pop("raised")) if said["raised"] else said.pop("raised")
    return Result(run_id=run_id, seed=seed, raised=raised, **said)


def _start(folder: Path, config: Mapping[str, Any], algo: str, threads: int, ranks: int) -> Worker:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(config))
    # Its standard input is a pipe from this process: when that closes, nobody waits for the run any more.
    words = ["training.worker", str(folder), algo] if ranks == 1 else ["training.ranks", str(folder), algo, str(ranks)]
    command = [sys.executable, "-m", *words]
    with deaf_to_the_terminal():
        env = _environment(threads) | devices.environment(config.get("hardware", {}))
        env |= QUIET_PROFILER if config.get("profile") else {}
        process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE)
    return Worker(process=process, folder=folder)


@contextmanager
def deaf_to_the_terminal() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal, and so does its closing. A run starts with them blocked and then
    ignores them: only the session answers, and ends its runs with SIGTERM; a run would answer with a traceback while it
    loads its libraries."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FROM_TERMINAL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


QUIET_PROFILER = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Torch warns of each block of memory that is older than its profiler."""


def settings(threads: int) -> dict[str, str]:
    """One OpenMP thread by default: two on a busy machine vary tenfold (docs/running.md)."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "GIT_PYTHON_REFRESH": "quiet",  # without git, MLflow would say so in twenty lines for each run
        # TRL's trainers tell huggingface.co of each run, from a thread. That looks up a host while Accelerate empties
        # the environment for a moment (clear_environment): getenv then reads freed memory, and the process dies.
        "HF_HUB_DISABLE_TELEMETRY": os.environ.get("HF_HUB_DISABLE_TELEMETRY", "1"),
        "MLFLOW_DISABLE_TELEMETRY": os.environ.get("MLFLOW_DISABLE_TELEMETRY", "true"),
        # Deprecations inside the stack are not the user's; `PYTHONWARNINGS=default` shows them.
        "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore::FutureWarning"),
    }


OF_OTHER_LAUNCHERS = re.compile(
    "((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|(TORCHELASTIC|PET|OMPI_COMM_WORLD|PMI|MV2_COMM_WORLD)_.*"
    f"|{peers.COUNT}"
)
"""Variables by which torch, Accelerate and Transformers know that they are one rank of several. A launcher that started
the session did not start its runs: each would wait for others that never come."""


def _environment(threads: int) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(item for item in (os.environ.get("PYTHONPATH", ""), root) if item)
    # The run is told its MLflow run in job.json; MLFLOW_RUN_ID names the session's.
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key != "MLFLOW_RUN_ID" and not OF_OTHER_LAUNCHERS.fullmatch(key)
    }
    return {**inherited, **settings(threads), "PYTHONPATH": path}


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdin:
        with suppress(BrokenPipeError):  # what a process that died while it loaded was never told is still to be sent
            process.stdin.close()


def ending_of(code: int) -> str:
    """What can be said of a process that left no word."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (often the kernel's out-of-memory killer; see dmesg)" if name == "SIGKILL" else ""
        return f"its process was killed by {name}{hint}"
    return f"its process ended with code {code} and left no word; its own output above may say why"
