"""What drifts: a signal away from its forecast, memory that a run takes ever more of, steps that take ever longer."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise
from statistics import fmean, median

from canary_mlflow.gates.model.metrics import METRICS
from canary_mlflow.gates.model.rules import Scale
from canary_mlflow.gates.model.wording import figure, quantity
from canary_mlflow.gates.watch.learning import MEAN_TO_SD
from canary_mlflow.gates.watch.policy import DriftRules, GrowthRules, Harm, RowRules, StreamRule
from canary_mlflow.gates.watch.warning import Detection, Detector, Level

_LOG_SD = 0.02  # a stream steadier than 2 % is watched as if it varied by that much


class Drift(Detector):
    """Watches one stream.

    The forecast `centre + slope` follows the stream with `half_life`. A miss counts in standard deviations, cut to
    [-4, 6], so that no single row raises an alarm; a row moves the forecast by at most two standard deviations, so that
    an alarm cannot drag its own reference along. The sum of misses beyond `allowance` is the alarm's height. An alarm
    also needs a change from the best level so far that matters in practice: a stream can be so steady that any change
    is significant. A change as large as CRITICAL requires is a WARN, however slowly it came. A level that the run had
    before its best one, and came back from by itself, is no news.
    """

    rule = "drift"
    __slots__ = (
        "_above", "_best", "_burn", "_cap", "_centre", "_change", "_critical", "_far", "_floor", "_gain", "_height",
        "_high", "_known", "_least", "_limits", "_log", "_recent", "_sd", "_sd_start", "_sign", "_skip", "_slope",
        "_slope_gain", "_start", "stream",
    )  # fmt: skip

    def __init__(self, stream: StreamRule, rules: DriftRules, rows: RowRules, burn_in: int) -> None:
        self.stream = stream
        self._log = stream.scale is Scale.LOG
        self._sign = 1.0 if stream.worse is Harm.HIGHER else -1.0
        self._floor = stream.floor
        self._limits = (rules.warn, rules.critical)
        self._cap = 2 * rules.critical  # without it, a long trouble would still raise alarms long after its end
        self._change = _on_scale(stream.warn_change, self._log)
        self._critical = math.inf if stream.critical_change is None else _on_scale(stream.critical_change, self._log)
        self._far = self._critical if self._log else math.inf
        self._gain = 1 - 2 ** (-1 / rules.half_life)
        self._slope_gain = 0.5 * self._gain**2
        self._above = rules.allowance
        self._start = burn_in
        self._skip = min(rows.burn_in_skip, burn_in // 2)
        self._burn: list[float] = []
        self._recent: deque[float] = deque(maxlen=rows.window)
        self._high = self._known = -math.inf  # the worst level so far, and before the best one
        self._centre = self._slope = self._sd = self._sd_start = self._least = self._best = self._height = 0.0

    def update(self, step: int, value: float) -> Detection | None:
        if self._log:
            scaled = self._sign * math.log(value if value > self._floor else self._floor)
        else:
            scaled = self._sign * value
        self._recent.append(scaled)
        sd = self._sd
        if not sd:
            self._burn.append(scaled)
            if len(self._burn) == self._start:
                self._settle()
            return None
        miss = scaled - self._centre - self._slope
        z = miss / sd
        height = self._height + (-4.0 if z < -4.0 else 6.0 if z > 6.0 else z) - self._above
        cut = 2 * sd
        pull = -cut if miss < -cut else cut if miss > cut else miss
        self._centre += self._slope + self._gain * pull
        self._slope += self._slope_gain * pull
        size = miss if miss >= 0 else -miss
        sd = (1 - self._gain) * sd + self._gain * MEAN_TO_SD * (size if size < 3 * sd else 3 * sd)
        self._sd = sd if sd >= self._least else self._least
        if self._centre > self._high:
            self._high = self._centre
        if height <= 0:
            self._height = 0.0
            if self._centre < self._best:
                self._best, self._known = self._centre, self._high
        else:
            self._height = height if height < self._cap else self._cap
            if height > self._limits[0]:
                return self._alarm()
        # However slowly it came there: the forecast follows a trend, and a trend can lead anywhere.
        return self._far_away() if scaled - self._best > self._far else None

    def _settle(self) -> None:
        kept = sorted(self._burn[self._skip :])
        self._centre = self._best = kept[len(kept) // 2]
        spread = MEAN_TO_SD * sum(abs(value - self._centre) for value in kept) / len(kept)
        # Few values estimate the spread badly, and one that is too small raises false alarms.
        spread *= 1 + 3 / len(kept)
        self._sd_start = max(spread, 1e-9 * (1 + abs(self._centre)))
        self._least = _LOG_SD if self._log else 0.1 * self._sd_start
        self._sd = max(self._sd_start, self._least)
        self._burn.clear()

    def _alarm(self) -> Detection | None:
        level = sorted(self._recent)[len(self._recent) // 2]
        if level <= self._known:
            return None
        change = level - self._best
        if not self._log:
            change /= self._sd_start
        critical = self._height > self._limits[1] and change > self._critical
        if not critical and change <= self._change:
            return None
        return Detection(Level.CRITICAL if critical else Level.WARN, self._seen(level))

    def _far_away(self) -> Detection | None:
        level = sorted(self._recent)[len(self._recent) // 2]
        change = level - self._best
        if level <= self._known or change <= self._far:
            return None
        return Detection(Level.WARN, self._seen(level))

    def _seen(self, level: float) -> str:
        now, before = self._sign * level, self._sign * self._best
        if self._log:
            now, before = math.exp(now), math.exp(before)
        verb = "rose" if self._sign > 0 else "fell"
        return f"{verb} from {figure(before)} to {figure(now)} (median of the last {len(self._recent)} rows)"


def _on_scale(change: float, log: bool) -> float:
    return math.log(change) if log else change


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
