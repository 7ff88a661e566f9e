"""What two sets of packages did under one command (transcript.py), compared: the course of the trainings from the first
step to the last evaluation, the tensors that were saved, and what all of it cost."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TypeVar

from canary_mlflow.tracking.describing.schema import canonical
from gates.facts.exact import GROWS, last_digit, renamed
from gates.facts.regressions import mantissa
from gates.model.metrics import METRICS
from gates.model.wording import listed, told_apart

Course = Mapping[tuple[int, str], Sequence[tuple[int, float]]]
"""Trainer, key → step and value, in the order in which they were logged."""
Tensors = Mapping[str, tuple[tuple[int, ...], str, float | None, float | None]]
"""Name → shape, type, norm, and the sum of every second element less the others."""

Held = TypeVar("Held")

TIMED = ("runtime", "per_second", "_time")
"""How keys end that read a clock."""
MEASURED = re.compile("time|second|speed|memory|profil|^train_loss$")
"""In a key that nobody knows: that it is measured, or of all steps together, with the rounding of all."""
BY_THEIR_SIZE = ("loss", "learning_rate", "eval_loss")
"""Whose rounding is relative to their own size; others are differences or means of larger numbers."""
STEERS = ("grad_norm", "learning_rate", "kl")
LOGGED, BESIDES = "logged.", "besides."
"""How keys of a course begin: those that decide, those that are shown."""
JUMP = 0.01
"""Times GROWS: how far a share may be off where something else is off by rounding."""
SAVED_APART = 1e-2
SAVED_SAME = 1e-4
"""By how much what is saved may differ, and where every gradient before it was the same, as far as its type tells: peft
0.16 rounds once more than 0.14 as it merges into bfloat16."""
MORE, TYPICALLY = 1.1, 1.2
"""What costs so much more in every repetition than in any of the other side is worse, if in the end their medians are
apart by what the gate lets a cost rise: a busy machine can give three that are all a little higher."""
FEWEST = 3
"""Values that tell a shift from another course."""
REPEATS = 3
LEAST = {"cost.outside": 0.5, "cost.loading": 32.0, "cost.memory": 32.0, "cost.step": 0.0}
"""Seconds and MiB that are not worth a word. A package's first use alone takes a quarter of a second more or less from
one release to the next (peft 0.18 → 0.19)."""
READERS = ("_class", "_type", "architectures", "auto_map")
"""How settings end that say which class reads what is saved."""
COSTS = {
    "cost.outside": ("CPU time outside of steps", "s"),
    "cost.loading": ("memory before the first step, without imports,", "MiB"),
    "cost.memory": ("memory that training adds", "MiB"),
    "cost.step": ("a step", "kernels"),
}


@dataclass(frozen=True, kw_only=True)
class Account:
    """What the processes of one command did, in the order in which they began."""

    course: Course
    saved: Sequence[tuple[str, Tensors]]
    texts: Sequence[tuple[str, Mapping[str, bool | None]]] = ()  # name, keys as transcript.keys has them
    values: Sequence[tuple[str, Mapping[str, str]]] = ()  # name, settings as transcript.values has them
    reporters: Mapping[int, frozenset[str]] = field(default_factory=dict)  # of each trainer
    costs: Mapping[str, float] = field(default_factory=dict)
    unit: float = 1.0  # seconds of the loop that `cost.outside` is counted in


def read(folder: Path) -> Account:
    """The transcripts of a probe; an empty account where there is none."""
    told = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    course: dict[tuple[int, str], list[tuple[int, float]]] = {}
    reporters: dict[int, frozenset[str]] = {}
    first = 0
    for one in told:
        reporters |= {first + trainer: frozenset(names) for trainer, names in one["reporters"]}
        for row in one["logged"]:
            for key, value in row["values"].items():
                course.setdefault((first + row["trainer"], key), []).append((row["step"], value))
        first += 1 + max((row["trainer"] for row in one["logged"]), default=-1)
    saved = [
        (one["file"], {name: (tuple(shape), *rest) for name, (shape, *rest) in one["tensors"].items()})
        for process in told for one in process["saved"]
    ]  # fmt: skip
    kernel = median(one["kernel"] for one in told) if told else 1.0
    costs = {"cost.outside": sum(one["outside"] / one["kernel"] for one in told)} if told else {}
    if peaks := [one["memory"] for one in told if len(one["memory"]) == 2]:
        costs["cost.loading"] = max(first for first, _ in peaks)
        costs["cost.memory"] = max(last - first for first, last in peaks)
    texts = [(one["file"], renamed(one["keys"])) for process in told for one in process["texts"]]
    values = [(one["file"], renamed(one["values"])) for process in told for one in process["texts"]]
    return Account(course=course, saved=saved, texts=texts, values=values, reporters=reporters, costs=costs,
                   unit=kernel)  # fmt: skip


def other_course(before: Sequence[Account], now: Account, rounding: float) -> Iterator[tuple[str, str]]:
    """(key, clause) for each metric that takes another course than rounding explains, which grows at most tenfold from
    one step to the next. What the baseline does not repeat itself tells nothing."""
    first, *again = (one.course for one in before)
    steady = {name: first[name] for name in first if all(one.get(name) == first[name] for one in again)}
    known = worst = 0.0  # over all metrics, and from one trainer to the next: weights that differ move all of them
    place = (-1, -1)
    for trainer, at, key in _in_order(steady):
        place, known = (trainer, at), known if place == (trainer, at) else worst
        step, value = steady[trainer, key][at]
        values = now.course.get((trainer, key), ())
        if not values and at == 0 and not _unknown(key):
            kind = LOGGED if key.startswith("eval_") else BESIDES  # a library may call it otherwise
            yield f"{kind}{key}", f"{key} is not logged any more"
        if at >= len(values):
            continue
        apart = _apart(key, value, values[at][1])
        limit = max(worst and JUMP, rounding) if _jumps(key) else max(known, rounding)
        if apart > limit * GROWS:
            kind = LOGGED if _decides(key) and not _shifted(key, steady[trainer, key], values) else BESIDES
            yield f"{kind}{key}", f"{key} of step {step} {told_apart(value, values[at][1])}"
        elif not _jumps(key) and not _unknown(key):  # what is no rounding, as an entropy defined anew, excuses nothing
            worst = max(worst, apart)
    yield from _other_length(before, now)


def _shifted(key: str, here: Sequence[tuple[int, float]], there: Sequence[tuple[int, float]]) -> bool:
    """Whether a schedule's values are the same, logged one step earlier or later (transformers 4.51)."""
    values, others = ([value for _, value in one] for one in (here, there))
    alike = key == "learning_rate" and len(values) == len(others) >= FEWEST
    pairs = ((values[1:], others[:-1]), (values[:-1], others[1:]))
    return alike and any(all(map(math.isclose, left, right)) for left, right in pairs)


def _in_order(course: Course) -> list[tuple[int, int, str]]:
    """Trainer, place and key of everything that is judged, as it was logged; what rounding may turn comes last."""
    found = [(trainer, at, key) for (trainer, key), rows in course.items() if _judged(key) for at in range(len(rows))]
    return sorted(found, key=lambda one: (one[0], one[1], _jumps(one[2]), one[2]))


def _other_length(before: Sequence[Account], now: Account) -> Iterator[tuple[str, str]]:
    for trainer, key in before[0].course:
        first, *again, last = (one.course.get((trainer, key), ()) for one in (*before, now))
        if key == "loss" and last and len(last) != len(first) and all(len(one) == len(first) for one in again):
            yield f"{LOGGED}steps", f"{key} was logged {len(first)} → {len(last)} times"


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


def other_files(before: Sequence[Account], now: Account) -> Iterator[tuple[str, str]]:
    """(key, clause) for each way in which saved tensors differ; a key names the file, so that one is not hidden by
    another."""
    first, *again = (_by_occurrence(one.saved) for one in before)
    theirs = _by_occurrence(now.saved)
    same = _same_course(before[0], now)
    for (name, at), tensors in first.items():
        if any((name, at) not in one for one in again):
            continue
        if (name, at) in theirs:
            steady = {key for key in tensors if all(one[name, at].get(key) == tensors[key] for one in again)}
            yield from _other_tensors(name, tensors, theirs[name, at], steady, same)
        else:
            yield f"saved.file:{name}", f"{name} is saved {at} times only" if at else f"{name} is not saved"


def _same_course(before: Account, now: Account) -> bool:
    """Whether all trainings logged the same gradients, to the last digit."""
    known = [name for name in before.course if name[1] == "grad_norm"]
    return bool(known) and all(now.course.get(name) == before.course[name] for name in known)


def _other_tensors(name: str, here: Tensors, there: Tensors, steady: Set[str], same: bool) -> Iterator[tuple[str, str]]:
    """`steady`: those that the baseline saves alike each time. `same`: nothing differed before."""
    for key, clause, found in (
        ("saved.names", "lacks", sorted(here.keys() - there.keys())),
        ("saved.more", "also holds", sorted(there.keys() - here.keys())),
    ):
        if found:
            yield f"{key}:{name}", f"{name} {clause} {listed(found, 1)}"
    for tensor in sorted(here.keys() & there.keys()):
        (shape, kind, norm, sums), (other_shape, other_kind, other, other_sums) = here[tensor], there[tensor]
        apart = max(SAVED_SAME, 2.0 ** -mantissa(kind.removeprefix("torch."))) if same else SAVED_APART
        if (shape, kind) != (other_shape, other_kind):
            yield f"saved.shape:{name}", f"{tensor} in {name} {kind} {list(shape)} → {other_kind} {list(other_shape)}"
        elif norm is None or other is None or sums is None or other_sums is None or tensor not in steady:
            continue
        elif not math.isclose(norm, other, rel_tol=apart):
            yield f"saved.values:{name}", f"norm of {tensor} in {name} {told_apart(norm, other)}"
        elif same and abs(sums - other_sums) > apart * max(norm, other):
            yield f"saved.values:{name}", f"other values in {tensor} of {name}, of the same norm"


def other_texts(before: Sequence[Account], now: Account) -> Iterator[tuple[str, str]]:
    """(key, clause) for each text that is saved no more, or no longer holds what it held: whoever reads it may be
    another program, which looks where it always looked. A value that it assumes anyway is shown and does not decide,
    unless the key is still there and says that there is none."""
    first, *again = (_by_occurrence(one.texts) for one in before)
    theirs = _by_occurrence(now.texts)
    for (name, at), held in first.items():
        if any((name, at) not in one for one in again):
            continue
        if (name, at) not in theirs:
            yield f"saved.text:{name}", f"{name} is saved {at} times only" if at else f"{name} is not saved"
            continue
        there = theirs[name, at]
        steady = [key for key in sorted(held) if all(one[name, at].get(key) is not None for one in again)]
        told = [key for key in steady if held[key] is not None]
        for kind, verb, found in (
            ("saved.keys", "lacks", [key for key in told if key not in there and not held[key]]),
            ("saved.emptied", "holds nothing for", [key for key in told if key in there and there[key] is None]),
            (f"{BESIDES}text", "lacks", [key for key in told if key not in there and held[key]]),
        ):
            if found:
                yield f"{kind}:{name}", f"{name} {verb} {listed(found, 1)}"


def other_values(before: Sequence[Account], now: Account) -> Iterator[tuple[str, str]]:
    """(key, clause) for each saved text that says otherwise what it says every time. That a reader is sent to another
    class blocks, as it may not have that; other settings are shown."""
    first, *again = (_by_occurrence(one.values) for one in before)
    theirs = _by_occurrence(now.values)
    for place, held in first.items():
        there = theirs.get(place, {})
        steady = (key for key in sorted(held) if all(one.get(place, {}).get(key) == held[key] for one in again))
        for key in steady:
            if key in there and there[key] != held[key]:
                kind = "saved.reader" if key.endswith(READERS) else f"{BESIDES}value"
                yield f"{kind}:{place[0]}:{key}", f"{key} in {place[0]} {held[key]} → {there[key]}"


def other_reporters(before: Account, now: Account) -> Iterator[tuple[str, str]]:
    """(key, clause) for what a trainer sends its values to no more."""
    for trainer, names in before.reporters.items():
        for name in sorted(names - now.reporters.get(trainer, names)):
            yield f"reported:{name}", f"values are no longer sent to {name.removesuffix('Callback')}"


def _by_occurrence(saved: Sequence[tuple[str, Held]]) -> dict[tuple[str, int], Held]:
    """Each file's content, in the order in which files of one name were saved."""
    found: dict[tuple[str, int], Held] = {}
    for name, content in saved:
        found[name, sum(file == name for file, _ in found)] = content
    return found


Costs = Mapping[str, float]


def dearer(before: Sequence[Costs], now: Sequence[Costs], unit: float) -> Iterator[tuple[str, str]]:
    """(key, clause) for each cost that is higher in all repetitions of the candidate than in any of the baseline."""
    for key, (what, unit_name) in COSTS.items():
        here, there = ([one[key] for one in side if key in one] for side in (before, now))
        if not here or not there or len(here) < len(before) or len(there) < len(now):
            continue
        scale = unit if key == "cost.outside" else 1.0
        known = len(there) >= REPEATS
        apart = min(there) > MORE * max(here) and (not known or median(there) > TYPICALLY * median(here))
        if apart and (median(there) - median(here)) * scale > LEAST[key]:
            values = f"{median(here) * scale:.3g} → {median(there) * scale:.3g} {unit_name}"
            yield key, f"{what} {values} ({median(there) / median(here):.2f} times)"
