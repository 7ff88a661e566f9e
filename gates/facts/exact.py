"""The exact facts of two sides, compared without statistics, as they have no noise."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from canary_mlflow.gates.facts.courses import course_differences
from canary_mlflow.gates.facts.work import WORK
from canary_mlflow.gates.model.paradigm import Paradigm, paradigm_of
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.sides import ABSENT
from canary_mlflow.gates.model.verdict import Difference
from canary_mlflow.gates.model.wording import counted

FACTS = "facts"
FIRST = "first."
"""Of the first steps."""
TOKENS = f"{FIRST}tokens"
ORDER = "data.order."
"""In which order a trainer is given the rows of a column, from which follows what each step is about."""
LEAKED, NEAR = "data.held_out_trained", "data.held_out_near"
"""How many held-out rows are trained on, or half of each: with more of them an evaluation means less."""
DRIFT = "layer_drift"
FROZEN = "frozen"
"""How far each layer of the weights moved, relative to its size; of a layer that was not trained."""
OF_ORDER = (FIRST, "labels.trained", "labels.which")
SEEDED = (FIRST, "labels.", ORDER)
"""Follows from the seed, so it is compared between runs of one seed alone."""

STEPS = 3  # first steps whose losses, gradients and rewards are facts
REWARDS = ("reward_mean", "score_mean")
SERIES = ("loss", "grad_norm", *REWARDS)
DEFAULTS = "defaults."
"""Arguments that nobody gave; compared with the same argument of the other side, where that has it too."""

NOT_EXACT = (WORK, f"{DRIFT}.")
"""Kept as facts, and compared in a way of their own."""

ARGUMENTS = "arguments."
DEFAULTED = (ARGUMENTS, "model.", "adapter.", "generation.", "rewards.")
"""Groups that hold what is not at its default, or what there may be any of: of these, one that only one side has
differs."""

ROUNDING = {"fp32": 1e-5, "tf32": 1e-3, "bf16": 1e-2, "fp16": 1e-2}
LOOSEST = max(ROUNDING.values())
"""Relative errors that count as rounding, by precision; of one that is not named, the loosest."""
GROWS = 10.0
"""By how much an error of rounding may grow from one step to the next, through the weights that it moves."""

SEPARATOR = " | "
RENAMED = {"evaluation_strategy": "eval_strategy", "max_seq_length": "max_length", "torch_dtype": "dtype"}
"""Settings that a release of transformers (4.41, 4.56) or trl (0.20) calls otherwise."""
Values = dict[int | None, set[str]]
Value = TypeVar("Value")
Rounding = tuple[float, float]
"""The precision's own relative error, and the least size that it is of."""


def facts_of(run: Run) -> dict[str, str]:
    """The facts that a run recorded, with the losses and gradient norms of its first steps; {} if it recorded none: its
    series alone do not say what work they come from."""
    if not run.facts:
        return {}
    found = {key: value for key, value in renamed(run.facts).items() if not bare(key).startswith(DEFAULTS)}
    for name in SERIES:
        series = run.series.get(name)
        rows = {} if series is None else dict(zip(series.steps[:STEPS], series.values[:STEPS], strict=True))
        found |= {f"{FIRST}{name}.{step}": repr(float(value)) for step, value in rows.items() if 1 <= step <= STEPS}
    return found


def fact_differences(baseline: Sequence[Run], candidate: Sequence[Run]) -> list[Difference]:
    """What differs, each fact once, by name. Runs of the same seed are compared. If no seed is shared,
    only facts that do not follow from a seed: those that are the same in all runs of a side, and numbers, if all of one
    side are below all of the other."""
    left, right = _by_key(baseline), _by_key(candidate)
    for seed in shuffled_otherwise(baseline, candidate):
        for key in [key for key in left if bare(key).startswith(OF_ORDER)]:
            left[key].pop(seed, None)
    usual = [_by_key(side, defaults_of) for side in (baseline, candidate)]
    flipped = usual[0].keys() & usual[1].keys()
    groups = {_group(key) for key in left} & {_group(key) for key in right}
    runs = [run for run in (*baseline, *candidate) if run.facts]
    scale = float(any(map(reinforces, runs)))  # a policy gradient's loss sums terms of size 1 and either sign
    answered = ("labels.",) * bool(scale)  # of the model's own answers, which follow from every update before
    found = [
        _difference(
            key,
            left.get(key) or usual[0].get(key, {}),
            right.get(key) or usual[1].get(key, {}),
            (_rounding_of(key, runs), scale),
        )
        for key in sorted(left.keys() | right.keys() | flipped)
        if _group(key) in groups and not bare(key).startswith((*NOT_EXACT, *answered)) and not _new(key, left, usual[0])
    ]
    return [*filter(None, found), *course_differences(baseline, candidate, FACTS)]


def reinforces(run: Run) -> bool:
    """Whether it learns from answers that it draws itself."""
    return paradigm_of(run.workload.get("algo", ""), run.series) is Paradigm.REINFORCEMENT


def shuffled_otherwise(baseline: Sequence[Run], candidate: Sequence[Run]) -> list[int]:
    """The seeds in which the sides draw their rows by another `data_seed`: their first steps have nothing in common."""
    here, there = ({(run.seed, _drawn_by(run)) for run in side} for side in (baseline, candidate))
    shared = {seed for seed, _ in here} & {seed for seed, _ in there}
    return sorted(seed for seed in shared - {seed for seed, _ in here & there} if seed is not None)


def _drawn_by(run: Run) -> str:
    said = run.configuration.get("data_seed", "None")
    return str(run.seed) if said == "None" else said


def bare(key: str) -> str:
    """The fact without its variant: `first.loss.1` of `lora/first.loss.1`."""
    group, dot, name = key.partition(".")
    return group.rpartition("/")[2] + dot + name


def renamed(settings: Mapping[str, Value]) -> dict[str, Value]:
    """The settings by their later names: one that is only called otherwise has not changed."""

    def later(key: str) -> str:
        head, dot, last = key.rpartition(".")
        return f"{head}{dot}{RENAMED.get(last, last)}"

    return {later(key): settings[key] for key in sorted(settings, key=lambda key: later(key) == key)}


def ends_a_text(key: str) -> bool:
    """Whether the setting says which token begins, ends or pads a text: labels and answers follow from it."""
    return bool(re.search(r"(^|[./_])(bos|eos|pad)(_token(_id)?)?$", key))


def variant_of(key: str) -> str:
    """The variant of a fact: `lora` for `lora/first.loss.1`, '' for a fact of the run itself."""
    return key.partition(".")[0].rpartition("/")[0]


def covers(accepted: Difference, found: Difference) -> bool:
    """Whether the accepted difference is the one found: the same values in every seed that both contain."""
    if accepted.key != found.key:
        return False
    known, now = pairs_of(accepted), pairs_of(found)
    if None in known or None in now:  # what follows from no seed: one pair of values stands for all
        if len({*known.values()}) != 1:
            return False
        known = dict.fromkeys(now, next(iter(known.values())))
    shared = known.keys() & now.keys()
    rounding = ROUNDING["fp32"], 0.0
    return bool(shared) and all(
        here == there or _rounds(found.key, here, there, rounding)
        for seed in shared
        for here, there in zip(known[seed], now[seed], strict=True)
    )


def _difference(key: str, before: Values, now: Values, rounding: Rounding) -> Difference | None:
    """The difference of one fact between two sides; None if there is none, or it cannot be told."""
    if not before or not now:
        if not bare(key).startswith(DEFAULTED):
            return None
        values = [_all(side) for side in (before, now)]
        if any(len(side) > 1 for side in values):
            return None
        here, there = (next(iter(side), ABSENT) for side in values)
        return Difference(key=key, baseline=here, candidate=there, group=FACTS)
    seeds = sorted(
        seed for seed in before.keys() & now.keys() if len(before[seed]) == len(now[seed]) == 1 and seed is not None
    )
    apart = [seed for seed in seeds if before[seed] != now[seed]]
    if seeds:
        pairs = [(min(before[seed]), min(now[seed])) for seed in apart]
    elif bare(key).startswith(SEEDED):
        return None
    else:
        pairs = _clear_of(_all(before), _all(now))
    if not pairs:
        return None
    if len({*pairs}) == 1:
        pairs, apart = pairs[:1], apart if bare(key).startswith(SEEDED) else []
    return Difference(
        key=key,
        baseline=SEPARATOR.join(here for here, _ in pairs),
        candidate=SEPARATOR.join(there for _, there in pairs),
        group=FACTS,
        seeds=tuple(apart),
        rounding=all(_rounds(key, here, there, rounding) for here, there in pairs),
    )


def _new(key: str, baseline: Mapping[str, Values], usual: Mapping[str, Values]) -> bool:
    """Whether the baseline's release has no argument of that name. A trainer sets a new one itself from others (of
    Transformers 5.23, activation_checkpointing from gradient_checkpointing), and what it does is among other facts."""
    return bool(usual) and bare(key).startswith(ARGUMENTS) and key not in baseline and key not in usual


def _all(values: Values) -> set[str]:
    return {value for held in values.values() for value in held}


def _clear_of(before: set[str], now: set[str]) -> list[tuple[str, str]]:
    """The two values that are next to each other, where all of one side are clear of all of the other; else none."""
    if len(before) == len(now) == 1:
        return [] if before == now else [(min(before), min(now))]
    if not all(value.isdigit() for value in before | now):
        return []
    here, there = sorted(before, key=int), sorted(now, key=int)
    below, above = (here[0], there[-1]), (here[-1], there[0])
    return [pair for pair, way in ((below, 1), (above, -1)) if way * int(pair[0]) > way * int(pair[1])]


def defaults_of(run: Run) -> dict[str, str]:
    """The arguments left at their defaults, under the keys that set ones have: `lora/arguments.optim`."""
    return {
        key.replace(DEFAULTS, ARGUMENTS, 1): value
        for key, value in renamed(run.facts).items()
        if bare(key).startswith(DEFAULTS)
    }


def unset(side: Sequence[Run]) -> frozenset[str]:
    """The arguments that no run of a side was given, as `arguments.optim`."""
    return frozenset(set.intersection(*(set(defaults_of(run)) for run in side))) if side else frozenset()


def _by_key(runs: Sequence[Run], facts: Callable[[Run], Mapping[str, str]] = facts_of) -> dict[str, Values]:
    """Key → seed → values, without what is not reproducible."""
    return {key: values for key, values in _recorded(runs, facts).items() if not _unsteady(key, values)}


def _recorded(runs: Sequence[Run], facts: Callable[[Run], Mapping[str, str]] = facts_of) -> dict[str, Values]:
    found: dict[str, Values] = {}
    for run in runs:
        for key, value in facts(run).items():
            alone = value.startswith("[") and value[1:-1].isdigit()  # one token, in a list or not (transformers 5.18)
            found.setdefault(key, {}).setdefault(run.seed, set()).add(value[1:-1] if alone else value)
    return found


def _unsteady(key: str, values: Values) -> bool:
    """Whether it follows from the seed, and two runs of one seed on one side differ in it."""
    return bare(key).startswith(SEEDED) and any(len(held) > 1 for held in values.values())


def not_compared(baseline: Sequence[Run], candidate: Sequence[Run]) -> str:
    """Which facts that follow from a seed both sides recorded and are not compared, and why; '' if there are none."""
    sides = [_recorded(side) for side in (baseline, candidate)]
    seeded = [key for key in sides[0].keys() & sides[1].keys() if bare(key).startswith(SEEDED)]
    nothing = "exact facts that follow from a seed are not compared"
    if seeded and not any(sides[0][key].keys() & sides[1][key].keys() - {None} for key in seeded):
        return f"{nothing}: no seed in common"
    if seeded and (apart := shuffled_otherwise(baseline, candidate)):
        return f"{nothing} in {counted(len(apart), 'seed')}: another data_seed"
    unsteady = sorted(key for key in seeded if any(_unsteady(key, side[key]) for side in sides))
    return f"not compared, as runs of one seed and side differ: {', '.join(unsteady)}" if unsteady else ""


def _rounds(key: str, before: str, now: str, rounding: Rounding) -> bool:
    """Whether two numbers of the first steps differ by no more than the precision's own error, or by no more than the
    trainer's rounding."""
    if not bare(key).startswith(tuple(f"{FIRST}{name}." for name in SERIES)):
        return False
    here, there = float(before), float(now)
    if not (math.isfinite(here) and math.isfinite(there)):
        return before == now
    digits = max(last_digit(before), last_digit(now))
    relative, scale = rounding
    return abs(here - there) <= max(relative * max(abs(here), abs(there), scale), digits)


def last_digit(number: str) -> float:
    """What the last digit of a number rounded to a few digits is worth; 0 for a number in full precision."""
    _, point, decimals = number.partition(".")
    return 10.0 ** -len(decimals) if point and 1 < len(decimals) <= 4 and decimals.isdigit() else 0.0


def _group(key: str) -> str:
    return key.partition(".")[0]


def _rounding_of(key: str, runs: Sequence[Run]) -> float:
    """The finest rounding error among the precisions that a fact's runs, or their variant, computed in: a coarser one
    that a library switched to is no excuse. It grows over the first steps."""
    finest = min((rounding_of(run, variant_of(key)) for run in runs), default=LOOSEST)
    step = key.rpartition(".")[2]
    return finest * GROWS ** (int(step) - 1) if bare(key).startswith(FIRST) and step.isdigit() else finest


def rounding_of(run: Run, variant: str) -> float:
    own = f"{variant}/training.precision" if variant else "training.precision"
    return ROUNDING.get(run.facts.get(own, ""), LOOSEST)


def pairs_of(one: Difference) -> dict[int | None, tuple[str, str]]:
    """Seed → both values; under the key None for a fact that follows from no seed."""
    values = list(zip(one.baseline.split(SEPARATOR), one.candidate.split(SEPARATOR), strict=False))
    if len(values) == 1:
        return dict.fromkeys(one.seeds or (None,), values[0])
    return dict(zip(one.seeds, values, strict=False))
