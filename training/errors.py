"""What stops a training run: a wrong set-up, or numbers that are no longer numbers.

UsageError (canary_mlflow.errors)
└── SetupError           what was asked for cannot be trained; exit code 2
RuntimeError
├── InstabilityError     a value that must be finite is not
└── Stopped              the watch saw that the run is lost
"""

from __future__ import annotations

from canary_mlflow.errors import UsageError


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
