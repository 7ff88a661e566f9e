"""Series as CSV: every recorded row, without thinning."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

import numpy as np

from canary_mlflow.pages.curves import read_series
from canary_mlflow.tracking.stores.read_only import reading

STARTS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def lines_of(tracking: str, runs: Sequence[tuple[str, str]], names: Sequence[str]) -> Iterator[str]:
    """A header line, then one line for each step of each run (id, name). Only one run at a time is in memory."""
    yield line(["run", "name", "step", *map(text, names)])
    for run_id, name in runs:
        with reading(tracking) as connection:
            series = read_series(connection, [run_id], names)[run_id]
        if not series:
            continue
        steps = np.unique(np.concatenate([one.steps for one in series.values()]))
        cells: list[list[str]] = []
        for wanted in names:
            column = [""] * len(steps)
            if wanted in series:
                at = np.searchsorted(steps, series[wanted].steps)
                for where, value in zip(at.tolist(), series[wanted].values.tolist(), strict=True):
                    column[where] = repr(value)
            cells.append(column)
        for step, *values in zip(steps.tolist(), *cells, strict=True):
            yield line([run_id, text(name), str(step), *values])


def text(word: str) -> str:
    """A name that no spreadsheet reads as a formula."""
    return f"'{word}" if word.startswith(STARTS_A_FORMULA) else word


def line(cells: Sequence[str]) -> str:
    """One CSV line, quoted where necessary."""
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerow(cells)
    return made.getvalue()
