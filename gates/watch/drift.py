"""A stream that drifts away from its forecast: a Huberised EWMA, with a CUSUM of the misses."""

from __future__ import annotations

import math
from collections import deque

from gates.model.rules import Scale
from gates.model.wording import figure
from gates.watch.policy import DriftRules, Harm, RowRules, StreamRule
from gates.watch.warning import Detection, Detector, Level

_MEAN_TO_SD = 1.2533  # of a normal: standard deviation over mean absolute deviation
_CUT_TO_SD = 1.37  # the same where deviations are cut at three standard deviations and follow a trend
_SLOPE = 0.02  # largest trend of the forecast, per row
_BEYOND = 4  # standard deviations from which on a level counts as far away
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
        slope = self._slope + self._slope_gain * pull
        self._slope = -_SLOPE if slope < -_SLOPE else _SLOPE if slope > _SLOPE else slope
        size = miss if miss >= 0 else -miss
        sd = (1 - self._gain) * sd + self._gain * _CUT_TO_SD * (size if size < 3 * sd else 3 * sd)
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
        spread = _MEAN_TO_SD * sum(abs(value - self._centre) for value in kept) / len(kept)
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
        if level <= self._known or change <= self._far or change <= _BEYOND * self._sd:
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
