"""A training history that was read from a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from canary_mlflow.gates.model.records import Series

TELLING = ("loss", "reward_mean", "score_mean")
"""What must not end before the run does."""
_ROWS = 10  # of such an end, at most


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """What one file holds about one run.

    `series` by canonical name (`trl/<key>` for what has none): NaN and infinities kept, absent values absent.
    `notes`: one sentence for each oddity that could be fixed. `max_steps`: how many optimizer steps the run was
    meant to have; None where the file does not say. `algo`: the algorithm, "" where the file does not say. `goes_on`:
    it is the rest of a training, whose beginning it does not show. `last_row`: the step of the file's last row, which
    may hold no number.
    """

    path: Path
    kind: str
    series: Mapping[str, Series]
    notes: tuple[str, ...] = ()
    max_steps: int | None = None
    algo: str = ""
    goes_on: bool = False
    last_row: int = -1

    @property
    def last_step(self) -> int:
        """The last step of which the file has a row."""
        return max(self.last_row, *(int(series.steps[-1]) for series in self.series.values()))

    @property
    def completed(self) -> bool:
        """False for the beginning of a run, such as a checkpoint's: its last row is a spacing or more early."""
        longest = max(self.series.values(), key=lambda series: len(series.steps)).steps
        spacing = int(longest[-1] - longest[-2]) if len(longest) > 1 else 1
        return self.max_steps is None or self.last_step + spacing > self.max_steps

    @property
    def gaps(self) -> tuple[str, ...]:
        """One sentence for a loss or a reward that ends long before the rows do: from there on nobody has seen it."""
        return tuple(
            f"no {name} after step {ends}, of {self.last_step}: what came then is not known"
            for name, ends in self._quiet()
        )

    def _quiet(self) -> Iterator[tuple[str, int]]:
        for series in (self.series[name] for name in TELLING if name in self.series):
            if (seen := len(series.steps)) > 1:
                ends, spacing = int(series.steps[-1]), int(np.median(np.diff(series.steps)))
                if self.last_step - ends > max(min(_ROWS, max(2, seen // 4)) * spacing, 1):
                    yield series.name, ends

    def rows(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Each logged step in order, with the values that were logged there."""
        columns = [(name, series.steps.tolist(), series.values.tolist()) for name, series in self.series.items()]
        names, steps = list(self.series), columns[0][1]
        if all(other == steps for _, other, _ in columns):
            for step, *found in zip(steps, *(values for _, _, values in columns), strict=True):
                yield step, dict(zip(names, found, strict=True))
            return
        yield from self._sparse_rows(columns)

    @staticmethod
    def _sparse_rows(columns: list[tuple[str, list[int], list[float]]]) -> Iterator[tuple[int, dict[str, float]]]:
        ends = [len(steps) for _, steps, _ in columns]
        at = [0] * len(columns)
        waiting = list(range(len(columns)))
        while waiting:
            step = min(columns[index][1][at[index]] for index in waiting)
            row = {}
            ended = False
            for index in waiting:
                name, steps, values = columns[index]
                place = at[index]
                if steps[place] == step:
                    row[name] = values[place]
                    at[index] = place + 1
                    ended = ended or place + 1 == ends[index]
            yield step, row
            if ended:
                waiting = [index for index in waiting if at[index] < ends[index]]
