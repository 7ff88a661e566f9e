"""How far each layer of the weights moved, on both sides: shown, and judged by nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from canary_mlflow.gates.measured import by_layer
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.wording import many

STANDS_OUT = 2.0  # times what the layers moved in the median


@dataclass(frozen=True, kw_only=True)
class LayerMoved:
    """‖end - start‖ / ‖start‖ of a layer, the median over a side's runs; None where it is not recorded. `times`: the
    candidate's over the baseline's, None without two that moved."""

    layer: str
    baseline: float | None
    candidate: float | None
    times: float | None


def moved(baseline: Sequence[Run], candidate: Sequence[Run]) -> list[LayerMoved]:
    """Every layer of either side, by name and number."""
    before, now = by_layer(baseline), by_layer(candidate)
    found = []
    for layer in sorted({*before, *now}, key=lambda name: [part.zfill(6) for part in re.split(r"(\d+)", name)]):
        here, there = (median(side[layer]) if layer in side else None for side in (before, now))
        times = there / here if here and there else None
        found.append(LayerMoved(layer=layer, baseline=here, candidate=there, times=times))
    return found


def sentence(one: LayerMoved) -> str:
    """`model.layers.3 1.2 % → 4.8 % (4 times)`."""
    if one.baseline is None:
        return f"{one.layer} {share(one.candidate)}"
    times = "" if one.times is None or one.baseline == one.candidate else f" ({many(one.times)})"
    return f"{one.layer} {share(one.baseline)} → {share(one.candidate)}{times}"


def share(value: float | None) -> str:
    """`1.23 %`."""
    return "not recorded" if value is None else f"{100 * value:.3g} %"


def standing_out(found: Sequence[LayerMoved]) -> list[LayerMoved]:
    """The layers that moved on one side alone, or much further or less far than the others explain; those furthest from
    them first."""
    known = [one for one in found if one.baseline is not None and one.candidate is not None]
    times = [one.times for one in known if one.times]
    usual = median(times) if times else 1.0

    def apart(one: LayerMoved) -> float:
        if one.times:
            return abs(math.log(one.times / usual))
        return 0.0 if one.baseline == one.candidate else math.inf

    return sorted((one for one in known if apart(one) >= math.log(STANDS_OUT)), key=apart, reverse=True)


def summary(found: Sequence[LayerMoved]) -> str:
    """`5 layers moved 0.8 % to 3.1 %, the baseline's 0.9 % to 3 %`; '' if the candidate recorded nothing."""
    now = [one.candidate for one in found if one.candidate is not None]
    before = [one.baseline for one in found if one.baseline is not None]
    if not now:
        return ""
    theirs = f", the baseline's {share(min(before))} to {share(max(before))}" if before else ""
    return f"{len(now)} layers moved {share(min(now))} to {share(max(now))}{theirs}"
