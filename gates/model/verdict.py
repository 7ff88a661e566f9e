"""What the judge says: a verdict with all its checks, each with a reason and its evidence; to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from canary_mlflow.gates.model.fields import plain
from canary_mlflow.gates.model.items import ItemCounts
from canary_mlflow.gates.model.rules import MetricRule, Role


class Outcome(StrEnum):
    """The three answers. INCONCLUSIVE is an answer: the verdict says why and what would decide."""

    PASS = "PASS"
    BLOCK = "BLOCK"
    INCONCLUSIVE = "INCONCLUSIVE"


class CheckOutcome(StrEnum):
    """The answer of one check; WARN and NOT_JUDGED never decide."""

    PASS = "PASS"
    BLOCK = "BLOCK"
    INCONCLUSIVE = "INCONCLUSIVE"
    WARN = "WARN"
    NOT_JUDGED = "NOT_JUDGED"


class ReasonCode(StrEnum):
    """Why, for machines. Of several open questions, the first here is named: the one to answer before the next."""

    PASS = "pass"
    HARD_GATE = "hard-gate"
    CRASH = "crash"
    REGRESSION = "regression"
    BROKEN_OFF = "broken-off"
    FAILS_ALIKE = "fails-alike"
    NO_BASELINE = "no-baseline"
    NOT_COMPARABLE = "not-comparable"
    FACTS_DIFFER = "facts-differ"
    INVALID_ENVIRONMENT = "invalid-environment"
    SUSPECT_DATA = "suspect-data"
    MISSING_DATA = "missing-data"
    TOO_FEW_RUNS = "too-few-runs"
    TOO_FEW_ITEMS = "too-few-items"
    TOO_NOISY = "too-noisy"
    NEAR_MARGIN = "near-margin"


class Standing(StrEnum):
    """What the whole interval of a change shows, whether or not it decides."""

    BEYOND = "beyond"  # all of it is harm beyond the limit
    WORSE = "worse"  # all of it is harm, some of it within the limit
    OPEN = "open"  # it holds no change


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The numbers behind a check.

    `baseline` and `candidate` are in `unit` (geometric means on the log scale). `change`, its interval and
    `margin` are fractions where `relative` (0.03 = +3 %), else in `unit`, and keep the metric's own
    direction: the margin of a metric that is worse when lower is negative. For metrics that should change in
    neither direction it is positive and holds both ways. `smallest_detectable` is the size of the smallest true harm
    that these runs would block 4 times out of 5. `typical`: the change by the median of pairs of runs. `spread`: the SD
    between runs that the test used, on the scale of the margin (log or unit). `prior`: what else it rests on (shipped,
    calibrated, learnt); `prior_sd` and `prior_df`: that prior's SD and degrees of freedom. `identical`: the series are
    bit-equal, so no test was needed. `items`: of a benchmark.
    """

    unit: str
    baseline: float | None
    candidate: float | None
    baseline_runs: int
    candidate_runs: int
    relative: bool
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None
    margin: float | None = None
    p_harm: float | None = None
    p_noninferior: float | None = None
    smallest_detectable: float | None = None
    paired: bool = False
    typical: float | None = None
    spread: float | None = None
    prior: str = ""
    prior_sd: float | None = None
    prior_df: float | None = None
    identical: bool = False
    items: ItemCounts | None = None

    @property
    def within(self) -> bool:
        """Whether neither end of the change's interval is worse than the margin; True if there is no interval."""
        if self.change_low is None or self.change_high is None or self.margin is None:
            return True
        return self.change_low >= self.margin if self.margin < 0 else self.change_high <= self.margin

    def standing(self, both: bool) -> Standing:
        """Where the whole interval of the change lies; `both`: either direction is harm."""
        if self.change_low is None or self.change_high is None or self.margin is None:
            return Standing.OPEN
        least = self.change_low if self.margin > 0 else -self.change_high  # the smallest harm that it holds
        if both and self.change_high < 0:
            least = 1 / (1 + self.change_high) - 1 if self.relative and self.change_high > -1 else -self.change_high
        return Standing.BEYOND if least > abs(self.margin) else Standing.WORSE if least > 0 else Standing.OPEN


@dataclass(frozen=True, kw_only=True)
class Check:
    """One rule applied. `metric` is the rule's name (its metric, unless the policy has several rules for one).

    `more_runs` is for an INCONCLUSIVE check: runs per side that would decide, None if no number up to 20 would.
    `runs_if_unchanged`: runs per side that would pass it 4 times out of 5 if nothing had changed. `notes`: what else a
    reader should know about its data, such as runs without enough of it.
    """

    metric: str
    role: Role
    outcome: CheckOutcome
    reason: str
    reason_code: ReasonCode | None = None
    evidence: Evidence | None = None
    more_runs: int | None = None
    runs_if_unchanged: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        """The check's name for people: nothing that failed is called `completed`."""
        failed = self.role is Role.HARD and self.outcome in (CheckOutcome.BLOCK, CheckOutcome.INCONCLUSIVE)
        return f"not {self.metric}" if failed and self.metric in ("completed", "learned") else self.metric


def check_of(rule: MetricRule, outcome: CheckOutcome, reason: str, **known: Any) -> Check:
    """The check of a rule; `known`: its other fields."""
    return Check(metric=rule.name, role=rule.role, outcome=outcome, reason=reason, **known)


def undecided(
    rule: MetricRule, reason: str, code: ReasonCode, *, leaves_open: bool | None = None, **known: Any
) -> Check:
    """The check of a rule that these runs cannot answer: INCONCLUSIVE if it leaves the verdict open, as a gate metric
    does unless said otherwise, else NOT_JUDGED."""
    if rule.role is Role.GATE if leaves_open is None else leaves_open:
        return check_of(rule, CheckOutcome.INCONCLUSIVE, reason, reason_code=code, **known)
    return check_of(rule, CheckOutcome.NOT_JUDGED, reason, reason_code=code, **known)


def hard_check(name: str, outcome: CheckOutcome, reason: str, code: ReasonCode | None = None) -> Check:
    """A check that judges no metric, and decides."""
    return Check(metric=name, role=Role.HARD, outcome=outcome, reason=reason, reason_code=code)


def open_check(name: str, reason: str, code: ReasonCode) -> Check:
    """The same, where it cannot be answered."""
    return hard_check(name, CheckOutcome.INCONCLUSIVE, reason, code)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Something recorded that is not the same on both sides. `group`: one of differences.GROUPS.

    For exact facts, `seeds`: those in which it differs, empty if it follows from no seed; values that differ by seed
    are joined in that order. `rounding`: it differs by no more than the precision's own error. `decides`: only a
    regression explains it. Everything else is listed, never judged.
    """

    key: str
    baseline: str
    candidate: str
    group: str = ""
    seeds: tuple[int, ...] = ()
    rounding: bool = False
    decides: bool = False


@dataclass(frozen=True, kw_only=True)
class RootCause:
    """One explanation from what was measured (gates/root_causes): the rule's id and a clause with its numbers.

    `share`: how much of the harm it explains, 0 to 1; None for a sign without such a number. `rank`: the largest is
    named first; it is the share, or where the rule places its sign among the shares.
    """

    rule: str
    said: str
    rank: float
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer, why, and everything needed to compute it again except the series.

    `look`: which look of the policy's plan this was, counted from 1; None for a comparison planned as the only one.
    `planned_runs`: the candidate's runs as a plan counts them, each seed once.
    `notes`: what else a reader should know about the runs, such as which were left out and why, with the checks' notes.
    `compared`: the groups of facts that both sides recorded; no difference listed there means that there is none.
    `causes`: what explains a verdict other than PASS, largest share first.
    `attempt`: which try of the same code against this baseline it was, counted from 1.
    """

    model: str
    candidate_version: str | None
    baseline_version: str | None
    outcome: Outcome
    reason: str
    reason_code: ReasonCode
    checks: tuple[Check, ...]
    differences: tuple[Difference, ...]
    policy: Mapping[str, Any]
    baseline_runs: tuple[str, ...]
    candidate_runs: tuple[str, ...]
    more_runs: int | None
    notes: tuple[str, ...] = ()
    look: int | None = None
    planned_runs: int | None = None
    compared: tuple[str, ...] = ()
    attempt: int = 1
    causes: tuple[RootCause, ...] = ()


def verdict_to_dict(verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain JSON values; NaN and infinity become None."""
    found: dict[str, Any] = plain(verdict)
    for check in found["checks"]:
        if check["evidence"] and check["evidence"]["items"] is None:  # as before there were benchmarks
            del check["evidence"]["items"]
    return found


def verdict_from_dict(plain: Mapping[str, Any]) -> Verdict:
    """Read back what `verdict_to_dict` wrote. Unknown keys are left out, so that newer files stay readable."""
    found: Verdict = _read(Verdict, plain)
    return found


def difference_from_dict(plain: Mapping[str, Any]) -> Difference:
    """Read back one difference of a verdict's JSON."""
    found: Difference = _read(Difference, plain)
    return found


_hints = cache(get_type_hints)


def _read(kind: Any, plain: Any) -> Any:
    """A plain value as what its type says: None, a dataclass, a tuple, a word of an enumeration, or itself."""
    if isinstance(kind, UnionType):  # something or None
        return None if plain is None else _read(get_args(kind)[0], plain)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{key: _read(hints[key], value) for key, value in plain.items() if key in hints})
    if get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], one) for one in plain)
    return kind(plain) if isinstance(kind, type) and issubclass(kind, StrEnum) else plain
