"""What two sets of packages did under one command, by what was recorded inside it (recording.py), compared: the course
of the trainings from the first step to the last evaluation, what was saved, and what it cost."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from canary_mlflow.gates.facts.courses import EXACT, SHIFT
from canary_mlflow.gates.facts.exact import GROWS, LOOSEST, ROUNDING, last_digit, renamed
from canary_mlflow.gates.facts.regressions import mantissa
from canary_mlflow.gates.model.metrics import METRICS
from canary_mlflow.gates.model.wording import listed, told_apart
from canary_mlflow.tracking.describing.schema import canonical

Course = Mapping[tuple[int, str], Sequence[tuple[int, float]]]
"""Trainer, key → step and value, in the order in which they were logged."""
Content = Mapping[str, Sequence[Any]]
"""Of a file, by name: of a tensor as recording.told has it, of a setting its value and whether it is assumed anyway."""
Files = Sequence[tuple[str, Content]]
Costs = Mapping[str, float]

TIMED = ("runtime", "per_second", "_time")
"""How keys end that read a clock."""
MEASURED = re.compile("time|second|speed|memory|profil|^train_loss$")
"""In a key that nobody knows: that it is measured, or of all steps together, with the rounding of all."""
BY_THEIR_SIZE = ("loss", "learning_rate", "eval_loss")
"""Whose rounding is relative to their own size; others are differences or means of larger numbers."""
STEERS = ("grad_norm", "learning_rate", "kl")
LOGGED, BESIDES = "logged.", "besides."
"""How keys of a course begin: those that decide, those that are shown."""
MORE, TYPICALLY = 1.1, 1.2
"""What costs so much more in every repetition than in any of the other side is worse, if in the end their medians are
apart by what the gate lets a cost rise: a busy machine can give three that are all a little higher."""
REPEATS = 3
"""Measurements that tell what is usual."""
READER, SETTING = "saved.reader", f"{BESIDES}value"
READERS = ("_class", "_type", "architectures", "auto_map")
"""How settings end that say which class reads what is saved."""
COSTS = {
    "cost.outside": ("CPU time outside of steps", "s", 0.5),
    "cost.loading": ("memory before the first step, without imports,", "MiB", 32.0),
    "cost.memory": ("memory that training adds", "MiB", 32.0),
    "cost.step": ("a step", "kernels", 0.0),
}
"""What it is called, its unit, and how much is not worth a word. A package's first use alone takes a quarter of a
second more or less from one release to the next (peft 0.18 → 0.19)."""


@dataclass(frozen=True)
class Symptom:
    """One thing that another set of packages does otherwise: its key, by which it is recognised with a third set, and a
    clause."""

    key: str
    said: str


Found = Iterator[Symptom]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What the processes of one command did, in the order in which they began."""

    course: Course = field(default_factory=dict)
    tensors: Files = ()
    texts: Files = ()
    costs: Costs = field(default_factory=dict)
    unit: float = 1.0  # seconds of the loop that `cost.outside` is counted in


def read(folder: Path) -> Recording:
    """What the processes of a probe recorded; nothing where none did."""
    told = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    course: dict[tuple[int, str], list[tuple[int, float]]] = {}
    first = 0
    for one in told:
        for row in one["logged"]:
            for key, value in row["values"].items():
                course.setdefault((first + row["trainer"], key), []).append((row["step"], value))
        first += 1 + max((row["trainer"] for row in one["logged"]), default=-1)
    costs = {"cost.outside": sum(one["outside"] / one["kernel"] for one in told)} if told else {}
    if peaks := [one["memory"] for one in told if len(one["memory"]) == 2]:
        costs["cost.loading"] = max(first for first, _ in peaks)
        costs["cost.memory"] = max(last - first for first, last in peaks)
    return Recording(
        course=course,
        tensors=[(file["file"], file["holds"]) for one in told for file in one["tensors"]],
        texts=[(file["file"], renamed(file["holds"])) for one in told for file in one["texts"]],
        costs=costs,
        unit=median(one["kernel"] for one in told) if told else 1.0,
    )


def differences(baseline: Sequence[Recording], now: Recording, rounding: float) -> Found:
    """Each way in which the candidate did otherwise. What the baseline does not repeat itself tells nothing."""
    yield from other_course(baseline, now, rounding)
    yield from other_tensors(baseline, now)
    yield from other_texts(baseline, now)


def other_course(baseline: Sequence[Recording], now: Recording, rounding: float) -> Found:
    """Each metric that takes another course than rounding explains, which grows at most tenfold from one step to the
    next."""
    first, *again = (one.course for one in baseline)
    steady = {name: first[name] for name in first if all(one.get(name) == first[name] for one in again)}
    known = worst = 0.0  # over all metrics, and from one trainer to the next: weights that differ move all of them
    place = (-1, -1)
    for trainer, at, key in _in_order(steady):
        place, known = (trainer, at), known if place == (trainer, at) else worst
        step, value = steady[trainer, key][at]
        values = now.course.get((trainer, key), ())
        if not values and at == 0 and not _unknown(key):
            kind = LOGGED if key.startswith("eval_") else BESIDES  # a library may call it otherwise
            yield Symptom(f"{kind}{key}", f"{key} is not logged any more")
        if at >= len(values):
            continue
        apart = _apart(key, value, values[at][1])
        limit = max(worst and LOOSEST, rounding) if _jumps(key) else max(known, rounding)
        if apart > limit * GROWS:
            kind = LOGGED if _decides(key) and not _shifted(key, steady[trainer, key], values) else BESIDES
            yield Symptom(f"{kind}{key}", f"{key} of step {step} {told_apart(value, values[at][1])}")
        elif not _jumps(key) and not _unknown(key):  # what is no rounding, as an entropy defined anew, excuses nothing
            worst = max(worst, apart)
    for trainer, key in first:
        counts = [len(one.course.get((trainer, key), ())) for one in (*baseline, now)]
        if key == "loss" and counts[-1] not in (0, counts[0]) and len({*counts[:-1]}) == 1:
            yield Symptom(f"{LOGGED}steps", f"{key} was logged {counts[0]} → {counts[-1]} times")


def _shifted(key: str, here: Sequence[tuple[int, float]], there: Sequence[tuple[int, float]]) -> bool:
    """Whether a schedule's values are the same, logged a step earlier or later, as some releases of Transformers do."""
    if canonical(key) not in EXACT or len(here) != len(there) or len(here) <= 2 * SHIFT:
        return False
    pairs = (here[SHIFT:], there[:-SHIFT]), (here[:-SHIFT], there[SHIFT:])
    return any(all(math.isclose(one[1], other[1]) for one, other in zip(*pair, strict=True)) for pair in pairs)


def _in_order(course: Course) -> list[tuple[int, int, str]]:
    """Trainer, place and key of everything that is judged, as it was logged; what rounding may turn comes last."""
    found = [(trainer, at, key) for (trainer, key), rows in course.items() if _judged(key) for at in range(len(rows))]
    return sorted(found, key=lambda one: (one[0], one[1], _jumps(one[2]), one[2]))


def _judged(key: str) -> bool:
    name = canonical(key)
    known = not MEASURED.search(key.lower()) if name is None else METRICS[name].repeatable
    return (known or key.startswith("eval_")) and not key.endswith(TIMED)


def _unknown(key: str) -> bool:
    """Whether it is a trainer's own, of which nobody knows what it means: it is shown where it differs."""
    return canonical(key) is None and not key.startswith("eval_")


def _decides(key: str) -> bool:
    """Whether it is what is trained with or for: libraries define anew what only describes a training, such as its
    entropy."""
    name = canonical(key)
    return key.startswith("eval_") or name in STEERS or (name is not None and METRICS[name].worse != "both")


def _jumps(key: str) -> bool:
    """Whether it counts cases, one of which rounding may turn; of somebody's own evaluation that is not known."""
    name = canonical(key)
    return key.startswith("eval_") if name is None else METRICS[name].share or "accurac" in name


def _apart(key: str, here: float, there: float) -> float:
    if here == there or (math.isnan(here) and math.isnan(there)):
        return 0.0
    if not (math.isfinite(here) and math.isfinite(there)):
        return math.inf
    digit = max(last_digit(repr(here)), last_digit(repr(there))) if key == "loss" else 0.0  # trainers round this one
    scale = max(abs(here), abs(there), 0.0 if key in BY_THEIR_SIZE else 1.0)
    return max(abs(here - there) - digit, 0.0) / scale


def other_tensors(baseline: Sequence[Recording], now: Recording) -> Found:
    """Each way in which saved tensors differ; a key names the file, so that one is not hidden by another."""
    gradients = [name for name in baseline[0].course if name[1] == "grad_norm"]
    same = bool(gradients) and all(now.course.get(name) == baseline[0].course[name] for name in gradients)
    sides = [one.tensors for one in (*baseline, now)]
    yield from _other_files("saved.file", sides, partial(_tensors_apart, same=same))


def _tensors_apart(name: str, here: Content, there: Content, again: Sequence[Content], *, same: bool) -> Found:
    """`same`: every gradient before was, to the last digit, so that one step's rounding is all that is left, as far as
    a tensor's type tells it."""
    for key, clause, found in (
        ("saved.names", "lacks", sorted(here.keys() - there.keys())),
        ("saved.more", "also holds", sorted(there.keys() - here.keys())),
    ):
        if found:
            yield Symptom(f"{key}:{name}", f"{name} {clause} {listed(found, 1)}")
    for tensor in sorted(here.keys() & there.keys()):
        (shape, kind, norm, sums), (other_shape, other_kind, other, other_sums) = here[tensor], there[tensor]
        finest = 2.0 ** -mantissa(kind.removeprefix("torch."))
        apart = max(ROUNDING["fp32"] * GROWS, finest) if same else LOOSEST
        if (shape, kind) != (other_shape, other_kind):
            yield Symptom(f"saved.shape:{name}", f"{tensor} in {name} {kind} {shape} → {other_kind} {other_shape}")
        elif None in (norm, other) or any(one.get(tensor) != here[tensor] for one in again):
            continue
        elif not math.isclose(norm, other, rel_tol=apart):
            yield Symptom(f"saved.values:{name}", f"norm of {tensor} in {name} {told_apart(norm, other)}")
        elif same and abs(sums - other_sums) > apart * max(norm, other):
            yield Symptom(f"saved.values:{name}", f"other values in {tensor} of {name}, of the same norm")


def other_texts(baseline: Sequence[Recording], now: Recording) -> Found:
    """Each text that is saved no more, or no longer says what it said: whoever reads it may be another program, which
    looks where it always looked, and does not have another class to read it. Other settings, and one that is assumed
    anyway, are shown and do not decide, unless the key is still there and says that there is none."""
    found = _other_files("saved.text", [one.texts for one in (*baseline, now)], _texts_apart)
    yield from sorted(found, key=lambda one: one.key.startswith((READER, SETTING)))  # first what is not there


def _texts_apart(name: str, here: Content, there: Content, again: Sequence[Content]) -> Found:
    sides = [{key: value for key, (value, _) in one.items()} for one in (here, *again, there)]
    said, *repeated, other = sides
    told = [key for key in sorted(said) if all(one.get(key) is not None for one in (said, *repeated))]
    lost = [key for key in told if key not in other]
    for kind, verb, found in (
        ("saved.keys", "lacks", [key for key in lost if not here[key][1]]),
        ("saved.emptied", "holds nothing for", [key for key in told if other.get(key, "") is None]),
        (f"{BESIDES}text", "lacks", [key for key in lost if here[key][1]]),
    ):
        if found:
            yield Symptom(f"{kind}:{name}", f"{name} {verb} {listed(found, 1)}")
    for key in told:
        value, now = said[key], other.get(key)
        if value and now and now != value and all(one[key] == value for one in repeated):
            kind = READER if key.endswith(READERS) else SETTING
            yield Symptom(f"{kind}:{name}:{key}", f"{key} in {name} {value} → {now}")


def _other_files(missing: str, sides: Sequence[Files], apart: Callable[..., Found]) -> Found:
    """What `apart` says of each file that every repetition saves, in the order in which files of one name are saved.
    `sides`: the baseline, each time, and the candidate."""
    first, *again, now = map(_by_occurrence, sides)
    for (name, at), here in first.items():
        repeated = [one[name, at] for one in again if (name, at) in one]
        if len(repeated) < len(again):
            continue
        if (name, at) in now:
            yield from apart(name, here, now[name, at], repeated)
        else:
            yield Symptom(f"{missing}:{name}", f"{name} is saved {at} times only" if at else f"{name} is not saved")


def _by_occurrence(files: Files) -> dict[tuple[str, int], Content]:
    found: dict[tuple[str, int], Content] = {}
    for name, content in files:
        found[name, sum(file == name for file, _ in found)] = content
    return found


def dearer(before: Sequence[Costs], now: Sequence[Costs], unit: float) -> Found:
    """Each cost that is higher in all repetitions of the candidate than in any of the baseline."""
    for key, (what, unit_name, least) in COSTS.items():
        here, there = ([one[key] for one in side if key in one] for side in (before, now))
        if not here or not there or len(here) < len(before) or len(there) < len(now):
            continue
        scale = unit if key == "cost.outside" else 1.0
        known = len(there) >= REPEATS
        apart = min(there) > MORE * max(here) and (not known or median(there) > TYPICALLY * median(here))
        if apart and (median(there) - median(here)) * scale > least:
            values = f"{median(here) * scale:.3g} → {median(there) * scale:.3g} {unit_name}"
            yield Symptom(key, f"{what} {values} ({median(there) / median(here):.2f} times)")
