"""Memory that a run takes ever more of, and steps that take ever longer."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, median

from gates.model.metrics import METRICS
from gates.model.wording import quantity
from gates.watch.policy import GrowthRules
from gates.watch.warning import Detection, Detector, Level

_DEVICE = ("peak_memory", "reserved_memory", "allocated_memory", "gpu_memory")
KINDS = {**dict.fromkeys(_DEVICE, "device"), "host_memory": "host", "step_time": "time", "iteration_time": "time"}
WORK = ("tokens", "response_length", "tokens_response", "tokens_prompt")  # with more of it, both may grow
_PARTS, _THIRD = 12, 4  # of a run, whose medians are compared: stairs of up to five steps are flat between most of them
_AT_ONCE = 1.5  # times as much as by and by: batches grow in stages, to 2.3 times in public logs
_LOST = 5.0  # seconds that slower steps must have cost: neighbours on the machine slow steps of 2 ms for as long
_KEPT = 9 * _PARTS  # rows; of a longer run every second, fourth …


class Work(Detector):
    """Takes note for `Growth` how much there is to do in a row; finds nothing itself."""

    rule = "resource_growth"
    __slots__ = ("now", "said")

    def __init__(self) -> None:
        self.now = 1.0
        self.said: dict[str, str] = {}  # kind of resource → stream that told of it: most log a device's memory twice

    def update(self, step: int, value: float) -> Detection | None:
        self.now = value
        return None


class Growth(Detector):
    """A resource by the medians of twelve parts of the run so far; only growth beyond that of the work counts.

    It must grow in most parts, and in the last ones no slower: caches fill and stay, one long batch lifts a peak once.
    Steps may also become far slower at once, if they stay so for the last third. Seconds are no harm.
    """

    rule = "resource_growth"
    __slots__ = ("_every", "_finding", "_least", "_rows", "_rules", "_stream", "_values", "_work")

    def __init__(self, stream: str, rules: GrowthRules, least: int, work: Work) -> None:
        self._stream, self._rules, self._least, self._work = stream, rules, least, work
        self._values: list[tuple[float, float]] = []
        self._rows, self._every = 0, 1
        self._finding: Detection | None = None

    def update(self, step: int, value: float) -> Detection | None:
        self._rows += 1
        if self._rows % self._every:
            return self._finding
        self._values.append((value, self._work.now))
        if len(self._values) == _KEPT:
            del self._values[::2]
            self._every *= 2
        if self._rows >= self._least and len(self._values) % _PARTS == 0:
            self._finding = self._judge()
        return self._finding

    def finish(self, completed: bool) -> Detection | None:
        return self._finding or self._judge()

    def _judge(self) -> Detection | None:
        size, kind = len(self._values) // _PARTS, KINDS[self._stream]
        if not size or self._work.said.get(kind, self._stream) != self._stream:
            return None
        taken, work = (
            [median(values[at : at + size]) for at in range(len(values) % size, len(values), size)][-_PARTS:]
            for values in zip(*self._values, strict=True)
        )
        steps, now = [after - before for before, after in pairwise(taken)], taken[-1]
        begun = taken.index(sorted(taken[:-_THIRD])[1]) if kind == "time" else 0
        least = self._rules.time if kind == "time" else self._rules.memory
        if 2 * median(steps) < fmean(steps) or 3 * fmean(steps[-_THIRD:]) < 2 * fmean(steps):
            if kind != "time":
                return None
            now, least = median(taken[-_THIRD:]), _AT_ONCE * least
        if now < least * max(taken[begun], 1e-9) * max(1.0, work[-1] / (work[begun] or 1.0)):
            return None
        if kind == "time" and size * self._every * sum(value - taken[begun] for value in taken) < _LOST:
            return None
        self._work.said[kind] = self._stream
        before, after = (quantity(value, METRICS[self._stream].unit) for value in (taken[begun], now))
        return Detection(Level.WARN, f"rose from {before} to {after} over {self._rows} rows")
