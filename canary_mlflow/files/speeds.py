"""Speed as logs say it, known by its unit: `It/sec`, `train_speed(iter/s)`, `tps`, `SamplesPerSec`, `s/it`."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from gates.model.summaries import Values

_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
_RATES = {
    **dict.fromkeys(("tok", "token"), "tokens_per_second"),
    **dict.fromkeys(("sample", "example", "seq", "sequence", "image", "img"), "samples_per_second"),
}
_TIME, _STEP, _WORK = "|".join(_SECONDS), "it|iter|iteration|step|update|batche?", "|".join(_RATES)
UNIT = rf"(?:(?:{_STEP}|{_WORK})s?/(?:{_TIME})|(?:{_TIME})/(?:{_STEP}))\b"
"""The unit of a speed, in a pattern that ignores case."""
_PER, _EACH = r" ?(?:/|per) ?", r"(?: ?(?:/|per) ?(?:gpu|device|rank))?\)?"
_SPEED = re.compile(
    rf"(?P<before>.*[ (/]|)(?:(?:(?P<step>{_STEP})|(?P<work>{_WORK}))s?{_PER}(?P<time>{_TIME})s?{_EACH}"
    rf"|(?P<tps>tps){_EACH}|(?P<each>{_TIME})s?{_PER}(?:{_STEP})\)?)"
)
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
# What may stand before it: another word says that it is something else's, such as an evaluation's or a rollout's.
_OF_TRAINING = re.compile(
    r"(?:\W*\b(?:train|training|avg|average|mean|global|total|current|curr|running|speed|throughput|perf|time)\b)*\W*"
)


class Unit(NamedTuple):
    """Another unit than ours: our metric, how many are one of ours, and whether it is a rate where ours is a time."""

    metric: str
    per: float
    rate: bool = False

    def ours(self, values: Values) -> Values:
        """The column's values, none of them 0, in our unit."""
        return self.per / values if self.rate else values / self.per


@cache
def speed_of(column: str) -> Unit | None:
    """What a column tells of the training's speed; None if it tells nothing of that."""
    found = _SPEED.fullmatch(re.sub(r"[\s_-]+", " ", _CAPITAL.sub(" ", column)).strip().lower())
    if found is None or not _OF_TRAINING.fullmatch(found["before"]):
        return None
    if found["each"]:
        return Unit("step_time", 1 / _SECONDS[found["each"]])
    seconds = _SECONDS[found["time"] or "s"]
    return Unit("step_time", seconds, True) if found["step"] else Unit(_RATES[found["work"] or "token"], seconds)
