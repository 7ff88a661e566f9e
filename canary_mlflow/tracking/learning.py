"""Did this run learn? A run that did not is no evidence about a change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

FIRST, LAST = 0.10, 0.30  # shares of the run that are compared
FEWEST = 3  # steps at either end

# What must get better, by algorithm: the first of these series that the run has. True: higher is better.
LOSS = (("loss", False),)
REWARD = (("score_mean", True), ("reward_mean", True))
IMPROVES: dict[str, tuple[tuple[str, bool], ...]] = {"ppo": REWARD, "grpo": REWARD, "rloo": REWARD}


def learned(rows: Sequence[Mapping[str, float]], algo: str, moved: bool | None) -> tuple[bool, str]:
    """Whether the run learned, and one sentence why.

    `rows`: one mapping (canonical name → value) per optimizer step, in order. `moved`: whether any trainable
    parameter changed; None when that is unknown. The mean of the first 10 % of the values is compared with the mean of
    the last 30 %: learning is fastest at the start, so that few values belong to it, and loss per step is noisy at the
    end, so that many are needed there (24 recorded DPO runs of 60 steps: 0.688 to 0.690, then 0.553 to 0.564). Any
    improvement counts; how much there must be is for the gate, which has a champion to compare with.
    """
    if moved is False:
        return False, "no trainable parameter changed"
    name, higher, values = _watched(rows, algo)
    if len(values) < 2 * FEWEST:
        return False, f"only {len(values)} values of {name}; expected at least {2 * FEWEST}"
    start = values[: max(FEWEST, round(FIRST * len(values)))]
    end = values[-max(FEWEST, round(LAST * len(values))) :]
    before, after = _mean(start), _mean(end)
    if not math.isfinite(after) or not math.isfinite(before):
        return False, f"{name} is not finite at the {'end' if math.isfinite(before) else 'start'} of the run"
    better = after > before if higher else after < before
    verb = "improved" if better else "did not improve"
    where = f"first {len(start)} to last {len(end)} of {len(values)} values"
    doubt = "" if moved else "; whether parameters changed is unknown"
    return better, f"{name} {verb} from {before:.4g} to {after:.4g} ({where}){doubt}"


def _watched(rows: Sequence[Mapping[str, float]], algo: str) -> tuple[str, bool, list[float]]:
    candidates = IMPROVES.get(algo.lower(), LOSS)
    for name, higher in candidates:
        values = [row[name] for row in rows if name in row]
        if values:
            return name, higher, values
    return candidates[0][0], candidates[0][1], []


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
