"""Which process started something, and whether it still lives; temporary folders that say whose they are, so
that those of a killed process can be removed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
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


# ---- temporary folders -----------------------------------------------------------------------------------------------


OWNER = ".canary-owner"
CHECKOUT = "checkout"  # a git worktree in such a folder


@contextmanager
def scratch(purpose: str) -> Iterator[Path]:
    """An empty folder `canary-PURPOSE-…` among the system's temporary files, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"canary-{purpose}-") as place:
        Path(place, OWNER).write_text(this_process().to_text(), encoding="utf-8")
        yield Path(place)


def left_behind() -> list[Path]:
    """This user's scratch folders whose process is gone."""
    found = []
    for mark in Path(tempfile.gettempdir()).glob(f"canary-*/{OWNER}"):
        try:
            mine = mark.parent.lstat().st_uid == os.getuid() and not mark.parent.is_symlink()
            holder = read(mark.read_text(encoding="utf-8")) if mine else None
        except OSError:
            continue  # removed meanwhile
        if holder is not None and is_gone(holder):
            found.append(mark.parent)
    return sorted(found)


def remove_left_behind() -> int:
    """Remove those folders with their git worktrees, and return how many there were."""
    found = left_behind()
    for folder in found:
        _forget_worktree(folder / CHECKOUT)
        shutil.rmtree(folder, ignore_errors=True)
    return len(found)


def _forget_worktree(checkout: Path) -> None:
    """Make the repository that a worktree belongs to drop it."""
    if not (checkout / ".git").is_file():
        return
    command = ["git", "-C", str(checkout), "rev-parse", "--path-format=absolute", "--git-common-dir"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            remove = ["git", f"--git-dir={found.stdout.strip()}", "worktree", "remove", "--force", str(checkout)]
            subprocess.run(remove, capture_output=True, check=False)
    except OSError:
        return  # no git any more
