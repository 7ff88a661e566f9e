"""A stop that somebody else's `except` swallows still ends the session."""

from __future__ import annotations

import subprocess
import sys

import pytest

WORK = """
import os, signal, sys
from training import stopping
from training.edge import ended

def work():
    try:
        os.kill(os.getpid(), signal.{name})
    except BaseException:
        pass  # as some libraries do while they are imported
    stopping.check()
    return 0

sys.exit(ended(work))
"""


@pytest.mark.parametrize(
    ("name", "said"), [("SIGINT", "canary: interrupted; the runs so far"), ("SIGTERM", "canary: stopped by SIGTERM;")]
)
def test_a_signal_that_a_library_swallows_is_remembered(name: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", WORK.format(name=name)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr.startswith(said)) == (4, True), done.stderr
