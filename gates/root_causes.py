"""What explains a verdict, judged by measurements alone: rules with ids, the ones that explain most first. They do not
look at names of faults or at recorded settings. Finding no cause is an answer too."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from statistics import median

import numpy as np

from canary_mlflow.gates import measured
from canary_mlflow.gates.facts.exact import DRIFT, FROZEN
from canary_mlflow.gates.measured import COSTLIER, Sides, by_layer, end, ratio, start
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.verdict import Check, Outcome, RootCause
from canary_mlflow.gates.model.wording import listed, many, quantity

DEARER = (1 + COSTLIER) / 2  # times the cost of all steps, of which a slowdown of the last half moves no median
HEAVIER = 1.05  # times its peak
LEAST_MIB = 8.0  # by which its peak is higher, too: of a small one, 5 % are next to nothing
CLEAR = 0.25  # share of the harm that a phase must explain to be named
SURE = 0.95  # rank of a phase that explains all of a slowdown: below not_numbers and frozen
FACTOR = 1.25  # from which on a rate or a coefficient counts as changed
ROWS = 1.1  # times the tokens per row, or the inverse: a median row differs less between samples of the same rows
FURTHER = 1.5  # times the KL; unchanged sessions of GRPO and RLOO stay within 1.34
COLLAPSED = 0.7  # share of the baseline's entropy; no two unchanged sessions differ as much (root_cause.py --campaign)
ASTRAY = 2.0  # times what the layers moved in the median, which seeds alone do not come near
UNITS = {"time": {"s", "kernels", "tokens/s"}, "memory": {"MiB", "MiB/step"}}
COSTS = frozenset().union(*UNITS.values())
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
    "reward_accuracy": "the share of pairs in their order",
    "reward_margin": "the margin of good answers over bad ones",
}


def slower(sides: Sides) -> Iterator[RootCause]:
    """Where a step's time went, phase by phase, in units of the fixed kernel where one was timed: a machine that is
    slower as a whole makes no phase longer."""
    whole, cost, parts = ("step_time", "step_cost", PARTS)
    if sides.has("iteration_time"):
        whole, cost, parts = ("iteration_time", "iteration_cost", PARTS_OF_ITERATION)
    judged = cost if sides.has(cost) else whole
    if ratio(sides.both(measured.mean, judged)) >= DEARER and (late := sides.sets_in(own_clock(sides))):
        step, times = late
        said = f"each step takes {_percent(times - 1)} longer from step {step} on"
        yield RootCause(rule="time.sets-in", said=said, rank=0.96)
    if not (ratio(sides.level(judged)) >= COSTLIER and sides.apart(judged)):
        return
    pace = pace_of(sides)
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


def pace_of(sides: Sides) -> float:
    """How many times as long the fixed kernel took on the candidate's side; 1 if nothing tells."""
    if own_clock(sides) == "step_cpu_time" and sides.has("step_cost"):
        pace = ratio(sides.level("step_cpu_time")) / ratio(sides.level("step_cost"))
    else:
        pace = ratio(sides.level("sentinel_time")) if sides.has("sentinel_time") else 1.0
    return pace if math.isfinite(pace) else 1.0


def own_clock(sides: Sides) -> str:
    """What a step is timed by against others of its run: CPU time, where the host does the work."""
    return "step_cpu_time" if sides.host_bound and sides.has("step_cpu_time") else "step_time"


def heavier(sides: Sides) -> Iterator[RootCause]:
    """Memory that grows with each step, that was allocated at once in mid-run, or that is there from the first step."""
    if not sides.has("peak_memory"):
        return
    before, now = measured.peaks(sides.baseline), measured.peaks(sides.candidate)
    if min(len(before), len(now)) < 2:
        return
    excess = now[-1] - before[-1]
    # A script's runs in one process grow, each upon the last, so it is not enough that the middle ones differ.
    apart = sides.apart("peak_memory", measured.highest)
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
    """The learning rate, the KL coefficient and the number of passes, as the runs logged them. Ahead of what they bring
    about: a number that is none, gradients of 0, time."""
    passes = sides.both(measured.updates)
    more_passes = all(map(math.isfinite, passes)) and passes[0] != passes[1]
    if more_passes:
        said = f"{passes[1]:g} optimizer steps for each rollout, not {passes[0]:g}"
        yield RootCause(rule="rate.passes", said=said, rank=0.96)
    coefficients = sides.both(start, "kl_coef")  # what a controller makes of it later follows
    if said := changed(coefficients, "starts at"):
        yield RootCause(rule="rate.kl", said=f"the KL coefficient {said}", rank=0.8)
    peak, level = sides.both(measured.highest, "learning_rate"), sides.level("learning_rate")
    times = float(np.median(found)) if len(found := sides.ratios("learning_rate")) else ratio(level)
    said = changed(level, "is, at the median step,", times)
    given = changed(peak, "peaks at")  # what its schedule was given
    if said and (given or not more_passes):  # which stretch the same schedule
        yield RootCause(rule="rate.learning", said=f"the learning rate {given or said}", rank=0.99)


def changed(pair: tuple[float, float], what: str, times: float = math.nan) -> str:
    """`peaks at 0.4, not 0.002 (200 times)`; '' if it is no other rate. `times`: how many, if not those of the pair."""
    before, now = pair
    times = times if math.isfinite(times) else ratio(pair)
    if not (times >= FACTOR or times <= 1 / FACTOR):
        return ""
    factor = f" ({many(times)})" if times > 0 else ""
    return f"{what if now else 'stays at'} {now:.3g}, not {before:.3g}{factor}"


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
            rule, said = "numbers.loss", f"the loss of step {step} is not a number"
            said += ", although all gradients before were" * ("grad_norm" in run.series)
        yield RootCause(rule=rule, said=said, rank=0.97)
        return


def starts(sides: Sides) -> Iterator[RootCause]:
    """A first step, which no update has touched, that breaks an invariant or is paid otherwise."""
    before, now = (
        [run.invariants.partition(":")[2].strip() for run in side if run.invariants.startswith("broken")]
        for side in (sides.baseline, sides.candidate)
    )
    if now and not before:
        yield RootCause(rule="start.reference", said=f"the first step is not where it must be: {now[0]}", rank=0.96)
    paid = sides.first("score_mean", "reward_mean")
    here, there = sides.each(paid, start)
    if not there or len(here) < 2:
        return
    noise = max(max(side) - min(side) for side in (here, there))
    learned = abs(sides.tail(paid)[0] - median(here))
    if max(min(there) - max(here), min(here) - max(there)) > max(2 * noise, learned / 2):
        said = f"the first answers, before any update, are paid {median(there):.3g}, not {median(here):.3g}"
        yield RootCause(rule="start.reward", said=said, rank=SURE)


def data(sides: Sides) -> Iterator[RootCause]:
    """Other tokens in a row than before, as they reached the model, or columns of the data that changed places."""
    times = ratio(pair := sides.both(measured.tokens_of_a_row))
    if not 1 / ROWS < times < ROWS and math.isfinite(times):
        yield RootCause(rule="data.tokens", said=f"tokens differ: {pair[1]:.3g} for {pair[0]:.3g} per row", rank=SURE)
    before, now = (measured.token_digests(side[0]) for side in (sides.baseline, sides.candidate))
    moved = [column for column in before.keys() & now.keys() if before[column] != now[column]]
    if len(moved) > 1 and sum(before[one] - now[one] for one in moved) % measured.DIGESTS == 0:
        said = f"{' and '.join(sorted(moved))} changed places in some rows: together they hold the same tokens"
        yield RootCause(rule="data.exchanged", said=said, rank=SURE)


def layers(sides: Sides) -> Iterator[RootCause]:
    """Layers that do not move any more where others do, or one that moves much further or less far than they do."""
    before, now = by_layer(sides.baseline), by_layer(sides.candidate)
    shared = [layer for layer in now if min(before.get(layer, [0.0])) > 0]
    still = [layer for layer in shared if not any(now[layer])]
    times = {layer: median(now[layer]) / median(before[layer]) for layer in shared if min(now[layer]) > 0}
    if not times:
        return
    if still:
        frozen = all(run.facts.get(f"{DRIFT}.{still[0]}") == FROZEN for run in sides.candidate)
        what = f"only {listed([*times])} moved" if len(times) < len(still) else f"{listed(still)} did not move"
        yield RootCause(rule="layers.still", said=f"{what} ({'frozen' if frozen else 'not frozen'})", rank=0.94)
    usual = median(times.values())
    layer = max(times, key=lambda one: abs(math.log(times[one] / usual)))
    here, there = [usual * one for one in before[layer]], now[layer]
    if max(min(there) / max(here), min(here) / max(there)) >= ASTRAY:
        far = f"{100 * median(there):.3g} % of its size, not {100 * median(before[layer]):.3g} %"
        said = f"{layer} moved {far}: {many(times[layer] / usual)} as far, beside the median layer"
        yield RootCause(rule="layers.astray", said=said, rank=0.55)


def frozen(sides: Sides) -> Iterator[RootCause]:
    """Gradients that are exactly zero from some step on, for longer than any before: a step of GRPO whose answers are
    all rewarded alike has none either, and goes by."""
    runs = [(run, _zeros(run)) for run in sides.candidate if "grad_norm" in run.series]
    ends = [(run, *found[-1]) for run, found in runs if found and found[-1][1] == len(run.series["grad_norm"].values)]
    passed = [one for run in sides.baseline for one in _zeros(run)]
    passed += [one for run, found in runs for one in found if (run, *one) not in ends]
    longest = max((stop - start for start, stop in passed), default=0)
    for run, first, stop in ends:
        if stop - first > longest:
            step = int(run.series["grad_norm"].steps[first])
            said = f"grad_norm is 0 from step {step} on: nothing trains any more"
            yield RootCause(rule="numbers.frozen", said=said, rank=0.98)
            return


def _zeros(run: Run) -> list[tuple[int, int]]:
    """Where gradients are exactly zero: from which row to before which other."""
    series = run.series.get("grad_norm")
    if series is None:
        return []
    none = np.concatenate([[False], series.values == 0.0, [False]])
    edges = np.flatnonzero(none[1:] != none[:-1])
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def collapses(sides: Sides) -> Iterator[RootCause]:
    """A critic that loses track of its policy, or a policy that collapses, of which the former follows."""
    entropy = ratio(sides.tail("entropy")) if sides.has("entropy") else math.nan
    if sides.has("value_loss") and (times := ratio(sides.tail("value_loss"))) >= 5:
        rank = 0.6 if entropy <= COLLAPSED else 0.74
        yield RootCause(rule="critic.runs-away", said=f"the value loss ends {many(times)} as high", rank=rank)
    if entropy <= COLLAPSED:
        said = f"the policy's entropy ends at {_percent(entropy)} of the baseline's"
        yield RootCause(rule="policy.collapses", said=said, rank=0.7)


def contradicts(sides: Sides) -> Iterator[RootCause]:
    """Pairs that are no longer told apart in training, or that are ordered against the held-out ones."""
    for name, held, chance in (("reward_accuracy", "eval_accuracy", 0.5), ("reward_margin", "eval_margin", 0.0)):
        if not sides.has(name):
            continue
        before, now = sides.tail(name)
        room = max(0.3 * (before - chance), 1.5 * sides.spread(name))
        if before - now > room > 0 and sides.apart(name, end, below=True):
            said = f"{NAMES[name]} ends at {now:.2g} in training, not {before:.2g}: pairs contradict each other"
            yield RootCause(rule="data.contradicts", said=said, rank=0.7)
        elif sides.has(held) and now > chance > sides.tail(held)[1] and sides.apart(held, end, below=True):
            said = f"{NAMES[name]} ends at {now:.2g} in training and {sides.tail(held)[1]:.2g} on held-out pairs"
            yield RootCause(rule="data.contradicts", said=f"{said}, which contradict each other", rank=0.7)
        return


def unheld(sides: Sides) -> Iterator[RootCause]:
    """A policy that earns at least as much further away from its reference. Where the KL's coefficient was logged, that
    tells more."""
    if sides.has("kl_coef") or not sides.has("kl", "reward_mean"):
        return
    times, (before, now) = ratio(sides.tail("kl")), sides.tail("reward_mean")
    if times >= FURTHER and sides.apart("kl", end) and now >= before - sides.spread("reward_mean"):
        said = f"the policy ends {many(times)} as far from its reference, for a reward of {now:.3g}, not {before:.3g}"
        yield RootCause(rule="policy.unheld", said=said, rank=0.71)


def paid_otherwise(sides: Sides) -> Iterator[RootCause]:
    """A reward that rises in training and falls for held-out answers."""
    paid = sides.first("score_mean", "reward_mean")
    if sides.apart(paid, end) and sides.apart("eval_reward", end, below=True):
        rise, fall = (now - before for before, now in (sides.tail(paid), sides.tail("eval_reward")))
        if -fall > sides.spread("eval_reward"):
            said = f"the reward in training changed by {rise:+.2f}, of held-out answers by {fall:+.2f}"
            yield RootCause(rule="reward.parts", said=f"{said}: what is paid for is not what is wanted", rank=0.72)


def _measured(rule: str, said: str, share: float, sure: float = 1.0) -> RootCause:
    share = min(1.0, share)
    return RootCause(rule=rule, said=said, rank=share * sure, share=share)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else quantity(seconds, "s")


def harmed(policy: Policy, checks: Sequence[Check], outcome: Outcome, runs: Sequence[Run]) -> set[str]:
    """The units of what decided a verdict: those of its checks, and of what broke runs off; none for a PASS."""
    if outcome is Outcome.PASS:
        return set()
    decided = {check.metric for check in checks if check.outcome.value == outcome.value}
    broken = {"oom": "MiB", "timeout": "s"}
    units = {rule.info.unit for rule in policy.rules if rule.name in decided}
    return units | {broken[run.failure] for run in runs if run.failure in broken}


RULES: Sequence[Callable[[Sides], Iterator[RootCause]]] = (
    frozen, not_numbers, starts, data, layers, rates, slower, heavier,
)  # fmt: skip
SIGNALS: Sequence[Callable[[Sides], Iterator[RootCause]]] = (contradicts, paid_otherwise, unheld, collapses)
"""To add a rule, write a function in this module and name it here. SIGNALS: a training's own signals that contradict
each other, which tell nothing if a value is not finite, nothing trains, or the learning rate is another."""


def root_causes(
    baseline: Sequence[Run], candidate: Sequence[Run], harmed: Collection[str] | None = None
) -> list[RootCause]:
    """The causes that were found, those that explain most first. Runs that broke off count as far as they got.
    `harmed`: the units of what does not pass, None if not known; a cause of other time or memory is named last."""
    if not baseline or not candidate:
        return []
    sides = Sides(baseline=baseline, candidate=candidate)

    def beside_the_point(one: RootCause) -> bool:
        units = UNITS.get(one.rule.partition(".")[0])
        return harmed is not None and units is not None and units.isdisjoint(harmed)

    found = [one for rule in RULES for one in rule(sides)]
    if not any(one.rule.startswith(("numbers.", "rate.learning")) for one in found):
        found += [one for rule in SIGNALS for one in rule(sides)]
    return sorted(found, key=lambda one: (beside_the_point(one), -one.rank))
