"""Ends a probe's command with the `canary upgrade` that started it, which may be killed: nothing goes on unseen, and an
upgrade that is taken up again does not run beside its own past."""

import ctypes
import os
import signal
import sys

STARTER = "CANARY_UPGRADE_PID"
PR_SET_PDEATHSIG = 1


def with_starter(pid: str) -> None:
    """Die with that process if it is this one's parent. Others, which the command starts, follow their own parents:
    Linux sends the signal when the *thread* ends that started a process."""
    if str(os.getppid()) != pid or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if str(os.getppid()) != pid:  # it ended in between
        os.kill(os.getpid(), signal.SIGKILL)
