"""What differs exactly between two sides, in a sentence, with the changes that may explain it. A report says this first
after its verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canary_mlflow.reports.changes import difference
from canary_mlflow.reports.decision import Decision
from gates.facts.check import said
from gates.facts.differences import CODE, CONFIGURATION, PACKAGES
from gates.facts.exact import FACTS, bare
from gates.facts.regressions import may_explain
from gates.model.verdict import Difference
from gates.model.wording import listed

SHOWN = 4  # facts that a sentence names
LINKED = 4  # changes that the sentence names
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


def exact(decision: Decision, most: int = SHOWN, *, origins: bool = True) -> str:
    """`Differs exactly: first loss 0.6931 → 2.773 (4 times) in seeds 0, 1, 2. May come from: transformers 4.47.1 →
    4.48.1.`; '' if nothing differs by more than rounding."""
    facts = differing(decision.verdict.differences)
    if not facts:
        return ""
    where = origin(facts, decision.verdict.differences) if origins else ""
    return f"Differs exactly: {listed([*map(said, facts)], most, clauses=True)}.{where}"


def differing(found: Sequence[Difference]) -> list[Difference]:
    """The facts that differ by more than rounding, those that decide first."""
    return sorted((one for one in found if one.group == FACTS and not one.rounding), key=lambda one: not one.decides)


def origin(facts: Sequence[Difference], found: Sequence[Difference]) -> str:
    """A sentence on the changes that the facts may come from; '' if no change is known."""
    causes = dict.fromkeys(difference(cause) for one in facts for cause in explaining(one, found))
    if not causes:
        return ""
    named = list(causes)[:LINKED]
    more = f" and {len(causes) - LINKED} more changes" if len(causes) > LINKED else ""
    return f" May come from: {', '.join(named)}{more}."


def explaining(fact: Difference, found: Sequence[Difference]) -> list[Difference]:
    """The changes that a fact may come from: the setting of the same name; else parts of the configuration and packages
    by rule; else the code."""
    return list(next((causes for causes in map(list, _by_rule(fact, found)) if causes), []))


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
