"""Start `forking/python`, the Python for tests that forks a process in which the libraries are loaded."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
VARIABLE = "CANARY_TEST_PYTHON"


def python() -> str:
    """The path of the Python that forks; outside the tests, this one's."""
    return os.environ.get(VARIABLE, sys.executable)


def be_real() -> None:
    """Have what this process, a fork that tests, starts with `sys.executable` not be forked in its turn."""
    sys.executable = os.path.join(sys.prefix, "bin", "python")
    os.environ.pop("PYTHONUNBUFFERED", None)


def copy_new_stores() -> None:
    """Have this process, too, copy a store where it would make one (ready_store)."""
    from forking import ready_store

    if VARIABLE in os.environ and "ready_store" not in sys.modules:  # a fork does it already
        ready_store.install(Path(python()).parent)


def keep_configs() -> None:
    """Have this process, too, keep what Hydra has read and merged (ready_configs)."""
    from forking import ready_configs

    if "ready_configs" not in sys.modules:
        ready_configs.install()


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
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(64)  # whoever asks before the server has started waits
        subprocess.Popen(
            [sys.executable, str(HERE / "server.py"), str(listener.fileno()), str(ended)],
            pass_fds=[listener.fileno(), ended],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    os.close(ended)
    os.environ[VARIABLE] = str(folder / "python")
