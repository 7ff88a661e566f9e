"""A signal that ends a run leaves no lock on its database: the recording of the end would wait for it in vain."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
