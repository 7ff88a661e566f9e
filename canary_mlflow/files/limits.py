"""How much of a file is read, and the refusal of more."""

from __future__ import annotations

from pathlib import Path

from canary_mlflow.errors import UsageError

MAX_ROWS = 5_000_000
"""More rows than optimizer steps of any run that this watches; reading them would only fill the memory."""
MAX_RESTARTS = 20
"""A run is resumed a few times; a file that goes back more often is not in the order of training."""
MOST_TWICE = 0.1
"""Of the steps: a row for each rank, split or micro-step is no history of optimizer steps."""
SHOWN = 8  # columns named in an error


def too_many_rows(path: Path) -> UsageError:
    """The refusal of a file beyond MAX_ROWS."""
    return UsageError(
        f"{path}: more than {MAX_ROWS:,} rows; expected at most one row per optimizer step of one run; "
        "keep every tenth row, or split it into one file per run"
    )
