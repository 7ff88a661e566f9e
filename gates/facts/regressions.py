"""Which differences of exact facts only a regression explains: what each fact shows of harm, and which settings that
somebody changed may explain it, by what a setting acts through."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from canary_mlflow.gates.facts.exact import (
    ARGUMENTS,
    FACTS,
    FIRST,
    LEAKED,
    LOOSEST,
    OF_ORDER,
    ORDER,
    ROUNDING,
    SEEDED,
    TOKENS,
    bare,
    defaults_of,
    ends_a_text,
    pairs_of,
    reinforces,
    renamed,
    rounding_of,
    unset,
    variant_of,
)
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.sides import ABSENT, same_tokens
from canary_mlflow.gates.model.verdict import Difference

MANTISSA = {"bfloat16": 7, "float16": 10, "float32": 23}
FINEST = sys.float_info.mant_dig - 1
"""Bits of the mantissa (IEEE 754); of a type that is not named, those of float64."""
IMPLEMENTED = frozenset({"fused", "foreach", "capturable", "differentiable"})
"""Settings of an optimizer that do not change its update."""
LOST = "lost at the resume"
_OF_TOKENS = re.compile(r"data\.labels\.(held_out\.)?[^.]+\.(.+)")
"""Which label goes with which tokens of a column: where those tokens differ, they say it alone."""

CANARY = "tier.name"  # a key that only a canary's configuration has
RECORDS, LOADING, SCHEDULE, UPDATES = "records", "loading", "schedule", "updates"
NUMBERS, WEIGHTS, ANYTHING = "numbers", "weights", "anything"
_KINDS = {
    RECORDS: ("best_model", "disable_tqdm", "eval_accum", "eval_batch", "eval_delay", "eval_st", "fault_", "hub_",
              "log_level", "logging_", "peft_version", "push_to", "report_to", "save_on", "save_safe", "save_st",
              "save_total", "tracking_", "transformers_version"),
    LOADING: ("dataloader_num", "dataloader_pers", "dataloader_pin", "dataloader_pref"),
    SCHEDULE: ("learning_rate", "lr_", "optim", "schedul", "warmup"),
    UPDATES: ("adam", "grad_norm", "weight_decay"),
    NUMBERS: ("beta_", "bf16", "dropout", "fp16", "gradient_check", "label_smooth", "neftune", "tf32"),
    WEIGHTS: ("adapter", "bits", "freez", "frozen", "head", "layer", "load_in_", "lora", "model", "module",
              "peft", "quant", "r_", "rank_", "trainable", "unfr"),
}  # fmt: skip
"""Kinds of settings by what their key, or a later part of it, begins with; the first kind counts. RECORDS: what is
looked at and kept on the way, and what libraries say of themselves; also a fault, which stands for an accident.
LOADING: how prepared rows reach a step; several processes deal a stream's rows out otherwise. SCHEDULE: the learning
rate's. UPDATES: the optimizer's other ones; both act through an update alone. NUMBERS: how a step computes its loss.
WEIGHTS: which there are and which of them train. The rest may do ANYTHING, also what a script calls by names of its
own."""

CODE, DATA, SCRIPT = "code", "data", "script"
"""What must be equal for a fact to decide: the configuration alone; the data, too; all but the packages."""


def _other(before: str, now: str) -> bool:
    return before != now


def _fewer(before: str, now: str) -> bool:
    return before.isdigit() and now.isdigit() and int(now) < int(before)


def _more(before: str, now: str) -> bool:
    return int(now) > int(before)


def _lost(before: str, now: str) -> bool:
    return now == LOST


def _was(good: str) -> Callable[[str, str], bool]:
    """A variant that used to reach its end, or resume from its checkpoint, and no longer does; `good` is what
    training.variant_facts says where all is well."""
    return lambda before, now: before == good != now


def _another_gradient(before: str, now: str) -> bool:
    """More than 1 % apart: a loss may be logged right and trained on wrongly."""
    return not math.isclose(float(before), float(now), rel_tol=1e-2)


def _other_groups(before: str, now: str) -> bool:
    """The optimizer decays other parameters, or has another setting that both sides know: the update differs, if too
    little at first to be told from rounding. How it is implemented does not count."""
    try:
        here, there = json.loads(before), json.loads(now)
    except ValueError:  # cut to its beginning
        return False
    return len(here) != len(there) or any(
        one[key] != other[key]
        for one, other in zip(here, there, strict=True)
        for key in (one.keys() & other.keys()) - IMPLEMENTED
    )


def _coarser(before: str, now: str) -> bool:
    """A precision with fewer digits than before, in a training that asked for neither."""
    return ROUNDING.get(now, 0.0) > ROUNDING.get(before, LOOSEST)


def _coarser_type(before: str, now: str) -> bool:
    return mantissa(now) < mantissa(before)


def mantissa(types: str) -> int:
    """The mantissa's bits of the coarsest float in `8 of bfloat16, 2 of float32`; of others nothing is said."""
    return min((MANTISSA.get(one.split(" of ")[-1], FINEST) for one in types.split(", ")), default=FINEST)


class FactKind(NamedTuple):
    """What facts that begin so tell. `equal`: what must be for them to decide, "" for never. `harm`: whether two values
    show any. `by`: the kinds of settings that may explain them. What trains follows from nothing but what somebody says
    about it; tokens and the first loss come before any update."""

    begins: tuple[str, ...]
    equal: str
    harm: Callable[[str, str], bool]
    by: frozenset[str]


_AFTER = frozenset({LOADING, SCHEDULE, UPDATES, NUMBERS, WEIGHTS, ANYTHING})
_BEFORE = frozenset({LOADING, NUMBERS, WEIGHTS, ANYTHING})
_ROWS = frozenset({LOADING, WEIGHTS, ANYTHING})
_SAVED = ("outcome.resumed_model", "outcome.resumed_optimizer", "outcome.resumed_scheduler", "outcome.resumed_random")
FACT_KINDS = (
    FactKind(("parameters.trainable", "outcome.trainable"), CODE, _fewer, frozenset({WEIGHTS})),
    FactKind(("outcome.ended",), CODE, _was("finished"), _AFTER),
    FactKind(("outcome.resumed_step",), CODE, _was("the same next step"), _AFTER),
    FactKind(_SAVED, CODE, _was("as saved"), _AFTER),
    FactKind(("course.",), CODE, _other, frozenset({SCHEDULE, ANYTHING})),
    FactKind(("training.optimizer_state", "training.scheduler_state"), CODE, _lost, frozenset({SCHEDULE, UPDATES})),
    FactKind(("batches.repeated",), CODE, _more, frozenset({ANYTHING})),
    FactKind(("evaluated.weights",), DATA, _other, frozenset({NUMBERS, WEIGHTS, ANYTHING})),
    FactKind(("data.rows", "data.tokens.", "data.labels.", "evaluated."), DATA, _other, frozenset({WEIGHTS, ANYTHING})),
    FactKind(("first.tokens", "first.labels", "labels."), DATA, _other, _ROWS),
    FactKind(("first.loss.1", "first.reward_mean.1", "first.score_mean.1"), DATA, _other, _BEFORE),
    FactKind(("first.grad_norm.1",), SCRIPT, _another_gradient, _AFTER),
    FactKind(("first.loss.",), SCRIPT, _other, _AFTER),
    FactKind(("training.groups",), SCRIPT, _other_groups, _AFTER),
    FactKind(("training.precision",), SCRIPT, _coarser, _AFTER),
    FactKind(("parameters.dtype",), SCRIPT, _coarser_type, _AFTER),
    FactKind(("data.",), "", _other, frozenset({WEIGHTS, ANYTHING})),
    FactKind(("batches.",), "", _other, frozenset({ANYTHING})),
    FactKind(("",), "", _other, _AFTER),
)
"""By the beginnings of facts; the first line counts."""


def kind_of(fact: str) -> FactKind:
    """The kind of a fact without its variant, such as `first.loss.1`."""
    return next(one for one in FACT_KINDS if fact.startswith(one.begins))


def may_explain(setting: str, fact: str) -> bool:
    """Whether a change of the setting (`train.learning_rate`, or an argument in a script of one's own) may be why the
    fact (without its variant) differs."""
    words = re.split(r"[._/-]", setting)
    parts = [f"{'_'.join(words[at:])}_" for at in range(len(words))]
    kind = next((kind for kind, heads in _KINDS.items() if any(part.startswith(heads) for part in parts)), ANYTHING)
    return kind in kind_of(fact).by


def deciding(differences: Sequence[Difference], baseline: Sequence[Run], candidate: Sequence[Run]) -> list[Difference]:
    """The differences of runs of the same work that only a regression explains, marked as such: no setting that
    somebody changed may explain them."""
    runs = (*baseline, *candidate)
    settings = on_purpose(differences, baseline, candidate)
    equal = (CODE, DATA) if of_same_rows(baseline, candidate) else (CODE,)
    return [
        one
        for one in _that_decide(differences, runs, equal)
        if not (bare(one.key).startswith(OF_ORDER) and draws_explain(one, differences, runs))
        and not any(may_explain(setting, bare(one.key)) for setting in settings)
    ]


def regressions(differences: Iterable[Difference], runs: Sequence[Run]) -> list[Difference]:
    """As `deciding`, when it is known that nobody changed the data: the same script with other packages."""
    return _that_decide(differences, runs, (CODE, DATA, SCRIPT))


def _that_decide(differences: Iterable[Difference], runs: Sequence[Run], equal: Sequence[str]) -> list[Difference]:
    def drawn(key: str) -> bool:
        return bare(key).startswith(SEEDED) and any(_samples_by_rounding(key, run) for run in runs)

    facts = [one for one in differences if one.group == FACTS]
    apart = {one.key for one in facts}
    return [
        replace(one, decides=True)
        for one in facts
        if not one.rounding and _harms(one, equal) and not drawn(one.key)
        and _OF_TOKENS.sub(r"data.tokens.\1\2", one.key) not in apart - {one.key}
    ]  # fmt: skip


def _harms(one: Difference, equal: Sequence[str]) -> bool:
    kind = kind_of(bare(one.key))
    return kind.equal in equal and any(kind.harm(before, now) for before, now in pairs_of(one).values())


def _samples_by_rounding(key: str, run: Run) -> bool:
    """Whether rounding, or a GPU that adds in any order, may draw another token, after which everything differs."""
    steady = rounding_of(run, variant_of(key)) <= ROUNDING["fp32"] and run.hardware.get("backend") == "cpu"
    return not steady and reinforces(run)


def draws_explain(one: Difference, among: Iterable[Difference], runs: Sequence[Run]) -> bool:
    """Whether its rows stand in another order wherever this fact of a run's steps differs. First steps of the same
    tokens are of the same rows whatever comes after them."""
    fact = bare(one.key)
    variant = one.key.removesuffix(fact)
    tokens = f"{variant}{TOKENS}"
    apart = {each.key: each.seeds for each in among if each.key.startswith((f"{variant}{ORDER}", tokens))}
    alike = {run.seed for run in runs} - {run.seed for run in runs if tokens not in run.facts}
    alike -= {*apart.pop(tokens, ())}
    moved = {seed for seeds in apart.values() for seed in seeds}
    return {*one.seeds} <= (moved - alike if fact.startswith(FIRST) else moved)


def of_same_rows(baseline: Sequence[Run], candidate: Sequence[Run]) -> bool:
    """Whether the records of runs of the same work show that all trained on the same rows, not only on as many. Rows of
    the same ids are the same, whatever is learned of them."""
    return same_tokens("train_data", baseline, candidate, "ids") or all(map(_knows_its_data, (*baseline, *candidate)))


def _knows_its_data(run: Run) -> bool:
    return any(
        (key.startswith("data") and "digest" in key) or (key == "train_data" and ", " in value)
        for key, value in run.workload.items()
    )


def decisive_first(differences: Iterable[Difference]) -> list[Difference]:
    """In the order in which a reader asks for them; what differs by rounding alone comes last."""
    return sorted(differences, key=lambda one: (_rank(one), one.key))


def _rank(one: Difference) -> tuple[bool, bool, bool, bool]:
    of_rows = bare(one.key).startswith((ORDER, LEAKED))
    leads = of_rows or _harms(one, (CODE, DATA))
    return one.rounding, not leads, not (of_rows or bare(one.key).startswith(FIRST)), not ends_a_text(one.key)


def on_purpose(differences: Sequence[Difference], baseline: Sequence[Run], candidate: Sequence[Run]) -> list[str]:
    """The settings that somebody changed. A default that a library flipped is not among them, as nobody set it on
    either side, nor an argument that came with another release, which the trainer may have set, nor a setting of
    canaries that only one version of them has: they know all settings of theirs, so nobody chose it."""
    sides = [
        (unset(side), {key for run in side for key in renamed(run.configuration)}) for side in (baseline, candidate)
    ]
    upgraded = any(one.group == "packages" for one in differences)
    named = {key for run in baseline for key in (*renamed(run.facts), *defaults_of(run))}
    canaries = all(CANARY in run.configuration for run in (*baseline, *candidate))

    def by_library(key: str) -> bool:
        known = any(defaults for defaults, _ in sides)
        return known and all(ARGUMENTS + key in defaults or key not in given for defaults, given in sides)

    def of_new_release(key: str) -> bool:
        theirs = any(ARGUMENTS + key in renamed(run.facts) for run in candidate)
        return upgraded and bool(sides[0][0]) and theirs and ARGUMENTS + key not in named

    return [
        one.key
        for one in differences
        if one.group == "configuration"
        and not (by_library(one.key) or of_new_release(one.key))
        and not (canaries and ABSENT in (one.baseline, one.candidate))
    ]
