"""A signal that ends a run leaves no lock on its database: the recording of the end would wait for it in vain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import forking
import pytest
from mlflow import MlflowClient

from canary_mlflow.tracking.signals import STOPPING, Terminated, apart, expect, notice, obey, waiting

INTERRUPTED = """
import random, signal, sqlite3, sys, time
from mlflow import MlflowClient
from canary_mlflow.tracking.signals import Terminated, expect, notice, obey

client = MlflowClient(f"sqlite:///{sys.argv[1]}")
run = client.create_run("0").info.run_id
until, tries = time.monotonic() + 2, 0
signal.signal(signal.SIGVTALRM, notice)
while time.monotonic() < until:
    tries += 1
    expect()
    signal.setitimer(signal.ITIMER_VIRTUAL, random.uniform(0.0001, 0.01))
    began = time.monotonic()
    try:
        while time.monotonic() - began < 4:
            client.set_tag(run, "step", str(tries))
            obey()
        raise AssertionError("the signal was lost")
    except Terminated:
        pass
    free = sqlite3.connect(sys.argv[1], timeout=0)
    free.execute("BEGIN IMMEDIATE")  # raises OperationalError while another connection holds the lock
    free.close()
print(tries)
"""


def test_a_signal_amid_a_write_leaves_no_lock(tmp_path: Path) -> None:
    """An exception amid the call did, once in about twenty tries."""
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "mlflow.db")], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 20


@pytest.fixture
def handled() -> Iterator[None]:
    """Signals are noticed, as in a command of ours."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, *STOPPING)}
    expect()
    for each in before:
        signal.signal(each, notice)
    yield
    expect()
    for each, handler in before.items():
        signal.signal(each, handler)


def send(signum: int) -> None:
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize("signum", [signal.SIGINT, *STOPPING])
def test_a_signal_is_obeyed_where_somebody_looks(handled: None, signum: int) -> None:
    send(signum)  # nothing is raised here
    with pytest.raises(KeyboardInterrupt if signum == signal.SIGINT else Terminated):
        obey()
    send(signum)  # nor does another one cut short the recording of the end
    obey()


def test_a_second_one_does_not_wait(handled: None) -> None:
    send(signal.SIGTERM)
    with pytest.raises(Terminated, match="SIGTERM"):
        send(signal.SIGINT)


def test_a_wait_ends_at_once(handled: None) -> None:
    threading.Timer(0.2, send, (signal.SIGTERM,)).start()
    with pytest.raises(Terminated), waiting():
        time.sleep(20)
    expect()
    send(signal.SIGTERM)  # before the wait
    with pytest.raises(Terminated), waiting():
        raise AssertionError("it waits all the same")


def test_work_that_is_apart_ends_with_the_wait(handled: None) -> None:
    over, ended = threading.Event(), list[str]()
    threading.Timer(0.05, send, (signal.SIGTERM,)).start()
    with pytest.raises(Terminated):
        apart(lambda: over.wait(20) and ended.append("the work"), end=over.set)
    assert ended == ["the work"]  # nothing of it goes on behind the caller
    assert apart(lambda: 3, end=over.set) == 3
    with pytest.raises(ZeroDivisionError):
        apart(lambda: 1 / 0, end=over.set)


def test_one_that_python_swallows_is_seen_by_the_next_look(
    handled: None, recwarn: pytest.WarningsRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception that a handler raises in `__del__` or in a weakref's callback goes nowhere."""

    class Dying:
        def __del__(self) -> None:
            send(signal.SIGTERM)

    def wait_and_go_on() -> None:
        with waiting():
            Dying()
        obey()

    with pytest.raises(Terminated):
        wait_and_go_on()


@pytest.mark.parametrize(("trains", "signals"), [(False, 1), (True, 2)])
def test_what_a_script_was_told_by_an_exception_does_not_stop_its_next_training(
    handled: None, trains: bool, signals: int
) -> None:
    """In the next cell of a notebook nobody looks, and a second signal does not wait: both raise there and then."""
    expect(looks=lambda frame: trains)
    for _ in range(signals - 1):
        send(signal.SIGTERM)
    with pytest.raises(Terminated):
        send(signal.SIGTERM)
    obey()


def test_a_process_that_was_forked_off_ends(handled: None) -> None:
    child = os.fork()
    if not child:
        send(signal.SIGTERM)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


STOPPED = """
import os, signal, sys
from pathlib import Path
from tiny_trainers import save_tiny, sft
from transformers import TrainerCallback
from canary_mlflow import CanaryCallback

class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 3:
            os.kill(os.getpid(), int(sys.argv[1]))

place = Path.cwd()
sft(save_tiny("model"), place, [CanaryCallback(watch=None), Stop()], report_to="mlflow").train()
"""


STOPPED_CELL = """
import os, signal
from pathlib import Path
from mlflow import MlflowClient
from tiny_trainers import save_tiny, sft
from transformers import TrainerCallback
from canary_mlflow import CanaryCallback

class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 3:
            os.kill(os.getpid(), signal.SIGINT)

canary, model = CanaryCallback(watch=None), save_tiny("model")
said = []
try:
    sft(model, Path.cwd(), [canary, Stop()]).train()
except KeyboardInterrupt:
    said.append(MlflowClient().get_run(canary.run_id).info.status)
try:
    os.kill(os.getpid(), signal.SIGINT)  # in the next cell
except KeyboardInterrupt:
    said.append("stopped")
again = CanaryCallback(watch=None)
sft(model, Path.cwd(), [again]).train()
print(*said, MlflowClient().get_run(again.run_id).info.status)
"""


def test_a_cell_that_is_stopped_leaves_a_failed_run_and_the_next_ones_can_be_stopped_too(tmp_path: Path) -> None:
    path = str(Path(__file__).parents[1])
    ended = subprocess.run(
        [forking.python(), "-c", STOPPED_CELL], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db", "PYTHONPATH": path},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "FAILED stopped FINISHED"


@pytest.mark.parametrize(
    "signum",
    [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)],  # every day: the cell above
)
def test_a_terminated_script_whose_run_is_its_own_reads_failed(tmp_path: Path, signum: int) -> None:
    """At Python's exit MLflow ends a run that is still active, as FINISHED."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    path = str(Path(__file__).parents[1])
    ended = subprocess.run(
        [forking.python(), "-c", STOPPED, str(int(signum))], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "MLFLOW_TRACKING_URI": uri, "PYTHONPATH": path},
    )  # fmt: skip
    assert ended.returncode == (-signum if signum == signal.SIGINT else 128 + signum), ended.stderr
    client = MlflowClient(uri)
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert (run.info.status, run.data.tags["canary.failure"]) == ("FAILED", "interrupted")
