"""Did this run learn? A run that did not is no evidence about a change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from canary_mlflow.gates.model.paradigm import Paradigm, paradigm_of
from canary_mlflow.gates.model.records import WITHIN_NOISE
from canary_mlflow.tracking.describing.schema import REQUIRED

# Shares of the run that are compared, first with last. A loss falls fastest at the start, so the first window is short;
# a score rises late (docs/measured/ppo.md), and batches of answers differ more.
LOSS_WINDOWS = (0.10, 0.80)
SCORE_WINDOWS = (0.30, 0.30)
FEWEST = 4  # steps at either end
TRIM = 0.25  # share cut off at either end of a window: one batch of wrong labels outweighs ten others
LEAST = 0.01  # share by which a loss must fall
ALPHA = 0.05  # chance that noise alone looks like learning, in one run; a session has several

# What must get better, by how a run learns: the first of these series that it has. True: higher is better.
LOSS = (("loss", False),)
REWARD = (("score_mean", True), ("reward_mean", True))
IMPROVES = {Paradigm.SUPERVISED: LOSS, Paradigm.REINFORCEMENT: REWARD}
# Their loss compares the policy with its start: as long as the policy has not moved, every batch gives the same value.
# All noise comes with learning, so a fall cannot be chance, and noise is no argument against it.
STILL_UNTIL_MOVED = ("dpo", "kto", "bco")


def learned(rows: Sequence[Mapping[str, float]], algo: str, moved: bool | None) -> tuple[bool | None, str]:
    """Whether the run learned (None: too few values to tell), and one sentence why.

    `rows`: one mapping (canonical name → value) per optimizer step, in order. `moved`: whether any trainable
    parameter changed; None if that is unknown. The interquartile mean must improve from the first values to the last: a
    loss by 1 %, and everything by more than the noise between batches explains (Welch's test at 5 %), unless all noise
    comes from learning, or the held-out loss fell by 1 % too. If noise may have hidden it, the sentence says so.
    `tests/canary_mlflow/test_tracking_learning.py` has the error rates.
    """
    if moved is False:
        return False, "no trainable parameter changed"
    name, higher, values = _watched(rows, algo)
    if len(values) < 2 * FEWEST:
        # A long run without any is another matter; a few come from several steps on one batch of answers. A trainer
        # whose series we do not know may keep its rewards to itself, or have a judge instead.
        due = name == "loss" or algo.lower() in REQUIRED
        known = False if due and not values and len(rows) >= 2 * FEWEST else None
        return known, f"only {len(values)} values of {name}; expected at least {2 * FEWEST}"
    first, last = (max(FEWEST, round(share * len(values))) for share in (SCORE_WINDOWS if higher else LOSS_WINDOWS))
    start, end = values[:first], values[max(first, len(values) - last) :]
    before, after = _middle(start), _middle(end)
    if not math.isfinite(sum(start)) or not math.isfinite(sum(end)):
        return False, f"{name} is not finite at the {'end' if math.isfinite(sum(start)) else 'start'} of the run"
    gain, least = (after - before, 0.0) if higher else (before - after, LEAST * abs(before))
    verb = "did not improve" if gain <= 0 else f"improved by less than {LEAST:.0%}" if gain < least else "improved"
    if algo.lower() not in STILL_UNTIL_MOVED and _may_be_noise(start, end, higher, least):
        if told := "" if higher else _held_out(rows):
            return True, told
        verb = WITHIN_NOISE
    where = f"first {len(start)} to last {len(end)} of {len(values)} values"
    doubt = "" if moved else "; whether parameters changed is unknown"
    return verb == "improved", f"{name} {verb} from {before:.4g} to {after:.4g} ({where}){doubt}"


def _watched(rows: Sequence[Mapping[str, float]], algo: str) -> tuple[str, bool, list[float]]:
    candidates = IMPROVES[paradigm_of(algo, {name for row in rows for name in row})]
    for name, higher in candidates:
        values = [row[name] for row in rows if name in row]
        if values:
            return name, higher, values
    return candidates[0][0], candidates[0][1], []


def _held_out(rows: Sequence[Mapping[str, float]]) -> str:
    """How far the held-out loss fell over the run's evaluations; '' if it did not. Each asks the same rows, so what
    differs between batches is not in it."""
    values = [row["eval_loss"] for row in rows if "eval_loss" in row]
    if len(values) < 2 or not values[0] - values[-1] >= LEAST * abs(values[0]) > 0:
        return ""
    return f"eval_loss improved from {values[0]:.4g} to {values[-1]:.4g} ({len(values)} evaluations)"


def _middle(values: Sequence[float]) -> float:
    """The mean of what is left when TRIM is cut off either end."""
    cut = int(TRIM * len(values))
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)


def _may_be_noise(start: Sequence[float], end: Sequence[float], higher: bool, least: float) -> bool:
    """Whether noise between batches may have made this gain where there was none, and may have hidden the `least` that
    counts: Welch's one-sided tests. Not by scipy.stats, which a run would load for this alone, for half a second."""
    from scipy.special import stdtr

    if len({*start}) == len({*end}) == 1:
        return False  # no noise at all
    (before, noise), (after, own) = _mean_and_error(start), _mean_and_error(end)
    df = (noise + own) ** 2 / (noise**2 / (len(start) - 1) + own**2 / (len(end) - 1))
    gain, error = after - before if higher else before - after, math.sqrt(noise + own)
    return bool(min(stdtr(df, -gain / error), stdtr(df, (gain - least) / error)) > ALPHA)


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its squared standard error."""
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)
