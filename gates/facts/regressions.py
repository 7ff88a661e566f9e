"""Which differences of exact facts only a regression explains."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from gates.facts.courses import COURSE
from gates.facts.draws import LEAKED, ORDER, draws_explain, of_same_rows, reinforces
from gates.facts.exact import (
    ARGUMENTS,
    FACTS,
    FIRST,
    LOOSEST,
    OF_ORDER,
    REWARDS,
    ROUNDING,
    SEEDED,
    bare,
    defaults_of,
    ends_a_text,
    pairs_of,
    renamed,
    rounding_of,
    unset,
    variant_of,
)
from gates.facts.purpose import may_explain, of_one_version
from gates.model.records import Run
from gates.model.verdict import Difference

MANTISSA = {"bfloat16": 7, "float16": 10, "float32": 23}
FINEST = 52
"""Bits of the mantissa (IEEE 754); of a type that is not named, those of float64."""
IMPLEMENTED = frozenset({"fused", "foreach", "capturable", "differentiable"})
"""Settings of an optimizer that do not change its update."""
OUTCOME = "outcome."
"""Of a variant: how its short training ended, what trained then, and whether it goes on from its checkpoint."""
STATES = ("training.optimizer_state", "training.scheduler_state")
REPEATED = "batches.repeated"
LOST = "lost at the resume"
_OF_TOKENS = re.compile(r"data\.labels\.(held_out\.)?[^.]+\.(.+)")
"""Which label goes with which tokens of a column: where those tokens differ, they say it alone."""
Kind = Callable[[Difference], bool]


def deciding(differences: Sequence[Difference], baseline: Sequence[Run], candidate: Sequence[Run]) -> list[Difference]:
    """The differences of runs of the same work that only a regression explains, marked as such: no setting that
    somebody changed may explain them."""
    runs = (*baseline, *candidate)
    settings = on_purpose(differences, baseline, candidate)
    kinds = OF_EQUAL_DATA if of_same_rows(baseline, candidate) else OF_EQUAL_CODE
    return [
        one
        for one in _that_decide(differences, runs, kinds)
        if not (bare(one.key).startswith(OF_ORDER) and draws_explain(one, bare(one.key), differences, runs))
        and not any(may_explain(setting, bare(one.key)) for setting in settings)
    ]


def regressions(differences: Iterable[Difference], runs: Sequence[Run]) -> list[Difference]:
    """As `deciding`, when it is known that nobody changed the data: the same script with other packages."""
    return _that_decide(differences, runs, OF_EQUAL_SCRIPTS)


def _that_decide(differences: Iterable[Difference], runs: Sequence[Run], kinds: Sequence[Kind]) -> list[Difference]:
    def drawn(key: str) -> bool:
        return bare(key).startswith(SEEDED) and any(_samples_by_rounding(key, run) for run in runs)

    facts = [one for one in differences if one.group == FACTS]
    apart = {one.key for one in facts}
    return [
        replace(one, decides=True)
        for one in facts
        if not one.rounding and any(kind(one) for kind in kinds) and not drawn(one.key)
        and _OF_TOKENS.sub(r"data.tokens.\1\2", one.key) not in apart - {one.key}
    ]  # fmt: skip


def decisive_first(differences: Iterable[Difference]) -> list[Difference]:
    """In the order in which a reader asks for them; what differs by rounding alone comes last."""
    return sorted(differences, key=lambda one: (_rank(one), one.key))


def _rank(one: Difference) -> tuple[bool, bool, bool, bool]:
    leads = bare(one.key).startswith((ORDER, LEAKED)) or any(kind(one) for kind in OF_EQUAL_DATA)
    return one.rounding, not leads, not bare(one.key).startswith((ORDER, LEAKED, FIRST)), not ends_a_text(one.key)


def on_purpose(differences: Sequence[Difference], baseline: Sequence[Run], candidate: Sequence[Run]) -> list[str]:
    """The settings that somebody changed. A default that a library flipped is not among them, as nobody set it on
    either side, nor an argument that came with another release, which the trainer may have set, nor a setting of
    canaries that only one version of them has."""
    sides = [
        (unset(side), {key for run in side for key in renamed(run.configuration)}) for side in (baseline, candidate)
    ]
    upgraded = any(one.group == "packages" for one in differences)
    named = {key for run in baseline for key in (*renamed(run.facts), *defaults_of(run))}

    def by_library(key: str) -> bool:
        known = any(defaults for defaults, _ in sides)
        return known and all(ARGUMENTS + key in defaults or key not in given for defaults, given in sides)

    def of_new_release(key: str) -> bool:
        theirs = any(ARGUMENTS + key in renamed(run.facts) for run in candidate)
        return upgraded and bool(sides[0][0]) and theirs and ARGUMENTS + key not in named

    settings = [one for one in differences if one.group == "configuration"]
    return [
        one.key
        for one in settings
        if not (by_library(one.key) or of_new_release(one.key) or of_one_version(one, baseline, candidate))
    ]


def _trains_less(one: Difference) -> bool:
    if bare(one.key) not in ("parameters.trainable", "parameters.trainable_at_end", f"{OUTCOME}trainable"):
        return False
    return any(int(now) < int(before) for before, now in pairs_of(one).values() if before.isdigit() and now.isdigit())


def _ends_otherwise(one: Difference) -> bool:
    """A variant that used to reach its end, or resume from its checkpoint, and no longer does."""
    key = bare(one.key)
    return key.startswith(OUTCOME) and any(
        before == GOOD_ENDS.get(key) != now for before, now in pairs_of(one).values()
    )


GOOD_ENDS = {
    f"{OUTCOME}ended": "finished",
    f"{OUTCOME}resumed_step": "the same next step",
    **dict.fromkeys((f"{OUTCOME}resumed_{what}" for what in ("model", "optimizer", "scheduler", "random")), "as saved"),
}
"""What training.variant_facts says where all is well."""


def _other_tokens_or_loss(one: Difference) -> bool:
    key = bare(one.key)
    tokens = key == "data.rows" or key.startswith(
        ("data.tokens.", "data.labels.", "first.tokens", "first.labels", "labels.", "evaluated.")
    )
    return tokens or key in {f"{FIRST}{name}.1" for name in ("loss", *REWARDS)}


def _other_gradient(one: Difference) -> bool:
    """Whether the first gradient differs by more than 1 %: a loss may be logged right and trained on wrongly."""
    if bare(one.key) != f"{FIRST}grad_norm.1":
        return False
    return any(not math.isclose(float(before), float(now), rel_tol=1e-2) for before, now in pairs_of(one).values())


def _other_course(one: Difference) -> bool:
    """Whether a later loss differs: the same first step, and then another update, rate or order of the data."""
    return bare(one.key).startswith(f"{FIRST}loss.")


def _other_groups(one: Difference) -> bool:
    """Whether the optimizer decays other parameters, or has another setting that both sides know: the update differs,
    if too little at first to be told from rounding. How it is implemented does not count."""
    if bare(one.key) != "training.groups":
        return False
    try:
        pairs = [(json.loads(before), json.loads(now)) for before, now in pairs_of(one).values()]
    except ValueError:  # cut to its beginning
        return False
    return any(
        len(before) != len(now)
        or any(here[key] != there[key] for here, there in zip(before, now, strict=True)
               for key in (here.keys() & there.keys()) - IMPLEMENTED)
        for before, now in pairs
    )  # fmt: skip


def _coarser(one: Difference) -> bool:
    """Whether a precision, or the type of what trains, has fewer digits than before, in a training that asked for
    neither."""
    key = bare(one.key)
    if key == "training.precision":
        return any(ROUNDING.get(now, 0.0) > ROUNDING.get(before, LOOSEST) for before, now in pairs_of(one).values())
    return key == "parameters.dtype" and any(mantissa(now) < mantissa(before) for before, now in pairs_of(one).values())


def mantissa(types: str) -> int:
    """The mantissa's bits of the coarsest float in `8 of bfloat16, 2 of float32`; of others nothing is said."""
    return min((MANTISSA.get(one.split(" of ")[-1], FINEST) for one in types.split(", ")), default=FINEST)


def _goes_otherwise(one: Difference) -> bool:
    """Another course of the learning rate, a resume without its states, or batches that come again."""
    key, pairs = bare(one.key), pairs_of(one).values()
    lost = key in STATES and any(now == LOST for _, now in pairs)
    return key.startswith(COURSE) or lost or (key == REPEATED and any(int(now) > int(before) for before, now in pairs))


OF_EQUAL_CODE: tuple[Kind, ...] = (_trains_less, _ends_otherwise, _goes_otherwise)
OF_EQUAL_DATA: tuple[Kind, ...] = (*OF_EQUAL_CODE, _other_tokens_or_loss)
OF_EQUAL_SCRIPTS: tuple[Kind, ...] = (*OF_EQUAL_DATA, _other_gradient, _other_course, _other_groups, _coarser)
"""What decides where configuration is the same; where data are known to be, too; where only packages changed."""


def _samples_by_rounding(key: str, run: Run) -> bool:
    """Whether rounding, or a GPU that adds in any order, may draw another token, after which everything differs."""
    steady = rounding_of(run, variant_of(key)) <= ROUNDING["fp32"] and run.hardware.get("backend") == "cpu"
    return not steady and reinforces(run)
