"""The spread to expect, from earlier runs of unchanged code: between the runs of a session, and between sessions.

A history is either sessions, each a group of runs, or single runs in order of time. Between single runs the code may
have changed now and then, which shifts the level; neighbouring runs still show how much runs differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gates.evidence.matching import apart
from gates.evidence.readings import read, yardstick
from gates.model.policy import KnownPriors, Policy
from gates.model.priors import Prior, learn_prior
from gates.model.records import Run
from gates.model.rules import MetricRule, Role, Scale
from gates.policies.rule_parser import LEAST_SPREAD
from gates.stats.comparisons import Values

NAME = "history"
LEAST_RUNS = 10
"""In a row; fewer single runs are no history."""
LEAST_SESSIONS = 4
"""Fewer say nothing of what another session is like."""
MOST_DF = 8.0
"""What a history of single runs may be worth: its noise is not today's for sure."""
KEPT = 0.9
"""Of the differences of neighbours, the smallest: the others may be changes."""
_TRIMMED = 1.25  # for normal differences: root mean square of all / that of the smallest nine tenths


def with_history(policy: Policy, history: Sequence[Sequence[Run]], facts: Mapping[str, str]) -> Policy:
    """The policy with the spreads that a history shows for these facts: groups of runs, or one group in order of
    time."""
    rules: dict[str, tuple[Prior, str, Scale]] = {}
    for rule in policy.resolve(facts).rules:
        prior = None if rule.role is Role.IGNORE else _prior(policy, rule, history)
        if prior is not None:
            rules[rule.name] = (prior, rule.reduction, rule.scale)
    known = KnownPriors(name=NAME, when={}, rules=rules)
    return replace(policy, priors=(*(each for each in policy.priors if each.name != NAME), known)) if rules else policy


def _prior(policy: Policy, rule: MetricRule, history: Sequence[Sequence[Run]]) -> Prior | None:
    groups = [read(policy, rule, runs)[0] for runs in history]
    everyone = [reading for group in groups for reading in group]
    stick = yardstick(replace(policy, priors=()), rule, everyone, everyone) if everyone else ""
    if isinstance(stick, str) or stick.scale is not rule.scale:
        return None
    if len(history) == 1:
        return of_neighbours(stick.harms(groups[0]))
    return of_sessions([apart(rule, stick, group) for group in groups if group])


def of_neighbours(values: Values) -> Prior | None:
    """The spread of single runs in order of time, shape (n,): from the differences of neighbours, without the largest
    tenth."""
    if len(values) < LEAST_RUNS:
        return None
    squares = np.sort(np.diff(values) ** 2)[: math.ceil(KEPT * (len(values) - 1))]
    sd = _TRIMMED * math.sqrt(float(np.mean(squares)) / 2)
    return Prior(sd=max(sd, LEAST_SPREAD), df=min(MOST_DF, (len(values) - 1) * 2 / 3), kind="learnt")


def of_sessions(groups: Sequence[Values]) -> Prior | None:
    """The spread inside sessions and, if there are enough of them, between sessions: how much their means differ beyond
    what their runs explain."""
    several = [group for group in groups if len(group) > 1]
    found = learn_prior([float(np.var(group, ddof=1)) for group in several], [len(group) - 1 for group in several])
    if found is None or len(groups) < LEAST_SESSIONS:
        return found
    means = np.array([math.fsum(group) / len(group) for group in groups])
    explained = found.sd**2 * float(np.mean([1 / len(group) for group in groups]))
    return replace(found, between=math.sqrt(max(0.0, float(np.var(means, ddof=1)) - explained)))
