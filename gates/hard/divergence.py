"""Whether a run diverged: by its loss, or in reinforcement learning by its KL and its entropy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gates.model.paradigm import Paradigm, paradigm_of
from gates.model.policy import HardChecks
from gates.model.records import Run
from gates.model.summaries import Values, iqm
from gates.model.wording import figure

MIN_POINTS = 20
"""Fewer points say nothing about divergence: a tenth of them would be a single one."""

LOSS_RATIO = 1.5
"""A last tenth this many times the first has diverged."""

RISE_SIGMAS = 3.0
"""A last tenth above the first by fewer standard deviations of their difference may be luck. How often, without this
and with it: test_a_loss_that_wobbles_by_half_seldom_counts_as_diverged."""

REBOUND = 2.0
"""A later tenth this many times the lowest before it is a blow-up, if it lost half of what had been gained."""

SIGMAS = 5.0
"""And it stands so many standard deviations out of the run's own noise."""

APPROX_KL_LIMIT = 0.5
"""Per token of one update, as the worst median of five iterations."""

ENTROPY_FLOOR = 0.02
"""Share of its entropy that a policy must keep."""

END_POINTS = 3
"""So many last values, each far too high, are no chance."""

Test = Callable[[Values], str]
"""What went wrong with a series; '' for nothing."""


def divergence(hard: HardChecks, run: Run) -> str | None:
    """What went wrong, in one clause; '' if nothing did, None if the run has no series that could tell."""
    rewarded = paradigm_of(run.workload.get("algo", ""), run.series.keys()) is Paradigm.REINFORCEMENT
    judged = False
    for name, test in _of_rewards(hard, run) if rewarded else [("loss", _loss_diverged)]:
        values = run.series[name].finite_only().values if name in run.series else np.array([])
        if len(values) >= MIN_POINTS:
            judged = True
            if problem := test(values):
                return problem
    return "" if judged else None


def _of_rewards(hard: HardChecks, run: Run) -> Iterator[tuple[str, Test]]:
    yield "kl", lambda values: _exploded(values, hard.kl_limit, "KL", " per response")
    yield "approx_kl", lambda values: _exploded(values, APPROX_KL_LIMIT, "approximate KL of an update")
    yield "entropy", _entropy_collapsed


def _loss_diverged(loss: Values) -> str:
    if np.min(loss) > 0:
        return _positive_loss_diverged(loss)
    tenth = len(loss) // 10
    early, late = float(iqm(loss[:tenth])), float(iqm(loss[-tenth:]))
    first_half = loss[: len(loss) // 2]
    spread = 1.4826 * float(np.median(np.abs(first_half - np.median(first_half))))
    # A constant first half has no spread; rounding is not divergence.
    if late - early <= max(SIGMAS * spread, 1e-6 * float(np.max(np.abs(loss)))):
        return ""
    return f"loss rose from {figure(early)} to {figure(late)}, over {SIGMAS:g} robust SDs"


def _positive_loss_diverged(loss: Values) -> str:
    """Whether the end is far above the beginning, or a blow-up gave back half of what had been learned.

    A rise counts only if it also far exceeds the noise between two tenths of this run: the loss of small batches
    doubles and halves all the time.
    """
    tenths = np.array_split(loss, 10)
    early, late = float(iqm(tenths[0])), float(iqm(tenths[-1]))
    rise = late / early
    # In logarithms, as a loss wobbles in proportion to itself. From the beginning, as a diverged loss is wild later.
    wobble = _noise(np.log(loss[: max(10, len(loss) // 10)]), len(loss) // 10)
    # The ratio squared is enough without that: a learning rate far too high makes the beginning wild as well.
    if rise > LOSS_RATIO and (rise > LOSS_RATIO**2 or np.log(rise) > RISE_SIGMAS * wobble):
        return f"loss rose from {figure(early)} to {figure(late)}, over {LOSS_RATIO:g} times"
    return _rebound(loss)


def _rebound(loss: Values) -> str:
    """A blow-up that gave back half of what had been learned."""
    levels, width = _levels(loss)
    noise = SIGMAS * _noise(loss, width)
    early = lowest = levels[0]
    for level in levels[1:]:
        lowest = min(lowest, level)
        rise = level - lowest
        if level > REBOUND * lowest and rise > max(0.5 * (early - lowest), noise):
            fell = f"fell from {figure(early)} to {figure(lowest)} and " if lowest < early else ""
            return f"loss {fell}blew up to {figure(level)} from {figure(lowest)}"
    return _last_rise(loss, levels[-1])


def _last_rise(loss: Values, level: float) -> str:
    """A blow-up in the last steps, to which the median of a tenth is blind: each of them is as far above the level
    before as a rebound must be, and further than single steps wobble."""
    count = max(END_POINTS, len(loss) // 33)
    before, end = loss[:-count], float(np.min(loss[-count:]))
    usual = min(level, float(np.median(before[-3 * count :])))
    far = end > REBOUND * usual and end - usual > SIGMAS * _noise(before, 1)
    return f"loss blew up in its last {count} values, to {figure(end)} and more from {figure(usual)}" if far else ""


def _levels(values: Values) -> tuple[list[float], int]:
    """The levels of at most ten windows of at least ten steps, and the number of steps in the last. With small batches,
    the level of fewer steps is luck."""
    windows = np.array_split(values, min(10, len(values) // 10))
    return [float(iqm(part)) for part in windows], len(windows[-1])


def _noise(loss: Values, window: int) -> float:
    """Standard deviation of the difference of two windows' means, from neighbouring steps, as a trend is not noise."""
    with np.errstate(over="ignore"):  # beyond floats it is infinite, and nothing rises above it
        return float(np.std(np.diff(loss)) / np.sqrt(window))


def _exploded(values: Values, limit: float, what: str, unit: str = "") -> str:
    worst = _worst_window(values)
    return f"{what} reached {figure(worst)}, over {limit:g}{unit}" if worst > limit else ""


def _entropy_collapsed(entropy: Values) -> str:
    tenth = len(entropy) // 10
    early, late = float(iqm(entropy[:tenth])), float(iqm(entropy[-tenth:]))
    bad = early > 0 and late < ENTROPY_FLOOR * early
    return f"entropy fell from {figure(early)} to {figure(late)}" if bad else ""


def _worst_window(values: Values, width: int = 5) -> float:
    """Largest median of five values in a row, after the first tenth: Adam's first PPO steps are wild in
    every run.

    The worst window, not the end: a policy that has collapsed looks calm again.
    """
    settled = values[len(values) // 10 :]
    windows = np.lib.stride_tricks.sliding_window_view(settled, width)
    return float(np.max(np.median(windows, axis=1)))
