"""Which process started something, and whether that process still lives."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from canary_mlflow import tags

LAUNCHER = "CANARY_LAUNCHER"  # in the environment of a run that is made for another process: that process


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process, told apart from every other. `place`: the host, its boot and its namespace of process ids."""

    place: str
    user: int
    pid: int
    started: str  # pids are reused; not by the clock, which may be set meanwhile

    def to_text(self) -> str:
        """One line, for a tag or a file."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def host(self) -> str:
        """The machine's name."""
        return self.place.partition(" ")[0]


def this_process() -> Owner:
    """The process that runs this."""
    return Owner(place=_place(), user=os.getuid(), pid=os.getpid(), started=_started(os.getpid()))


def lease() -> dict[str, str]:
    """The tags of a run that this process has started, and will end."""
    return {tags.LEASE: this_process().to_text()}


def heartbeat() -> dict[str, str]:
    """The tags of a run whose process is alive."""
    return {tags.HEARTBEAT: str(int(time.time()))}


def read(text: str) -> Owner | None:
    """What `to_text` wrote; None for anything else."""
    try:
        return Owner(**json.loads(text))
    except (ValueError, TypeError):
        return None


def is_gone(owner: Owner) -> bool | None:
    """Whether the process has ended; None if this machine cannot tell: the process is on another one, or is another
    user's, which /proc may hide."""
    if (owner.place, owner.user) != (_place(), os.getuid()):
        return None
    return _started(owner.pid) != owner.started


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no Linux
        return f"{socket.gethostname()} {psutil.boot_time():.0f}"


def _started(pid: int) -> str:
    """When a process started, in its system's own count; '' if there is none, or only its exit code is left."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        state, *fields = text.rpartition(")")[2].split()  # its name may contain spaces and parentheses
        return "" if state in "ZX" else fields[18]
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
    try:
        return str(psutil.Process(pid).create_time())
    except psutil.Error:
        return ""
