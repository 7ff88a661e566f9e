"""The processes of one run and what they tell each other: when they may begin, how each ended, which one was lost.

Only the first rank talks to the session, the store and the scratch folder's readers. If a run has one process,
everything here returns at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from canary_mlflow.tracking.describing.failures import Raised
from canary_mlflow.tracking.signals import Terminated

COUNT = "CANARY_RANKS"
"""Environment variable of processes that training.ranks started. WORLD_SIZE and RANK alone prove nothing: a cluster may
set them for whatever it runs."""

TURN = "turn"  # a file in a run's scratch folder: "go", or empty if the session ended before
POLL = 0.02  # seconds
FOLLOWS = 0.5  # seconds between two looks at whoever a process is made for
GRACE = 15  # seconds in which ranks record their end after SIGTERM, before they are killed
PATIENCE = 3.0  # seconds in which a rank that broke a connection leaves its message, or is seen to be gone
BETWEEN_RANKS = ("gloo", "NCCL", "Connection closed by peer")  # in messages of errors without their own type


class RankLost(BaseException):
    """Another rank is gone without a message. Not an Exception, because no code of the run raised it."""


class PeerFailed(Exception):
    """Another rank's exception is why this one could not go on."""

    def __init__(self, end: End) -> None:
        super().__init__(end.reason)
        self.end = end


@dataclass
class End:
    """How this rank of the run ended, and what was known by then; the reasons are empty if it finished."""

    failure: str = ""
    reason: str = ""
    raised: Raised | None = None
    trace: str = ""
    workload: dict[str, str] = field(default_factory=dict)
    nonfinite: int = 0  # steps
    evaluation: dict[str, Any] | None = None  # of the weights that it saved
    lost: bool = False  # another rank is gone and left no message
    secondary: bool = False  # it ended only because another had ended


def rank() -> int:
    """The rank of this process in its run."""
    return int(os.environ["RANK"]) if world() > 1 else 0


def world() -> int:
    """How many processes the run has."""
    return int(os.environ.get(COUNT, "1"))


def leads() -> bool:
    """Whether this is the rank that records."""
    return rank() == 0


def clear(folder: Path) -> None:
    """Remove what ranks of an earlier run left in the folder."""
    for path in (folder / TURN, *folder.glob("rank-*.*")):
        path.unlink(missing_ok=True)


def stay_with_launcher() -> None:
    """End this rank when its launcher is gone, as nobody else knows of it. Its own process group keeps signals away."""
    if world() > 1:
        threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()


def _follow(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(FOLLOWS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)  # it waits for another rank, where no signal is handled


def arrive(folder: Path) -> None:
    """Report that this rank has its data; the first rank waits for all others, so that none loads during training."""
    if world() == 1:
        return
    _put(_file(folder, rank(), "pid"), str(os.getpid()))
    while leads() and not all(_file(folder, other, "pid").exists() for other in range(world())):
        time.sleep(POLL)


def turn(folder: Path) -> bool:
    """Wait until the session, through the first rank, lets the run begin; return False if it ended before that."""
    if leads():
        begins = bool(sys.stdin.readline())
        if world() > 1:
            _put(folder / TURN, "go" if begins else "")
        return begins
    while not (folder / TURN).exists():
        time.sleep(POLL)
    return bool((folder / TURN).read_text())


def leave(folder: Path, end: End) -> None:
    """Leave a message on how this rank ended, for the first one to read."""
    _hear_nothing_more()
    _put(_file(folder, rank(), "json"), json.dumps(asdict(end)))


def may_be_secondary(error: BaseException) -> bool:
    """Whether an error may only mean that another rank has ended."""
    text = str(error)
    return isinstance(error, Terminated) or type(error).__name__.startswith("Dist") or any(
        sign in text for sign in BETWEEN_RANKS
    )  # fmt: skip


def first_failure(folder: Path, error: BaseException) -> BaseException:
    """In the first rank: another rank's end if that is why this one broke off, else the error itself."""
    if world() == 1:
        return error
    _hear_nothing_more()
    if not leads() or not may_be_secondary(error):
        return error
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        ends = {other: _end_of(folder, other) for other in range(1, world())}
        failed = [end for end in ends.values() if end is not None and end.failure]
        if by_itself := [end for end in failed if not end.secondary]:
            return PeerFailed(by_itself[0])
        silent = [other for other, end in ends.items() if end is None]
        if not silent:  # no rank failed by itself: somebody ended the run, or the ranks lost each other
            stopped = [end for end in failed if end.failure == "interrupted"]
            return PeerFailed(stopped[0]) if stopped else error
        for other in silent:
            if _gone(folder, other) and _end_of(folder, other) is None:
                return RankLost(f"rank {other} of {world()} is gone and left no message")
        time.sleep(POLL)
    return error


def _hear_nothing_more() -> None:
    """Ignore further signals: the launcher ends the remaining ranks while they record why, and an exception from a
    handler in an interpreter that is shutting down would print a traceback."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def from_first_rank(value: str) -> str:
    """The first rank's value, on all ranks."""
    if world() == 1:
        return value
    from torch import distributed

    given: list[Any] = [value]
    distributed.broadcast_object_list(given, src=0)
    return str(given[0])


def _end_of(folder: Path, other: int) -> End | None:
    path = _file(folder, other, "json")
    if not path.exists():
        return None
    said = json.loads(path.read_text())
    return End(**{**said, "raised": Raised(**said["raised"]) if said["raised"] else None})


def _gone(folder: Path, other: int) -> bool:
    import psutil

    try:
        found = psutil.Process(int(_file(folder, other, "pid").read_text()))
        return bool(found.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _file(folder: Path, of: int, kind: str) -> Path:
    return folder / f"rank-{of}.{kind}"


def _put(path: Path, text: str) -> None:
    """Write a file, whole or not at all: others wait for it to appear."""
    draft = path.with_name(f"draft-{path.name}")
    draft.write_text(text)
    draft.replace(path)
