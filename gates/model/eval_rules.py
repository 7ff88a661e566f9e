"""The section `evals:` of a policy: how benchmarks are judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

from canary_mlflow.gates.model.fields import (
    PolicyError,
    choice,
    fields,
    mapping,
    number,
    optional,
    plain,
    readers,
    some_fields,
    text,
    words,
)
from canary_mlflow.gates.model.rules import Role

SUITE, WEIGHTS, REQUIRED = "suite", "weights", "required"
_MARGIN = number(0, above=True)


class About(StrEnum):
    """What is asked: whether these weights are worse, or whether the recipe that made them is, with any seed."""

    WEIGHTS = "weights"
    RECIPE = "recipe"


def _names(path: str, value: Any) -> tuple[str, ...]:
    return () if value in ([], ()) else words(path, value)


@dataclass(frozen=True, kw_only=True)
class EvalRule:
    """How one benchmark is judged. `margin`: the largest loss tolerated, in the score's own unit. `share`: and no more
    than this share of the baseline's score. `group`: where a record names its group. `prior`: the SD expected between
    seeds. `may_differ`: facts that need not agree."""

    margin: Annotated[float, _MARGIN]
    role: Annotated[Role, choice(Role, kept_for={Role.HARD: "a benchmark needs a baseline"})] = Role.GATE
    share: Annotated[float | None, optional(number(0, 1, above=True))] = None
    group: Annotated[str | None, optional(text)] = None
    prior: Annotated[float, number(0, above=True)] = 0.01
    may_differ: Annotated[tuple[str, ...], _names] = ()
    about: Annotated[About, choice(About)] = About.WEIGHTS

    @property
    def decides(self) -> bool:
        """Whether harm beyond the limit blocks."""
        return self.role in (Role.GATE, Role.GUARD)


@dataclass(frozen=True, kw_only=True)
class EvalRules:
    """The benchmarks by name. `suite`: the gate over those that decide: their mean may lose no more than this.
    `sealed`: in a registry, only what was evaluated of the version's sealed weights counts."""

    rules: Mapping[str, EvalRule]
    suite: float | None = None
    sealed: bool = False

    @property
    def deciding(self) -> int:
        """How many tests share the level of BLOCK."""
        return sum(rule.decides for rule in self.rules.values()) + (self.suite is not None)

    def widened(self, times: float) -> EvalRules:
        """The rules with limits `times` as wide."""
        rules = {name: replace(rule, margin=times * rule.margin) for name, rule in self.rules.items()}
        return replace(self, rules=rules, suite=self.suite and times * self.suite)

    def to_dict(self) -> dict[str, Any]:
        """What a policy file holds under `evals`."""
        found: dict[str, Any] = plain(self.rules)
        weights = {WEIGHTS: REQUIRED} if self.sealed else {}
        return {**({SUITE: {"margin": self.suite}} if self.suite else {}), **weights, **found}


def read_evals(path: str, value: Any) -> EvalRules | None:
    """The section as rules; None for no section. Raises PolicyError."""
    if value is None:
        return None
    found = dict(mapping(path, value))
    suite = fields(f"{path}.{SUITE}", found.pop(SUITE), {"margin": _MARGIN}) if SUITE in found else {}
    weights = found.pop(WEIGHTS, None)
    if weights not in (None, REQUIRED):
        raise PolicyError(f"{path}.{WEIGHTS}: {weights!r}; expected {REQUIRED}, or no such key")
    return EvalRules(
        rules={str(name): _rule(f"{path}.{name}", body) for name, body in found.items()},
        suite=suite.get("margin"),
        sealed=weights == REQUIRED,
    )


def _rule(path: str, body: Any) -> EvalRule:
    keys = some_fields(path, body, readers(EvalRule))
    if "margin" not in keys:
        raise PolicyError(f"{path}: margin missing; expected the largest loss tolerated, such as 0.02 for 2 points")
    return EvalRule(**keys)
