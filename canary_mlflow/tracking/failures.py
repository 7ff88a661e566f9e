"""How a run broke off: an exception as one of the words that the gate knows, and one sentence."""

from __future__ import annotations

import signal
from types import FrameType

from canary_mlflow.errors import one_line

UNSTABLE = ("instability", "oom", "timeout")
"""Ends that say something about the code that ran, and not about the place."""

# Raised by sampling from logits that hold NaN or Inf (torch.multinomial).
POISONED = "probability tensor contains"


def classify(error: BaseException | None, nonfinite_steps: int = 0) -> tuple[str, str]:
    """(failure, sentence). failure: instability | oom | timeout | interrupted | error.

    A crash after non-finite values were seen is called instability: the numbers broke before the program did.
    """
    if error is None:
        return "error", "training ended before its last step, and why is not known"
    name = type(error).__name__
    sentence = f"{name}: {one_line(error)}" if str(error) else name
    if name == "OutOfMemoryError" or isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return "oom", sentence
    if isinstance(error, TimeoutError):
        return "timeout", sentence
    if not isinstance(error, Exception):  # KeyboardInterrupt, SystemExit, and what signal handlers raise
        return "interrupted", sentence
    if name == "InstabilityError" or isinstance(error, FloatingPointError) or POISONED in str(error):
        return "instability", sentence
    return ("instability" if nonfinite_steps else "error"), sentence


class Terminated(SystemExit):
    """SIGTERM arrived; unwinds like SystemExit, so that a run can still say how it ended."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.signum).name}"


def terminate(signum: int, frame: FrameType | None) -> None:
    """A signal handler: unwind. A second signal must not cut the recording of the first short."""
    signal.signal(signum, signal.SIG_IGN)
    raise Terminated(signum)
