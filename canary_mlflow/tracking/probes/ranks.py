"""Brings together on the first rank what all ranks of a distributed training measured, without making a step wait."""

from __future__ import annotations

import math
from collections import deque
from datetime import timedelta

import torch
import torch.distributed as dist

from canary_mlflow.errors import one_line
from canary_mlflow.tracking.probes import Row
from gates.model.metrics import METRICS, metrics_with

SUMMED = tuple(metric.name for metric in METRICS.values() if metric.ranks == "sum")
STOP = "stop"  # whether a rank asks for the training to end
NAMES = (*metrics_with("ranks"), STOP)

DEAD = timedelta(minutes=5)  # after which a rank that does not answer counts as dead, which ends the exchange alone
PATIENCE = timedelta(seconds=30)  # for a row, which closes one whole step after it was sent


class Exchange:
    """One small all-gather per step, begun when the step ends and read one step later, on every rank.

    By then the gradients' own reduction has brought all ranks past the point of sending, so the answers are there when
    they are read. It uses gloo and a separate group: no GPU waits, and the order of the training's collectives does not
    change. After the first failure (a rank died) this process stops exchanging and reports it; nothing here waits
    longer than `PATIENCE` for a rank that is gone, and the training's own collectives report that it died.

    A request to stop is exchanged too. All ranks read the same answers before the end of the same step, so all of them
    see `stop_agreed` at the same step.
    """

    def __init__(self) -> None:
        self.trouble = ""
        self.stop_wanted = False
        self.stop_agreed = False
        self._left = False
        self._size = dist.get_world_size()
        self._writes = dist.get_rank() == 0
        self._group = dist.new_group(backend="gloo", timeout=DEAD)
        self._sent: deque[tuple[dist.Work, list[torch.Tensor], torch.Tensor]] = deque()

    def send(self, row: Row) -> None:
        """Send what this rank measured, without waiting for the other ranks."""
        if not self._writes:
            self.receive()  # the first rank reads when a row closes, which is just before it sends
        if self.trouble or self._left:
            return
        values = {**row, STOP: float(self.stop_wanted)}
        mine = torch.tensor([values.get(name, math.nan) for name in NAMES], dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in range(self._size)]
        try:
            self._sent.append((dist.all_gather(everyone, mine, group=self._group, async_op=True), everyone, mine))
        except RuntimeError as error:
            self._stop(error)

    def receive(self) -> Row:
        """What all ranks together measured; without what none of them did."""
        row: Row = {}
        while self._sent and not self.trouble:
            work, everyone, _ = self._sent.popleft()
            if self._left and not work.is_completed():
                break
            try:
                work.wait(PATIENCE)
            except RuntimeError as error:
                self._stop(error)
                break
            values = zip(NAMES, together(torch.stack(everyone)), strict=True)
            row |= {name: value for name, value in values if not math.isnan(value)}
        self.stop_agreed = self.stop_agreed or row.pop(STOP, 0.0) > 0
        return row

    def leave(self) -> None:
        """Send no more, and read only what is already there."""
        self._left = True

    def close(self) -> None:
        """Drop what is under way, without waiting: that would take long if a rank is gone."""
        self._sent.clear()

    def _stop(self, error: RuntimeError) -> None:
        self.trouble = f"from here on this rank's numbers alone: {one_line(error)}"
        self._sent.clear()


def together(values: torch.Tensor) -> list[float]:
    """Reduce [ranks, NAMES] to [NAMES]: the largest or the sum of the ranks' values; NaN if no rank has one."""
    absent = values.isnan()
    largest = values.masked_fill(absent, -math.inf).amax(0)
    summed = values.masked_fill(absent, 0.0).sum(0)
    is_summed = torch.tensor([name in SUMMED for name in NAMES])
    return [float(value) for value in torch.where(absent.all(0), math.nan, torch.where(is_summed, summed, largest))]
