"""How much of a file is read, and the errors for more."""

from __future__ import annotations

from pathlib import Path

from canary_mlflow.errors import UsageError

MAX_ROWS = 5_000_000
"""More rows than any run has optimizer steps; reading more would only fill the memory."""
MAX_BYTES = 4 << 30
"""Unpacked bytes of a history that is read row by row."""
MAX_WHOLE = 128 << 20
"""Bytes of a history that is one JSON value: parsed, it takes some ten times that."""
MAX_LINE = 4 << 20
"""Bytes: a row of 20,000 columns has half of that."""
MAX_LOG_LINE = 2000
"""Characters of a line that a training printed; a longer one is passed over."""
MAX_COLUMNS = 20_000
MAX_DOCUMENT = 1 << 20
"""Bytes of what is not a history: a policy, a configuration, a key, the JSON beside a history."""
MAX_VERDICT = 32 << 20
"""Bytes of a verdict.json, which names each run, and of the event that GitHub starts a job with."""
MAX_DEPTH = 50
MAX_NODES = 100_000
"""Values in a YAML text."""
MAX_EVENT = 64 << 20
"""Bytes of one of TensorBoard's events: a scalar has a hundred, a picture a few million."""
MAX_RESTARTS = 20
"""A run is resumed a few times; a file that goes back more often is not in the order of training."""
MOST_TWICE = 0.1
"""Of the steps: a row for each rank, split or micro-step is not a history of optimizer steps."""
SHOWN = 8  # columns named in an error


def too_many_rows(path: Path) -> UsageError:
    """The error for a file with more than MAX_ROWS rows."""
    return UsageError(
        f"{path}: more than {MAX_ROWS:,} rows; expected at most one row per optimizer step of one run; "
        "keep every tenth row, or split it into one file per run"
    )


def too_many_columns(path: Path) -> UsageError:
    """The error for a file with more than MAX_COLUMNS columns."""
    return UsageError(
        f"{path}: more than {MAX_COLUMNS:,} columns; expected one per metric; keep those of the training itself"
    )
