"""A signal that ends a run leaves no lock on its database: the recording of the end would wait for it in vain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import pytest
import sqlalchemy
from mlflow import MlflowClient

from canary_mlflow.tracking.signals import STOPPING, Terminated, TerminationHandler, terminate

INTERRUPTED = """
import random, signal, sqlite3, sys, time
from mlflow import MlflowClient
from canary_mlflow.tracking.signals import Terminated, terminate

client = MlflowClient(f"sqlite:///{sys.argv[1]}")
run = client.create_run("0").info.run_id
until, tries = time.monotonic() + 5, 0
while time.monotonic() < until:
    tries += 1
    signal.signal(signal.SIGVTALRM, terminate)
    signal.setitimer(signal.ITIMER_VIRTUAL, random.uniform(0.0001, 0.01))
    began = time.monotonic()
    try:
        while time.monotonic() - began < 4:
            client.set_tag(run, "step", str(tries))
        raise AssertionError("the signal was lost")
    except Terminated:
        began = time.monotonic()
    free = sqlite3.connect(sys.argv[1], timeout=0)
    free.execute("BEGIN IMMEDIATE")  # raises OperationalError while another connection holds the lock
    free.close()
print(tries)
"""


def test_a_signal_amid_a_write_leaves_no_lock(tmp_path: Path) -> None:
    """Without waiting for the end of the call, one try in about twenty does."""
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "mlflow.db")], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 50


@contextmanager
def handled(by: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let this function handle the signals for a while."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, *STOPPING)}
    for each in before:
        signal.signal(each, by)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def database_that_sends(signum: int) -> Iterator[tuple[sqlalchemy.Connection, list[str]]]:
    """A database whose function stop() sends the signal, amid the call; and what happened since, to be noted."""
    happened: list[str] = []

    def stop() -> None:
        os.kill(os.getpid(), signum)
        happened.append("the call went on")

    with sqlalchemy.create_engine("sqlite://").connect() as connection:
        connection.connection.create_function("stop", 0, stop)  # type: ignore[attr-defined]  # of sqlite3
        yield connection, happened


def test_what_is_around_the_call_is_cleaned_up() -> None:
    """Also if the call is the last thing in its block, where Python goes on in the lines that clean up."""
    with database_that_sends(signal.SIGTERM) as (connection, happened):

        def in_a_with() -> None:
            with ExitStack() as around:
                around.callback(happened.append, "the block was left")
                connection.execute(sqlalchemy.text("SELECT stop()"))

        def in_a_try() -> None:
            try:
                connection.execute(sqlalchemy.text("SELECT stop()"))
            finally:
                happened.append("the rest was done")

        for each in (in_a_with, in_a_try):
            with handled(terminate), pytest.raises(Terminated):
                each()
    assert happened == ["the call went on", "the block was left", "the call went on", "the rest was done"]


def test_ctrl_c_in_a_script_waits_for_the_call_too() -> None:
    recorded: list[BaseException] = []
    with handled(signal.default_int_handler):
        ours = TerminationHandler()
        ours.install(recorded.append, lambda: False)
        with database_that_sends(signal.SIGINT) as (connection, happened), pytest.raises(KeyboardInterrupt):
            connection.execute(sqlalchemy.text("SELECT stop()"))
        ours.remove()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert (happened, recorded) == (["the call went on"], [])


STOPPED = """
import os, signal, sys
from pathlib import Path
from tiny_trainers import save_tiny, sft
from transformers import TrainerCallback
from canary_mlflow import CanaryCallback

class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

place = Path.cwd()
sft(save_tiny("model"), place, [CanaryCallback(watch=None), Stop()], report_to="mlflow").train()
"""


def test_a_terminated_script_whose_run_is_its_own_reads_failed(tmp_path: Path) -> None:
    """At Python's exit MLflow ends a run that is still active, as FINISHED."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-c", STOPPED], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "MLFLOW_TRACKING_URI": uri, "PYTHONPATH": path},
    )  # fmt: skip
    assert ended.returncode == 128 + signal.SIGTERM, ended.stderr
    client = MlflowClient(uri)
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert (run.info.status, run.data.tags["canary.failure"]) == ("FAILED", "interrupted")
