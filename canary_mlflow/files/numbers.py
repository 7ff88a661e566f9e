"""Numbers as programs print them: one grammar for all readers, so that NaN is a value everywhere, and never part of a
name or a reason to pass over a line. And speed and memory in other units than ours, known by the unit: `It/sec`,
`train_speed(iter/s)`, `tps`, `s/it`, `dt: 27ms`, `memory: 78.0GiB`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from canary_mlflow.gates.model.records import Values

_THOUSANDS = r"[1-9]\d{0,2}(?:,\d{3})+(?![\d,])"
BEGINS = rf"[-+]?(?:{_THOUSANDS}|\d|\.\d|nan\b|inf(?:inity)?\b)"
"""How a number begins, in a pattern that ignores case."""
_GROUPED = re.compile(rf"[-+]?{_THOUSANDS}(?:\.\d*)?")
# `nan(ind)`, `-1.#IND00`, `1.#QNAN`, `1.#INF`: as Microsoft's C prints them; `nan.0`: as Lightning's bar does.
_ODD = re.compile(r"([-+]?)(?:1\.?#)?(?:(inf)|[qs]?nan|ind)(?:\d*|\(\w*\)?|\.0)", re.IGNORECASE)
_BARE = re.compile(r"(?<=[:\[,\s])\+?(-?)(?:(nan)|inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)


def number(text: str) -> float:
    """The number that a text says. Raises ValueError if it says none."""
    with suppress(ValueError):
        return float(text)  # also nan, inf, Infinity, in any case
    if (found := _ODD.fullmatch(text.strip())) and text.strip().lower() != "ind":
        return float(f"{found[1]}inf") if found[2] else math.nan
    return float(text.replace(",", "") if _GROUPED.fullmatch(text.strip()) else text)


def number_or_none(text: str) -> float | None:
    """The same, None for a text that says none."""
    with suppress(ValueError):
        return number(text)
    return None


def json_value(text: str) -> Any:
    """The value of a JSON text, in which nan and inf may stand bare in any case. Raises ValueError, RecursionError."""
    with suppress(ValueError):
        return json.loads(text)
    return json.loads(_BARE.sub(lambda found: "NaN" if found[2] else f"{found[1]}Infinity", text))


_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
_RATES = {
    **dict.fromkeys(("tok", "token"), "tokens_per_second"),
    **dict.fromkeys(("sample", "example", "seq", "sequence", "image", "img"), "samples_per_second"),
}
_TIME, _STEP, _WORK = "|".join(_SECONDS), "it|iter|iteration|step|update|batche?", "|".join(_RATES)
UNIT = rf"(?:(?:{_STEP}|{_WORK})s?/(?:{_TIME})|(?:{_TIME})/(?:{_STEP}))\b"
"""The unit of a speed, in a pattern that ignores case."""
OF_VALUES = r"ms|s|[gm]i?b"
"""Those of a time and of memory that stand behind a number, likewise."""
_MEASURED = re.compile(rf"(.*?\d) ?({UNIT}|(?:{OF_VALUES})\b)(?:\(.*)?", re.DOTALL | re.IGNORECASE)
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
ELAPSED = ("time_s", "sec", "secs", "seconds")
"""`time: 20.3s` and a bare `sec`: a step's, or the whole training's so far."""
_TIMES: Mapping[str, tuple[str, float]] = {  # a column's name → (ours, its units in one of ours)
    "step_time_ms": ("step_time", 1000),
    "step_ms": ("step_time", 1000),
    # Printed as `dt: 27.4ms` (build-nanogpt), `time 31.20ms` (nanoGPT), `iter time: 384.79 ms` (litgpt) and
    # `elapsed time per iteration (ms): 384.8` (Megatron).
    **dict.fromkeys(("dt_ms", "time_ms", "iter time_ms", "time per iteration_ms"), ("step_time", 1000)),
    **dict.fromkeys(("dt_s", "iter time_s", "batch time_s", "time per iteration_s", *ELAPSED), ("step_time", 1)),
}
# torchtune's, which are GiB; the others say their unit. PyTorch's tutorials print GiB as GB.
_IN_GIB = {"peak_memory_alloc": "peak_memory", "peak_memory_reserved": "reserved_memory"}
_PER_MIB = {"gib": 1 / 1024, "gb": 1 / 1024, "mib": 1.0, "mb": 1.0}
_HOST, _RESERVED, _MEMORY = {"host", "cpu", "ram"}, {"reserved"}, {"memory", "mem", "vram", "ram"}
_OF_MEMORY = {"peak", "max", "gpu", "cuda", "device", "allocated", "alloc", "used", "usage"}


class Unit(NamedTuple):
    """Another unit than ours: our metric, how many are one of ours, and whether it is a rate where ours is a time."""

    metric: str
    per: float
    rate: bool = False

    def ours(self, values: Values) -> Values:
        """The column's values, none of them 0, in our unit."""
        return self.per / values if self.rate else values / self.per


def measured(text: str) -> tuple[str, str]:
    """A value and the unit behind it, `78.0GiB(99%)`; the text and "" where there is none."""
    found = _MEASURED.fullmatch(text)
    return (found[1], found[2].lower()) if found else (text, "")


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


@cache
def other_unit(column: str) -> Unit | None:
    """What a column in another unit than ours tells; None for the others."""
    folded = column.strip().lower()
    if folded in _TIMES:
        return Unit(*_TIMES[folded])
    if folded in _IN_GIB:
        return Unit(_IN_GIB[folded], _PER_MIB["gib"])
    return _memory_of(folded) or speed_of(column)


def _memory_of(folded: str) -> Unit | None:
    """What `peak_memory_gb` or `memory/max_mem_allocated(gib)` tells. A word more makes it something else:
    `memory/max_active (GiB)`."""
    *words, unit = re.split(r"[\s_/()-]+", folded.rstrip(")"))
    if unit not in _PER_MIB or _MEMORY.isdisjoint(words) or not {*words} <= _OF_MEMORY | _MEMORY | _HOST | _RESERVED:
        return None
    host, reserved = not _HOST.isdisjoint(words), not _RESERVED.isdisjoint(words)
    return Unit("host_memory" if host else "reserved_memory" if reserved else "peak_memory", _PER_MIB[unit])
