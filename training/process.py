"""A run's own process: starts it, waits for it, ends it with the session, never leaves it behind."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from canary_mlflow.launching.runs import Result, RunSpec
from canary_mlflow.module_runner import ROOT, module_command
from canary_mlflow.tracking.describing.failures import Raised
from canary_mlflow.tracking.signals import waiting
from canary_mlflow.training import devices, peers

GRACE = peers.GRACE + 5.0  # seconds a run has to record its end after SIGTERM: more than its ranks
AHEAD = 3  # processes that load their libraries at the same time, half a GiB each
GO = b"go\n"
FROM_TERMINAL = (signal.SIGINT, signal.SIGHUP)  # signals that only the session handles
RESULT, ROOM = "result.json", 16_384  # in a run's scratch folder: how it ended, and the characters reserved for that
CONFIG, READY = "config.json", "ready.json"  # in a run's scratch folder: what it should prepare, and its answer
JOB = "job.json"  # in a run's scratch folder: the run to make


@dataclass(frozen=True, kw_only=True)
class OwnRun(RunSpec):
    """A run of the code that is running; travels to its process as JSON. `name`: also for its progress bar."""

    makes: ClassVar[str] = "canary_mlflow.training.runs:train"
    config: dict[str, Any]  # training.plain.to_plain
    folder: str = ""  # for its scratch files; '': one that is removed afterwards
    keep_weights: bool = False
    profile: bool = False  # afterwards, train a few more steps under the profiler
    champion_runs: list[str] = field(default_factory=list)  # runs with which the watch compares, step by step
    fail_fast: bool = False  # facts and invariants that block beside those runs end it in its first steps
    alone_in_session: bool = False  # only the process that waits for this run has the session open


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A fresh process that has loaded its libraries and data but no model yet, with its scratch folder."""

    process: subprocess.Popen[bytes]
    folder: Path
    seed: int

    @property
    def prepared(self) -> Result:
        """What it reports about its work before anything is recorded: a failure if it cannot be done. Without workload
        if the process died before that."""
        path = self.folder / READY
        return Result(seed=self.seed, **json.loads(path.read_text()) if path.exists() else {})


@contextmanager
def workers(
    folders: Mapping[Path, int], config: Mapping[str, Any], algo: str, threads: int
) -> Iterator[Iterator[Worker]]:
    """One fresh process per folder, for its seed, in order; the end of the block ends those that are left.

    Each run has its own process, so that memory peaks and warm-up mean the same every time. Loading torch and trl takes
    longer than a smoke run: a few processes load in parallel, and none trains before all of them are done, so that no
    run is measured while another loads. `config`: what they will train, in the form of OwnRun.config, but for the seed.
    """
    started: list[Worker] = []
    ranks = devices.ranks(config.get("hardware", {}))
    ahead = max(1, AHEAD // ranks)

    def start(first: int) -> list[Worker]:
        batch = [
            _start(folder, {**config, "seed": seed}, algo, threads, ranks)
            for folder, seed in islice(folders.items(), first, first + ahead)
        ]
        started.extend(batch)
        return batch

    def ready(batch: list[Worker]) -> Iterator[Worker]:
        while batch:
            for worker in batch:
                with waiting():
                    while worker.process.poll() is None and not (worker.folder / READY).exists():
                        time.sleep(0.02)
            yield from batch
            batch = start(len(started))

    try:
        yield ready(start(0))
    finally:
        for worker in started:
            _stop(worker.process)


def run(worker: Worker, job: OwnRun, timeout_seconds: float) -> Result:
    """Let a worker train the job, wait for its end and return how it ended."""
    prepared = replace(worker.prepared, run_id=job.run_id)
    if prepared.failure:
        return prepared
    (worker.folder / JOB).write_text(json.dumps(asdict(job)))
    assert worker.process.stdin
    try:
        worker.process.stdin.write(GO)
        worker.process.stdin.flush()
        code = _wait(worker.process, timeout_seconds)
    except BrokenPipeError:
        code = worker.process.wait()
    except subprocess.TimeoutExpired:
        _stop(worker.process)
        return replace(prepared, failure="timeout", reason=f"not finished after {timeout_seconds / 60:g} minutes")
    path = worker.folder / RESULT
    if path.exists() and path.read_text(encoding="utf-8").strip():
        return replace(prepared, **read_result(path))
    return replace(prepared, failure="error", reason=ending_of(code))


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int:
    """The process's exit code as soon as it has one. Raises TimeoutExpired."""
    with waiting():
        with suppress(OSError):  # where there is no such descriptor, Popen looks every 0.05 s
            descriptor = os.pidfd_open(process.pid)
            try:
                ended = select.poll()
                ended.register(descriptor, select.POLLIN)
                ended.poll(seconds * 1000)
            finally:
                os.close(descriptor)
            seconds = 0.0
        return process.wait(seconds)


def reserve_result(folder: Path) -> None:
    """Reserve the space for the result now: the disk may be full when it is written."""
    (folder / RESULT).write_text(" " * ROOM)


def write_result(
    folder: Path, failure: str, reason: str, raised: Raised | None, evaluation: dict[str, Any] | None
) -> None:
    """Write how a run ended, for the process that waits for it."""
    said = {
        "failure": failure,
        "reason": reason,
        "raised": asdict(raised) if raised else None,
        "evaluation": evaluation,
    }
    path = folder / RESULT
    path.touch()
    with path.open("r+", encoding="utf-8") as file:  # in place, which needs no more space
        file.write(json.dumps(said).ljust(ROOM))
        file.truncate()


def read_result(path: Path) -> dict[str, Any]:
    """What `write_result` wrote."""
    said: dict[str, Any] = json.loads(path.read_text())
    return {**said, "raised": Raised(**said["raised"]) if said["raised"] else None}


def _start(folder: Path, config: Mapping[str, Any], algo: str, threads: int, ranks: int) -> Worker:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(config))
    # Its standard input is a pipe from this process: if that closes, nobody waits for the run any more.
    words = (
        ["canary_mlflow.training.worker", str(folder), algo]
        if ranks == 1
        else ["canary_mlflow.training.ranks", str(folder), algo, str(ranks)]
    )
    command = [*module_command(words[0]), *words[1:]]
    with deaf_to_the_terminal():
        env = _environment(threads) | devices.environment(config.get("hardware", {}))
        env |= QUIET_PROFILER if config.get("profile") else {}
        process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE)
    return Worker(process=process, folder=folder, seed=config["seed"])


@contextmanager
def deaf_to_the_terminal() -> Iterator[None]:
    """Block Ctrl-C and SIGHUP while a run's process starts; it then ignores them. A terminal sends them to all of its
    processes, but only the session should handle them, and end its runs with SIGTERM: a run that is loading its
    libraries would print a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FROM_TERMINAL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


QUIET_PROFILER = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Torch warns about each block of memory that was allocated before its profiler started."""


def settings(threads: int) -> dict[str, str]:
    """The environment variables of a run's process. One OpenMP thread by default: on a busy machine, times with two
    vary tenfold (docs/measured/sessions.md)."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "GIT_PYTHON_REFRESH": "quiet",  # without git, MLflow prints twenty lines for each run
        # TRL's trainers report each run to huggingface.co, from a thread. It looks up a host while Accelerate briefly
        # empties the environment (clear_environment): getenv then reads freed memory, and the process dies.
        "HF_HUB_DISABLE_TELEMETRY": os.environ.get("HF_HUB_DISABLE_TELEMETRY", "1"),
        "MLFLOW_DISABLE_TELEMETRY": os.environ.get("MLFLOW_DISABLE_TELEMETRY", "true"),
        # Deprecations inside the stack are not the user's; `PYTHONWARNINGS=default` shows them.
        "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore::FutureWarning"),
    }


OF_OTHER_LAUNCHERS = re.compile(
    "((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|(TORCHELASTIC|PET|OMPI_COMM_WORLD|PMI|MV2_COMM_WORLD)_.*"
    f"|{peers.COUNT}"
)
"""Variables that tell torch, Accelerate and Transformers that they are one rank of several. If a launcher set them for
the session, its runs must not inherit them: each would wait for ranks that never come."""


def _environment(threads: int) -> dict[str, str]:
    path = os.pathsep.join(item for item in (os.environ.get("PYTHONPATH", ""), ROOT) if item)
    # The run finds its MLflow run in job.json; MLFLOW_RUN_ID names the session's.
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
        with suppress(BrokenPipeError):  # unsent input of a process that died while loading
            process.stdin.close()


def ending_of(code: int) -> str:
    """What can be said about a process that left no message, from its exit code."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (often the kernel's out-of-memory killer; see dmesg)" if name == "SIGKILL" else ""
        return f"its process was killed by {name}{hint}"
    return f"its process ended with code {code} and reported nothing; its own output above may say why"
