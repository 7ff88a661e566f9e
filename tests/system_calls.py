"""Kills a process, or fills its disk, at one of its system calls: by strace, without code for it in the product.

strace(1) stops a process before the n-th call of a kind and kills it, or answers in the kernel's place.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import forking
import pytest
from workplace import ROOT

WRITES = ("pwrite64", "fdatasync", "fsync", "ftruncate", "unlink")  # SQLite's, to its file and its journal
SENDS = ("sendto",)  # what libpq tells the server
KILL = "signal=KILL"
FULL = "error=ENOSPC"

# Each line of stdin is the argument of a forked process, which waits for SIGCONT before it calls `act`.
FORKS = """
import json, os, signal, sys, traceback
exec(sys.argv[1])
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(2, 1)  # stdout is for exit codes
        os.kill(os.getpid(), signal.SIGSTOP)
        code = 70
        try:
            code = act(**json.loads(line))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code or 0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forks:
    """A process that forks one for each attempt; the forks have no connection to a database open."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.log = folder / "calls.txt"

    def run(self, inject: str = "", calls: tuple[str, ...] = WRITES, **values: Any) -> int:
        """One attempt; `inject`: 'unlink:signal=KILL:when=1'. Its exit code, -9 when killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(values) + "\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        while not stopped(child):
            time.sleep(0.002)
        with attached(child, self.log, calls, inject):
            os.kill(child, signal.SIGCONT)
            return int(self.process.stdout.readline())

    def counted(self, calls: tuple[str, ...], **values: Any) -> Mapping[str, int]:
        """How often an attempt that nothing disturbs makes each of the calls."""
        assert self.run("", calls, **values) == 0
        return Counter(re.findall(r"^\d+ +(\w+)\(", self.log.read_text(), re.MULTILINE))


@contextmanager
def forks(act: str, folder: Path) -> Iterator[Forks]:
    """`act`: Python that defines `act(**values)` and loads what it needs."""
    command = [forking.python(), "-c", FORKS, act]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(folder / "forks.log").open("w"),
        text=True, env=environment,
    ) as process:  # fmt: skip
        yield Forks(process, folder)
        assert process.stdin is not None
        process.stdin.close()


@contextmanager
def attached(pid: int, log: Path, calls: tuple[str, ...], inject: str = "", path: Path | None = None) -> Iterator[None]:
    """The process and all its threads and forks are traced meanwhile. `path`: calls about this file alone. `log` is
    whole when the block has ended."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: apt-get install strace")
    words = ["-e", f"trace={','.join(calls)}", *(["-e", f"inject={inject}"] if inject else [])]
    words += ["-P", str(path)] if path else []
    with subprocess.Popen(
        ["strace", "-f", "-s", "200", "-o", str(log), *words, "-p", str(pid)], stderr=subprocess.PIPE, text=True
    ) as tracer:
        try:
            wait_for_attachment(tracer.stderr)
            yield
        finally:
            end(tracer, by_itself=KILL in inject)


def end(tracer: subprocess.Popen[str], *, by_itself: bool) -> None:
    """Until strace has ended. Where what it follows was killed, it does so by itself: asked to end among the exits of
    the threads, it would wait for the first of them for ever, which in turn waits for the others to be seen off."""
    if by_itself:
        with suppress(subprocess.TimeoutExpired):
            tracer.wait(timeout=10)
    tracer.terminate()
    try:
        tracer.wait(timeout=10)
    except subprocess.TimeoutExpired:
        tracer.kill()


def nth_row(log: Path) -> int:
    """Which `sendto` of its thread added the last row to a ledger on PostgreSQL, a little before its commit."""
    calls = [line.split(maxsplit=1) for line in log.read_text().splitlines() if "sendto(" in line]
    added = max(at for at, (_, what) in enumerate(calls) if "INSERT INTO canary_ledger" in what)
    return sum(thread == calls[added][0] for thread, _ in calls[: added + 1])


def wait_for_attachment(stderr: IO[str] | None) -> None:
    """Until strace says so; skips where the kernel does not let it."""
    assert stderr is not None
    said = stderr.readline()
    if "attached" not in said:
        pytest.skip(f"strace may not trace here: {said.strip()}")


def stopped(pid: int) -> bool:
    """Whether the process waits for SIGCONT."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
