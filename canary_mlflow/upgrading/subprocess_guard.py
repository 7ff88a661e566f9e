"""Runs a command that ends with the `canary upgrade` that started it, however that ends: nothing goes on unseen, and an
upgrade that is taken up again does not run beside its own past.

Between both stands this file as a process of its own (`python subprocess_guard.py COMMAND…`). Its stdin is a pipe that
nobody writes to: it closes when `canary upgrade` closes it or is killed, and then everything that descends from the
command is killed. On Linux that includes what left its session or outlived its parent.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

import psutil

LINUX = sys.platform.startswith("linux")
PR_SET_CHILD_SUBREAPER = 36
NO_START = "canary: cannot be started: "
NOT_STARTED = 126
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(
    words: Sequence[str], env: Mapping[str, str], seconds: float, folder: str = os.curdir
) -> subprocess.CompletedProcess[str]:
    """What the command said, and its exit code, 128 + N after signal N. Its stdin is empty. Raises OSError where it
    cannot be started, subprocess.TimeoutExpired when it, and all that it started, was ended."""
    ours, held = os.pipe()
    try:
        guard = subprocess.Popen(
            [sys.executable, "-I", __file__, *words], env=env, stdin=ours, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True, cwd=folder,
        )  # fmt: skip
    except BaseException:
        os.close(held)
        raise
    finally:
        os.close(ours)
    try:
        out, err = guard.communicate(timeout=seconds)
    except BaseException:
        os.close(held)
        guard.communicate()
        raise
    os.close(held)
    if guard.returncode == NOT_STARTED and err.startswith(NO_START):
        raise OSError(err.removeprefix(NO_START).strip())
    return subprocess.CompletedProcess(words, guard.returncode, out, err)


def main(words: Sequence[str]) -> int:
    """The process between: starts the command, and outlives it and all that it started."""
    for each in STOPS:  # of those who sent it to everything here, the command is to answer; no child inherits this
        signal.signal(each, lambda signum, frame: None)
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        command = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{NO_START}{error}", file=sys.stderr)
        return NOT_STARTED
    threading.Thread(target=follow, daemon=True).start()
    code = command.wait()
    end_all()
    return code if code >= 0 else 128 - code


def follow() -> None:
    """Wait until whoever started this process is gone, or has enough of it."""
    os.read(0, 1)
    end_all()
    os.killpg(0, signal.SIGKILL)


def end_all() -> None:
    """Kill what descends from this process, until nothing is left that may have started more."""
    met: set[psutil.Process] = set()
    while new := set(psutil.Process().children(recursive=True)) - met:
        for one in new:
            with contextlib.suppress(psutil.Error):
                one.kill()
        met |= new


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
