"""Compares two sets of packages by what one command did with each: exact facts, exceptions, invariants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from canary_mlflow.upgrading.probing import Probe
from gates.facts.check import said
from gates.facts.exact import FACTS, bare, fact_differences, regressions
from gates.model.records import Run
from gates.model.verdict import Difference

CRASH = "crash"
INVARIANTS = "invariants"
NONFINITE = "nonfinite"
DEFAULTED = ("arguments.", "model.", "generation.", "adapter.")


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """One thing that blocks: its key, by which it is recognised with another set of packages, and a clause."""

    key: str
    said: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a set of packages does differently. `open`: why that cannot be told, in a clause; '' if it can."""

    symptoms: tuple[Symptom, ...]
    differences: tuple[Difference, ...]
    open: str = ""

    @property
    def blocks(self) -> bool:
        """Whether it is shown to be worse."""
        return bool(self.symptoms)

    @property
    def flipped(self) -> tuple[Difference, ...]:
        """Settings that nobody gave and that a library now resolves differently."""
        return tuple(one for one in self.differences if bare(one.key).startswith(DEFAULTED))

    def shows(self, others: Sequence[Symptom]) -> bool:
        """Whether it has one of these symptoms."""
        return not {one.key for one in self.symptoms}.isdisjoint(one.key for one in others)


def compare(before: Probe, now: Probe, again: Probe | None = None) -> Finding:
    """What the candidate's probe shows against the baseline's. `again`: the baseline's, repeated; whatever differs
    between those two is not reproducible, as in a script without a seed, and tells nothing."""
    if before.ended:
        return Finding(symptoms=(), differences=(), open=f"the command fails with the packages at hand: {before.ended}")
    crash = (Symptom(key=f"{CRASH}:{now.kind}", said=now.ended),) if now.ended else ()
    if crash and not (before.runs and now.runs):
        return Finding(symptoms=crash, differences=())
    if not before.runs or not now.runs:
        return Finding(symptoms=(), differences=(), open="it recorded no run; expected CanaryCallback in the training")
    baseline = (*before.runs, *(again.runs if again else ()))
    found = fact_differences(baseline, now.runs)
    decides = {one.key: one for one in regressions(found, (*baseline, *now.runs))}
    facts = tuple(decides.get(one.key, one) for one in found)
    symptoms = [Symptom(key=one.key, said=said(one)) for one in decides.values()]
    unknown = "" if any(run.facts for run in now.runs) else "its runs recorded no facts"
    return Finding(
        symptoms=(*crash, *symptoms, *_hard(baseline, now.runs)),
        differences=facts,
        open="" if crash else unknown,
    )


def _hard(before: Sequence[Run], now: Sequence[Run]) -> Iterator[Symptom]:
    """Symptoms that need no comparison of numbers, only that the other side does not have them."""
    for run in now:
        if run.invariants.startswith("broken") and not any(one.invariants.startswith("broken") for one in before):
            yield Symptom(key=INVARIANTS, said=run.invariants.partition(":")[2].strip())
        if run.nan_steps + run.inf_steps and not any(one.nan_steps + one.inf_steps for one in before):
            yield Symptom(key=NONFINITE, said=f"{run.nan_steps + run.inf_steps} steps with NaN or infinities")


def other_facts(finding: Finding) -> list[Difference]:
    """The facts that differ beyond rounding, those that decide first."""
    return sorted((one for one in finding.differences if one.group == FACTS and not one.rounding),
                  key=lambda one: not one.decides)  # fmt: skip
