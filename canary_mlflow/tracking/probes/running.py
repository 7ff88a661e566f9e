"""The running probes of one run: passes events to those that listen, and combines what several ranks measured."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Set
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import random

from canary_mlflow.errors import BlindProbe, one_line
from canary_mlflow.gates.model.metrics import METRICS, metrics_with
from canary_mlflow.tracking.probes import WITHOUT_MODEL, Probe, Row, Setting

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


EVENTS = (
    "step_began",
    "micro_step_ended",
    "before_optimizer",
    "after_optimizer",
    "step_ended",
    "logged",
    "paused",
    "iteration_began",
    "iteration_ended",
    "row_closed",
    "ended",
    "stop",
)


class RunningProbes:
    """Passes events on to probes. One that raises is switched off and named in `troubles`; training goes on.

    With several ranks, what was measured here in a step or an iteration is combined with the other ranks' numbers
    before the row closes.
    """

    def __init__(self, probes: Mapping[str, Probe]) -> None:
        self.named = dict(probes)
        self.troubles: dict[str, str] = {}
        self.lost_sight = ""  # the essential probe that broke, and why
        self._exchange: Exchange | None = None
        self._hooks: list[Any] = []
        self._trainer_reports_optimizer = False
        self._first_rows = 2  # what was logged before training may be one
        self._idle: Set[str] = frozenset()  # probes that wait for the model
        self._listeners: dict[str, list[tuple[str, Callable[..., None]]]] = {}
        self._listen()

    def start(self, setting: Setting) -> None:
        """Training begins, or is known better than before. Raises BlindProbe if a probe does not see what it
        should."""
        if setting.ranks > 1:
            self._exchange = Exchange()
        self._idle = set() if setting.model is not None else self.named.keys() - {*WITHOUT_MODEL}
        with random.fork_rng(devices=[]):  # a test may draw weights; training's own draws must not change
            active = [(name, probe) for name, probe in self.named.items() if name not in self._idle]
            for name, probe in active:
                self._act(name, "start", lambda probe=probe: probe.start(setting))  # type: ignore[misc]
            for name, probe in active:
                if name in self.named:  # still
                    self._see(name, probe)
        if self.lost_sight:
            raise BlindProbe(f"{self.lost_sight}; expected it to start; a run without it would be no evidence")
        self._listen()
        self._hook_optimizer(setting.optimizer)
        self.emit("paused")  # the time for starting is not part of the first step

    def _see(self, name: str, probe: Probe) -> None:
        try:
            unseen = probe.blind()
        except Exception as error:  # noqa: BLE001 - a proof that breaks proves nothing; raised below
            unseen = f"its test broke: {type(error).__name__}: {one_line(error)}"
        if unseen:
            raise BlindProbe(
                f"probe {name} is blind: {unseen}; expected it to see the NaN and the Inf it was shown; "
                "a run that it watches would be no evidence"
            )

    def before_optimizer(self) -> None:
        """The trainer says that the optimizer is about to move."""
        if not self._trainer_reports_optimizer:
            self._trainer_reports_optimizer = True
            self._unhook()
        self.emit("before_optimizer")

    def emit(self, event: str, *row: Row) -> None:
        """Let every probe that listens act; some events come with a step's row."""
        for name, act in self._listeners[event]:
            try:
                act(*row)
            except Exception as error:  # noqa: BLE001 - measuring must not stop what is measured
                self._broke(name, event, error)

    def step_ended(self, row: Row) -> None:
        """An optimizer step is over; what was measured is sent to the first rank."""
        self.emit("step_ended", row)
        if self._exchange is not None:
            self._exchange.send(row)

    def iteration_ended(self, row: Row) -> None:
        """The same for an epoch. The ranks have told of its last step, so they send no more than what came with it."""
        before = dict(row)
        self.emit("iteration_ended", row)
        if self._exchange is not None:
            self._exchange.send({name: value for name, value in row.items() if before.get(name) != value})

    def all_stop(self, *, wanted: bool) -> bool:
        """Whether training should stop now: with one rank at once, else when all ranks know that one of them asks for
        it.

        A rank that stopped alone would leave the others waiting for it forever.
        """
        if self._exchange is None:
            return wanted
        self._exchange.stop_wanted = wanted
        return self._exchange.stop_agreed

    def row_closed(self, row: Row) -> None:
        """Put what all ranks measured into the row, then let the probes derive and count."""
        if self._exchange is not None:
            row.update(self._exchange.receive())
        self.emit("row_closed", row)
        if self._first_rows:  # some probes only look at the first step
            self._first_rows -= 1
            self._listen()

    def leave_ranks(self) -> None:
        """Something broke: from now on, do not wait for other ranks."""
        if self._exchange is not None:
            self._exchange.leave()

    def stop(self) -> None:
        """No more events."""
        self._unhook()
        self.emit("stop")
        if self._exchange is not None:
            if self._exchange.trouble:
                self.troubles["ranks"] = self._exchange.trouble
            self._exchange.close()

    def tags(self) -> dict[str, str]:
        """The probes' tags on the whole run."""
        found: dict[str, str] = {}
        for name, probe in list(self.named.items()):
            self._act(name, "tags", lambda probe=probe: found.update(probe.tags()))  # type: ignore[misc]
            if probe.trouble():
                self.troubles[name] = probe.trouble()
        return found

    def evaluated(self, row: Row, last: Row) -> None:
        """An evaluation after the training is over. `last`: the last step's row, of all ranks."""
        for name, probe in list(self.named.items()):
            self._act(name, "evaluated", lambda probe=probe: probe.evaluated(row, last))  # type: ignore[misc]

    def _hook_optimizer(self, optimizer: Any) -> None:
        """Learn of optimizer steps from the optimizer itself, for TRL's PPOTrainer, which does not report them."""
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        if not hasattr(inner, "register_step_pre_hook"):
            return

        self._hooks = [
            inner.register_step_pre_hook(lambda *_: self.emit("before_optimizer")),
            inner.register_step_post_hook(lambda *_: self.emit("after_optimizer")),
        ]

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _act(self, name: str, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - measuring must not stop what is measured
            self._broke(name, what, error)

    def _broke(self, name: str, what: str, error: Exception) -> None:
        why = f"{what}: {type(error).__name__}: {one_line(error)}"
        self.troubles[f"probe {name}"] = why
        probe = self.named.pop(name)
        if probe.essential:
            self.lost_sight = self.lost_sight or f"probe {name} broke: {why}"
        self._listen()

    def _listen(self) -> None:
        """Subscribe only probes to which an event means something: to most it does not, and each call costs time in a
        step."""
        active = [(name, probe) for name, probe in self.named.items() if name not in self._idle]
        self._listeners = {
            event: [(name, getattr(probe, event)) for name, probe in active if probe.listens(event)] for event in EVENTS
        }
