"""What stops a training run: a wrong set-up, or numbers that are no longer numbers.

UsageError (canary_mlflow.errors)
└── SetupError           what was asked for cannot be trained; exit code 2
RuntimeError
├── InstabilityError     a value that must be finite is not
└── Stopped              the watch saw that the run is lost
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress

from canary_mlflow.edge import OUTSIDE, as_one_line, unwinding
from canary_mlflow.errors import CanaryError, UsageError, one_line
from canary_mlflow.shown import say
from canary_mlflow.tracking.signals import Terminated


class SetupError(UsageError):
    """What was asked for cannot be trained: wrong sizes, a missing file, an unfit model."""


class InstabilityError(RuntimeError):
    """A value that must be finite is NaN or infinite; `step` is the optimizer step at which it was seen."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(
            f"step {step}: {what}; expected finite numbers; "
            "lower the learning rate, or look at the series before this step"
        )
        self.step = step
        self.what = what


class Stopped(RuntimeError):
    """The watch ended the training, as its policy told it to (`watch.on_critical=stop`)."""


def first_line(error: BaseException) -> str:
    """The first line of a library's error, without the advice that follows, and the second if the first ends with a
    colon; the error's type if it has no message."""
    first, *rest = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {rest[0].strip() if first.endswith(':') and rest else ''}".strip()[:200]


def ended(work: Callable[[], int]) -> int:
    """Do the work and return its exit code, or that of the error with which it ended."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        with unwinding():
            return work()
    except CanaryError as error:
        say(str(error))
        return error.exit_code
    except (HydraException, OmegaConfBaseException) as error:
        say(one_line(error))
        return UsageError.exit_code
    except Exception as error:  # noqa: BLE001 - Python's own exit code 1 would read as BLOCK
        line = as_one_line(error)
        if line is None:  # a bug of ours
            traceback.print_exc()
            return CanaryError.exit_code
        line.show()
        return int(line.exit_code)
    except (KeyboardInterrupt, Terminated) as error:
        how = str(error) or "interrupted"
        with suppress(OSError):  # the terminal may be what went away
            say(f"{how}; runs that had not ended are recorded as FAILED")
        return OUTSIDE
