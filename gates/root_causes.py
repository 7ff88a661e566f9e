"""What explains a verdict, judged by measurements alone: rules with ids, the ones that explain most first. They do not
look at names of faults or at recorded settings. Finding no cause is an answer too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
from numpy.typing import NDArray

from gates.model.records import Run, Series
from gates.model.verdict import RootCause

WARMUP = 5
"""First steps, which no level includes."""
TAIL = 0.3
"""The last share of a run, by which its end is judged."""


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The runs of both sides. A side's level is the median of its runs' levels."""

    baseline: Sequence[Run]
    candidate: Sequence[Run]

    def has(self, *names: str) -> bool:
        """Whether both sides have runs with each of these series."""
        return all(
            any(name in run.series for run in side) for name in names for side in (self.baseline, self.candidate)
        )

    def both(self, of: Callable[[Run], float]) -> tuple[float, float]:
        """The median of the runs' numbers: baseline, candidate; NaN without any."""
        return _median(map(of, self.baseline)), _median(map(of, self.candidate))

    def level(self, name: str) -> tuple[float, float]:
        """A series' median step after warm-up."""
        return self.both(lambda run: _steady(run, name))

    def tail(self, name: str) -> tuple[float, float]:
        """The mean of a series' last third."""
        return self.both(lambda run: _end(run, name))

    def spread(self, name: str) -> float:
        """The largest distance between the ends of the baseline's runs; NaN for fewer than two runs."""
        ends = [value for run in self.baseline if math.isfinite(value := _end(run, name))]
        return max(ends) - min(ends) if len(ends) > 1 else math.nan

    def apart(self, name: str, value_of: Callable[[Run, str], float] | None = None) -> bool:
        """Whether each run of the candidate is above all of the baseline's, by its steady value unless said."""
        one = value_of or _steady
        before, now = (
            [value for run in side if math.isfinite(value := one(run, name))]
            for side in (self.baseline, self.candidate)
        )
        return bool(before and now) and min(now) > max(before)

    def ratios(self, name: str) -> NDArray[np.float64]:
        """The candidate's values / the baseline's, step by step, as medians over runs; empty if no step compares."""
        before, now = _by_step(self.baseline, name), _by_step(self.candidate, name)
        shared = sorted(step for step in before.keys() & now.keys() if before[step] > 0)
        return np.array([now[step] / before[step] for step in shared])


def ratio(pair: tuple[float, float]) -> float:
    """Candidate / baseline; NaN if that tells nothing."""
    before, now = pair
    return now / before if math.isfinite(before) and math.isfinite(now) and before > 0 else math.nan


def _median(values: Iterable[float]) -> float:
    found = [value for value in values if math.isfinite(value)]
    return float(np.median(found)) if found else math.nan


def _finite(run: Run, name: str) -> NDArray[np.float64]:
    series: Series | None = run.series.get(name)
    return np.array([]) if series is None else series.finite_only().values


def _steady(run: Run, name: str) -> float:
    values = _finite(run, name)
    values = values[WARMUP:] if len(values) > 2 * WARMUP else values
    return float(np.median(values)) if len(values) else math.nan


def _highest(run: Run, name: str) -> float:
    return float(np.max(_finite(run, name), initial=-math.inf))  # without values: -inf, left out as not finite


def _end(run: Run, name: str) -> float:
    values = _finite(run, name)
    return float(np.mean(values[-max(1, round(TAIL * len(values))) :])) if len(values) else math.nan


def _by_step(runs: Sequence[Run], name: str) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for run in runs:
        if name in run.series:
            series = run.series[name].finite_only()
            for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
                found.setdefault(step, []).append(value)
    return {step: median(values) for step, values in found.items()}


def _updates(run: Run) -> float:
    """Optimizer steps per iteration; NaN for trainings that do not iterate."""
    steps, iterations = run.series.get("learning_rate"), run.series.get("iteration_time")
    if steps is None or iterations is None or len(iterations.steps) < 2:
        return math.nan
    return float(np.median(np.diff(iterations.steps)))


COSTLIER = 1.08  # times the baseline's cost: below, clocks differ by as much
HEAVIER = 1.05  # times its peak
LEAST_MIB = 8.0
CLEAR = 0.25  # share of the harm that a phase must explain to be named
SETS_IN = 1.12  # times the cost before, for a slowdown to have begun in mid-run
SURE = 0.95  # rank of a phase that explains all of a slowdown: below not_numbers and frozen
FACTOR = 1.25  # from which on a rate or a coefficient counts as changed
COLLAPSED = 0.7  # share of the baseline's entropy; no two unchanged sessions differ as much (root_cause.py --campaign)
RATES = (
    ("learning_rate", "learning rate", "rate.learning", 0.99),  # ahead of what it brings about: NaN, gradients of 0
    ("kl_coef", "KL coefficient", "rate.kl", 0.8),
)
PARTS = ("data_wait", "time_forward", "time_backward", "time_optimizer")
PARTS_OF_ITERATION = ("time_generate", "time_reward", "time_score", "time_update")
NAMES = {
    "data_wait": "waiting for data",
    "time_forward": "the forward pass",
    "time_backward": "the backward pass",
    "time_optimizer": "the optimizer",
    "time_generate": "generation",
    "time_reward": "the reward",
    "time_score": "scoring",
    "time_update": "the updates",
}


def slower(sides: Sides) -> Iterator[RootCause]:
    """Where a step's time went, phase by phase, in units of the fixed kernel where one was timed: a machine that is
    slower as a whole makes no phase longer."""
    whole, cost, parts = ("step_time", "step_cost", PARTS)
    if sides.has("iteration_time"):
        whole, cost, parts = ("iteration_time", "iteration_cost", PARTS_OF_ITERATION)
    judged = cost if sides.has(cost) else whole
    if not (ratio(sides.level(judged)) >= COSTLIER and sides.apart(judged)):
        return
    if late := sets_in(sides, "step_cost" if sides.has("step_cost") else "step_time"):
        step, times = late
        said = f"each step takes {_percent(times - 1)} longer from step {step} on"
        yield RootCause(rule="time.sets-in", said=said, rank=0.96)
    pace = ratio(sides.level("sentinel_time")) if sides.has("sentinel_time") else 1.0
    pace = pace if math.isfinite(pace) else 1.0
    before, now = sides.level(whole)
    more = now / pace - before
    if not more > 0.05 * before or not any(map(sides.has, parts)):
        return
    explained, what = 0.0, whole.removesuffix("_time")
    for part in parts:
        here, there = sides.level(part)
        if not (math.isfinite(here) and math.isfinite(there)):
            continue
        share = (there / pace - here) / more
        explained += max(0.0, share)
        if share >= CLEAR:
            said = f"{NAMES[part]} {_ms(here)} → {_ms(there)} explains {_percent(min(1.0, share))} of the slower {what}"
            yield _measured(f"time.{part}", said, share, SURE)
    if (left := 1.0 - explained) >= CLEAR:
        said = f"{_percent(left)} of the slower {what} is in no phase: Python, callbacks, garbage collection"
        yield _measured("time.between", said, left, SURE)


def sets_in(sides: Sides, name: str) -> tuple[int, float] | None:
    """The step from which every step takes longer, and how many times as long; None if it did so from the start."""
    ratios = sides.ratios(name)
    if len(ratios) < 30:
        return None
    around = np.lib.stride_tricks.sliding_window_view(np.pad(ratios, 2, constant_values=np.nan), 5)
    smooth = np.nanmedian(around, axis=1)
    edges = range(10, len(ratios) - 10)
    best = min(edges, key=lambda at: float(np.var(smooth[5:at]) * (at - 5) + np.var(smooth[at:]) * (len(smooth) - at)))
    early, late = float(np.median(smooth[5:best])), float(np.median(smooth[best:]))
    noise = float(np.median(np.abs(smooth[5:best] - early)) + np.median(np.abs(smooth[best:] - late)))
    return (best + 1, late / early) if late >= SETS_IN * early and late - early > 3 * noise else None


def heavier(sides: Sides) -> Iterator[RootCause]:
    """Memory that grows with each step, that was allocated at once in mid-run, or that is there from the first step."""
    if not sides.has("peak_memory"):
        return
    before, now = _peaks(sides.baseline), _peaks(sides.candidate)
    if min(len(before), len(now)) < 2:
        return
    excess = now[-1] - before[-1]
    # A script's runs in one process grow, each upon the last, so it is not enough that the middle ones differ.
    apart = sides.apart("peak_memory", _highest)
    if not (excess >= LEAST_MIB and now[-1] >= HEAVIER * before[-1] and apart):
        return
    rises = np.diff(now) - np.interp(
        np.linspace(0, 1, len(now) - 1), np.linspace(0, 1, len(before) - 1), np.diff(before)
    )
    offset = now[0] - before[0]
    at = int(np.argmax(rises))
    if rises[at] >= 0.6 * excess:
        share = min(1.0, float(rises[at]) / excess)
        said = f"{rises[at]:.0f} MiB more at once at step {at + 2} explain {_percent(share)} of the higher peak"
        yield _measured("memory.at-once", said, share)
    elif offset >= 0.6 * excess:
        said = f"{offset:.0f} MiB more from the first step on"
        yield _measured("memory.from-start", said, offset / excess)
    grown = excess - max(0.0, offset) - max(0.0, float(rises[at]))
    steps = int(np.sum(rises > 0.002 * excess))
    if grown >= 0.5 * excess and steps > len(rises) / 2:
        said = f"memory grows by {grown / len(rises):.1f} MiB a step and never falls"
        yield _measured("memory.grows", said, grown / excess)


def rates(sides: Sides) -> Iterator[RootCause]:
    """The learning rate, the KL coefficient and the number of passes, as the runs logged them."""
    updates = sides.both(_updates)
    more_passes = all(map(math.isfinite, updates)) and updates[0] != updates[1]
    for name, said, rule, rank in RATES:
        if not sides.has(name):
            continue
        before, now = sides.level(name)
        times = float(np.median(found)) if len(found := sides.ratios(name)) else math.nan
        if math.isfinite(before) and before > 0 and (not times > 0 or times >= FACTOR or times <= 1 / FACTOR):
            if name == "kl_coef" and times > 0 and 0.2 < times < 5:
                continue  # a controller moves it
            highest = sides.both(partial(_highest, name=name))
            top, what = ratio(highest), "is, at the median step,"
            if name == "learning_rate" and (not top > 0 or top >= FACTOR or top <= 1 / FACTOR):
                (before, now), times, what = highest, top, "peaks at"  # what its schedule was given
            elif name == "learning_rate" and more_passes:
                continue  # the same schedule over more steps
            factor = f" ({times:.3g} times)" if times > 0 else ""
            what = what if now else "stays at"
            yield RootCause(rule=rule, said=f"the {said} {what} {now:.3g}, not {before:.3g}{factor}", rank=rank)
    if more_passes:  # counted, not measured: ahead of the time that they take
        said = f"{updates[1]:g} optimizer steps for each rollout, not {updates[0]:g}"
        yield RootCause(rule="rate.passes", said=said, rank=0.96)


def not_numbers(sides: Sides) -> Iterator[RootCause]:
    """Which value was NaN or infinite first: a loss, or the gradient of a loss that was still finite."""
    for run in sides.candidate:
        first = {
            name: int(series.steps[int(np.argmin(series.finite))])
            for name, series in run.series.items()
            if name in ("loss", "grad_norm") and not series.finite.all()
        }
        if not first:
            continue
        step = min(first.values())
        rule, said = "numbers.gradient", f"a gradient of step {step} is not a number, although the loss is one"
        if first.get("loss") == step:
            rule, said = "numbers.loss", f"the loss of step {step} is not a number, before any weight was"
        yield RootCause(rule=rule, said=said, rank=0.97)
        return


def invariants(sides: Sides) -> Iterator[RootCause]:
    """An invariant of the first step that only the candidate breaks."""
    before, now = (
        [run.invariants.partition(":")[2].strip() for run in side if run.invariants.startswith("broken")]
        for side in (sides.baseline, sides.candidate)
    )
    if now and not before:
        yield RootCause(rule="start.reference", said=f"the first step is not where it must be: {now[0]}", rank=0.96)


def frozen(sides: Sides) -> Iterator[RootCause]:
    """Gradients that are exactly zero from some step on."""
    for run in sides.candidate:
        series = run.series.get("grad_norm")
        if series is None or not len(series.values) or series.values[-1] != 0.0:
            continue
        step = int(series.steps[np.nonzero(series.values)[0][-1] + 1]) if series.values.any() else int(series.steps[0])
        said = f"grad_norm is 0 from step {step} on: nothing trains any more"
        yield RootCause(rule="numbers.frozen", said=said, rank=0.98)
        return


def signals(sides: Sides) -> Iterator[RootCause]:
    """A training's own signals that contradict each other; none if a value is not finite or nothing trains."""
    if any(not_numbers(sides)) or any(frozen(sides)):
        return
    if sides.has("reward_accuracy"):
        before, now = sides.tail("reward_accuracy")
        room = max(0.08, 1.5 * _known(sides.spread("reward_accuracy")))
        if before - now > room and before > 0.6:
            said = f"{_percent(now)} of the pairs end in their order, not {_percent(before)}"
            yield RootCause(rule="data.contradicts", said=f"{said}: they contradict each other", rank=0.7)
    yield from paid_otherwise(sides)
    entropy = ratio(sides.tail("entropy")) if sides.has("entropy") else math.nan
    if sides.has("value_loss"):
        times = ratio(sides.tail("value_loss"))
        if times >= 5:  # a critic loses track of a policy that collapses
            rank = 0.6 if entropy <= COLLAPSED else 0.74
            yield RootCause(rule="critic.runs-away", said=f"the value loss ends {times:.3g} times as high", rank=rank)
    if entropy <= COLLAPSED:
        said = f"the policy's entropy ends at {_percent(entropy)} of the baseline's"
        yield RootCause(rule="policy.collapses", said=said, rank=0.7)


def paid_otherwise(sides: Sides) -> Iterator[RootCause]:
    """A reward in training that moves away from the reward of held-out answers."""
    score = next((name for name in ("score_mean", "reward_mean") if sides.has(name, "eval_reward")), None)
    if score is None:
        return
    paid, held = (now - before for before, now in (sides.tail(score), sides.tail("eval_reward")))
    room = max(0.3, 1.5 * _known(sides.spread("eval_reward")))
    if held < -room and paid > held + max(0.5, 0.3 * abs(held)):
        said = f"the reward in training changed by {paid:+.2f}, of held-out answers by {held:+.2f}"
        yield RootCause(rule="reward.parts", said=f"{said}: what is paid for is not what is wanted", rank=0.72)


def _peaks(runs: Sequence[Run]) -> NDArray[np.float64]:
    """The median run's peak so far, step by step."""
    rows = [run.series["peak_memory"].finite_only().values for run in runs if "peak_memory" in run.series]
    length = min(len(row) for row in rows)
    return np.maximum.accumulate(np.median([row[:length] for row in rows], axis=0))


def _known(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _measured(rule: str, said: str, share: float, sure: float = 1.0) -> RootCause:
    share = min(1.0, share)
    return RootCause(rule=rule, said=said, rank=share * sure, share=share)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


RULES: Sequence[Callable[[Sides], Iterator[RootCause]]] = (
    frozen, not_numbers, invariants, rates, slower, heavier, signals,
)  # fmt: skip
"""To add a rule, write a function in this module and add a line here."""


def root_causes(baseline: Sequence[Run], candidate: Sequence[Run]) -> list[RootCause]:
    """The causes that were found, those that explain most first. Runs that broke off count as far as they got."""
    if not baseline or not candidate:
        return []
    sides = Sides(baseline=baseline, candidate=candidate)
    found = [one for rule in RULES for one in rule(sides)]
    return sorted(found, key=lambda one: -one.rank)
