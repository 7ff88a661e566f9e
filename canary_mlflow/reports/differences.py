"""What differs between the two sides, in sentences: what differs exactly, with the changes that may explain it, what
changed, and the measured causes of a verdict. A report says them in this order, first after its verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from canary_mlflow.gates.facts.check import CODE, CONFIGURATION, PACKAGES, WORKLOAD, missing, said
from canary_mlflow.gates.facts.exact import ARGUMENTS, FACTS, bare
from canary_mlflow.gates.facts.regressions import may_explain
from canary_mlflow.gates.model.verdict import Difference, Outcome, Verdict
from canary_mlflow.gates.model.wording import around_difference, listed, sentence_case
from canary_mlflow.reports.decision import Decision

SHOWN = 6  # differences that a sentence lists, and rows of metrics that a short form has
NAMED = 4  # facts that a sentence names, and changes that they may come from
LONGEST = 40  # characters of a value
VALUES = re.compile(r'[^\s,:"\[\]{}]+')  # in the JSON of a fact
CAUSES = 2  # that are named; after the first, only those that explain much
TOKENS = (("trl", "transformers", "tokenizers", "datasets"), ("data", "max_length", "packing"))
NUMBERS = (
    ("trl", "transformers", "accelerate", "peft", "torch"),
    ("train", "algo", "model", "adapter", "quantization"),
)
SETTINGS = (("trl", "transformers", "accelerate", "peft", "torch"), ("train", "algo", "hardware"))
WEIGHTS = (("peft", "transformers", "trl", "bitsandbytes"), ("adapter", "quantization", "model"))
RULES: tuple[tuple[tuple[str, ...], tuple[tuple[str, ...], tuple[str, ...]]], ...] = (
    (("first.tokens", "first.labels", "data.", "tokenizer."), TOKENS),
    (("first.",), NUMBERS),
    (("parameters.", "adapter."), WEIGHTS),
    (("model.", "generation."), (("transformers", "torch"), ("model",))),
    (("arguments.", "training."), SETTINGS),
)
"""Beginnings of facts → packages and parts of the configuration that they follow from; the first rule counts."""


def exact(decision: Decision) -> str:
    """`Differs exactly: first loss 0.6931 → 2.773 (4 times) in seeds 0, 1, 2. May come from: transformers 4.47.1 →
    4.48.1.`; '' if nothing differs by more than rounding."""
    facts = differing(decision.verdict.differences)
    if not facts:
        return ""
    named = listed([*map(said, facts)], NAMED, clauses=True)
    return f"Differs exactly: {named}.{origin(facts, decision.verdict.differences)}"


def restated(fact: Difference, found: Sequence[Difference]) -> bool:
    """Whether it only says again what changed settings say: the argument of the same name, or an optimizer's groups in
    which nothing else differs."""
    own = fact.key.rpartition(".")[2]
    if fact.group != FACTS or not (bare(fact.key).startswith(ARGUMENTS) or own == "groups"):
        return False
    known = {(one.baseline, one.candidate) for one in found if one.group == CONFIGURATION
             and (own == "groups" or one.key.rpartition(".")[2] == own)}  # fmt: skip
    here, there = (VALUES.findall(text) for text in (fact.baseline, fact.candidate))
    return len(here) == len(there) and {pair for pair in zip(here, there, strict=True) if pair[0] != pair[1]} <= known


def differing(found: Sequence[Difference]) -> list[Difference]:
    """The facts that differ by more than rounding, those that decide first."""
    return sorted((one for one in found if one.group == FACTS and not one.rounding), key=lambda one: not one.decides)


def origin(facts: Sequence[Difference], found: Sequence[Difference]) -> str:
    """A sentence on the changes that the facts may come from; '' if no change is known."""
    causes = list(dict.fromkeys(difference(cause) for one in facts for cause in explaining(one, found)))
    if not causes:
        return ""
    more = f" and {len(causes) - NAMED} more changes" if len(causes) > NAMED else ""
    return f" May come from: {', '.join(causes[:NAMED])}{more}."


def explaining(fact: Difference, found: Sequence[Difference]) -> list[Difference]:
    """The changes that a fact may come from: the setting of the same name; else parts of the configuration and packages
    by rule; else the code."""
    return next((causes for causes in map(list, _by_rule(fact, found)) if causes), [])


def _by_rule(fact: Difference, found: Sequence[Difference]) -> Iterator[Iterator[Difference]]:
    packages, parts = next((causes for heads, causes in RULES if bare(fact.key).startswith(heads)), ((), ()))
    settings = [one for one in found if one.group == CONFIGURATION and may_explain(one.key, bare(fact.key))]
    own = fact.key.rpartition(".")[2]
    yield (one for one in settings if one.key.rpartition(".")[2] == own)
    yield (
        one
        for one in found
        if (one in settings and set(one.key.split(".")) & set(parts)) or (one.group == PACKAGES and one.key in packages)
    )
    yield iter(settings)
    yield (one for one in found if one.group == CODE)


def changed(verdict: Verdict) -> str:
    """`Changed: train.learning_rate 0.002 → 0.02; trl 1.15.0 → 1.16.0.`; '' if nothing was compared."""
    if not verdict.baseline_runs or not verdict.candidate_runs:
        return ""
    found = [one for one in verdict.differences if one.group != FACTS]
    if found:
        return f"Changed: {listed([*map(difference, found)], SHOWN, clauses=True)}.{unknown(verdict)}"
    if verdict.compared:
        return f"Changed: nothing that is recorded ({', '.join(compared(verdict))}).{unknown(verdict)}"
    return "Changed: unknown, the runs of both sides do not say what they were made with."


def difference(one: Difference) -> str:
    """`trl 1.15.0 → 1.16.0`."""
    by = " (by rounding)" if one.rounding else ""
    before, now = around_difference(one.baseline, one.candidate, LONGEST)
    return f"{one.key} {before} → {now}{by}"


def compared(verdict: Verdict) -> list[str]:
    """The groups that both sides recorded and in which nothing differs; the workload belongs to the configuration if
    that was compared."""
    other = {one.group for one in verdict.differences if not one.rounding}
    left_out = {WORKLOAD} if CONFIGURATION in verdict.compared else set()
    return [group for group in verdict.compared if group not in other | left_out]


def unknown(verdict: Verdict) -> str:
    """The groups that are not recorded on both sides, so that nobody takes them for equal; '' if there are none."""
    left_out = missing([*verdict.compared, WORKLOAD])
    return f" Missing on one or both sides: {', '.join(left_out)}." if verdict.compared and left_out else ""


def because(verdict: Verdict) -> str:
    """`Measured cause: waiting for data 4 → 29 ms explains 92 % of the slower step (time.data_wait).`; '' if nothing
    explains the verdict, or if it is PASS."""
    found = [f"{one.said} ({one.rule})" for one in verdict.causes[:CAUSES]]
    if verdict.outcome is Outcome.PASS or not found:
        return ""
    return f"Measured cause{'s' if len(found) > 1 else ''}: {'; '.join(found)}."


def all_causes(verdict: Verdict) -> list[str]:
    """All causes, one sentence each; if a verdict other than PASS has none, a sentence that says so."""
    if verdict.outcome is Outcome.PASS or not verdict.baseline_runs:
        return []
    return [f"{sentence_case(one.said)} ({one.rule})." for one in verdict.causes] or ["No cause found."]
