"""A process ends at once, but not before all that it had to do is done."""

from __future__ import annotations

import subprocess
import sys

WORK = """
import atexit, threading, time
from concurrent.futures import ThreadPoolExecutor
from training.leaving import leave

def late(word):
    time.sleep(0.3)
    print(end=word + chr(10))  # in one write: both may write at the same moment

atexit.register(print, "exit handler")
threading.Thread(target=late, args=["thread"]).start()
ThreadPoolExecutor().submit(late, "pool")
leave(3)
"""


def test_threads_that_are_no_daemons_and_exit_handlers_come_to_their_end() -> None:
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True)
    *threads, last = done.stdout.splitlines()
    assert (done.returncode, sorted(threads), last) == (3, ["pool", "thread"], "exit handler"), done.stderr


def test_nobody_has_to_read_any_more() -> None:
    code = "import os; from training.leaving import leave; print('x'); os.close(1); leave(3)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, "")
