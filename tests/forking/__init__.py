"""Start `forking/python`, the Python for tests that forks a process in which the libraries are loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
VARIABLE = "CANARY_TEST_PYTHON"


def python() -> str:
    """The path of the Python that forks; outside the tests, this one's."""
    return os.environ.get(VARIABLE, sys.executable)


def copy_new_stores() -> None:
    """Have this process, too, copy a store where it would make one (ready_store)."""
    from forking import ready_store

    if VARIABLE in os.environ:
        ready_store.install(Path(python()).parent)


def start() -> None:
    """Have `python()` fork. What it started ends with this process, and so does what forks."""
    folder = Path(tempfile.mkdtemp(prefix="forking-"))  # short: a socket's name has at most 107 bytes
    made = {
        "python": f"#!{sys.executable} -IS\n{(HERE / 'client.py').read_text()}",
        "canary": f'#!/bin/sh\nexec {folder}/python -m canary_mlflow.cli "$@"\n',
    }
    for name, text in made.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    ended, _ = os.pipe()  # its other end closes with this process
    subprocess.Popen(
        [sys.executable, str(HERE / "server.py"), str(folder / "socket"), str(ended)],
        pass_fds=[ended],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(ended)
    os.environ[VARIABLE] = str(folder / "python")
