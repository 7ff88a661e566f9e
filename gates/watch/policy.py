"""What the watch looks for, and how soon it speaks; `conf/watch/default.yaml` says what each key means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

from canary_mlflow.gates.model.fields import (
    PolicyError,
    choice,
    count,
    fields,
    flag,
    mapping,
    number,
    optional,
    overlaid,
    readers,
    section,
    text,
    unknown,
)
from canary_mlflow.gates.model.rules import Scale
from canary_mlflow.gates.watch.advice import rules as rule_names

BEGIN = "begin the file with 'base: default'"
# The streams that can have a limit; entropy is the only one that must not fall below its limit.
CEILINGS = ("kl", "entropy", "grad_norm", "reward_std", "kl_target_error")
BEGINNING = 10  # rows that show how a run begins
_POSITIVE = number(0, above=True)
_part = partial(section, instead=BEGIN)


class OnCritical(StrEnum):
    """What a training does at level STOP: only report it, or end. AUTO: a canary's run ends, any other goes on."""

    WARN = "warn"
    STOP = "stop"
    AUTO = "auto"


class Harm(StrEnum):
    """The direction in which a stream gets worse."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, kw_only=True)
class RowRules:
    """How rows are counted; a row is one logged value of a stream."""

    burn_in: Annotated[int, count(8)]
    burn_in_least: Annotated[int, count(8)]
    burn_in_share: Annotated[float, number(0, 1, above=True)]
    burn_in_skip: Annotated[int, count(0)]
    window: Annotated[int, count(3)]
    quiet: Annotated[int, count(1)]
    hold: Annotated[int, count(2)]
    hold_share: Annotated[float, number(0, 1)]
    hold_least: Annotated[int, count(2)]


@dataclass(frozen=True, kw_only=True)
class StreamRule:
    """How one stream drifts into trouble. On the log scale changes are factors, on the identity scale standard
    deviations of the burn-in."""

    stream: str
    worse: Annotated[Harm, choice(Harm)]
    scale: Annotated[Scale, choice(Scale)]
    floor: Annotated[float, number(0)]
    warn_change: Annotated[float, _POSITIVE]
    critical_change: Annotated[float | None, optional(_POSITIVE)]


def _streams(path: str, value: Any) -> Mapping[str, StreamRule]:
    return {
        str(name): StreamRule(stream=str(name), **fields(f"{path}.{name}", rule, readers(StreamRule), BEGIN))
        for name, rule in mapping(path, value).items()
    }


def _list(path: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise PolicyError(f"{path}: found {value!r:.40}; expected a list, [] for none")
    return list(value)


def _names(path: str, value: Any) -> frozenset[str]:
    return frozenset(text(path, name) for name in _list(path, value))


@dataclass(frozen=True, kw_only=True)
class DriftRules:
    """The detector of drifts: a forecast that follows slowly, and the sum of its misses.

    `alone`: the streams that are judged in a run by itself; the others only beside the champion's (`band`).
    """

    half_life: Annotated[float, number(1)]
    allowance: Annotated[float, number(0)]
    warn: Annotated[float, _POSITIVE]
    critical: Annotated[float, _POSITIVE]
    alone: Annotated[frozenset[str], _names]
    streams: Annotated[Mapping[str, StreamRule], _streams]


@dataclass(frozen=True, kw_only=True)
class BandRules:
    """The comparison with the champion's runs at the same step."""

    min_runs: Annotated[int, count(2)]
    allowance: Annotated[float, number(0)]
    warn: Annotated[float, _POSITIVE]
    critical: Annotated[float, _POSITIVE]
    leap: Annotated[float, _POSITIVE]


@dataclass(frozen=True, kw_only=True)
class FactRules:
    """Facts that are true or not, and need no statistics."""

    nonfinite: Annotated[bool, flag]
    untrained_rows: Annotated[int, count(0)]
    zero_loss_rows: Annotated[int, count(2)]
    zero_loss_from: Annotated[float, number(0)]
    frozen_rows: Annotated[int, count(4)]
    flat_range: Annotated[float, number(0, 1)]
    no_gain: Annotated[float, number(0, 1)]
    no_gain_doubt: Annotated[float, number(0)]
    stuck_rows: Annotated[int, count(4)]
    stuck_share: Annotated[float, number(0, 1)]
    capped_share: Annotated[float, number(0, 1, above=True)]
    capped_from: Annotated[float, number(0, 1)]
    capped_rows: Annotated[int, count(1)]
    shrunk_share: Annotated[float, number(0, 1)]


@dataclass(frozen=True, kw_only=True)
class GainRules:
    """When a loss that should fall has risen, or a reward or a margin that should rise has fallen."""

    min_rows: Annotated[int, count(5)]
    window: Annotated[int, count(5)]
    noise: Annotated[float, number(0)]
    floor: Annotated[float, number(0)]
    lost: Annotated[float, number(0)]
    critical_noise: Annotated[float, number(0)]
    critical_margin_noise: Annotated[float, number(0)]


@dataclass(frozen=True, kw_only=True)
class GrowthRules:
    """Factors by which a resource must grow over a run."""

    memory: Annotated[float, number(1, above=True)]
    time: Annotated[float, number(1, above=True)]


@dataclass(frozen=True, kw_only=True)
class PatternRules:
    """The named early signs; None: the rule is off."""

    no_spread: Annotated[float | None, optional(number(0, 1, above=True))]
    no_spread_rows: Annotated[int, count(1)]
    displaced_times: Annotated[float | None, optional(number(1, above=True))]
    displaced_nats: Annotated[float, number(0)]


def _silent(path: str, value: Any) -> frozenset[str]:
    for name in (names := _list(path, value)):
        if name not in rule_names():
            raise unknown(path, "rule", name, rule_names())
    return frozenset(names)


def _phases(path: str, value: Any) -> tuple[int, ...]:
    return tuple(sorted(count(1)(path, step) for step in _list(path, value)))


def _ceilings(path: str, value: Any) -> Mapping[str, float | None]:
    return fields(path, value, {name: optional(number(0)) for name in CEILINGS}, BEGIN)


@dataclass(frozen=True, kw_only=True)
class WatchPolicy:
    """Everything that one watch goes by.

    `silent`: rules that are switched off. `phases`: steps at which the work changes as planned. `ceilings`: stream →
    limit, None if none is set. `algos`: algorithm → the settings that differ for it.
    """

    name: Annotated[str, text]
    on_critical: Annotated[OnCritical, choice(OnCritical)]
    silent: Annotated[frozenset[str], _silent]
    phases: Annotated[tuple[int, ...], _phases]
    rows: Annotated[RowRules, _part(RowRules)]
    drift: Annotated[DriftRules, _part(DriftRules)]
    band: Annotated[BandRules, _part(BandRules)]
    facts: Annotated[FactRules, _part(FactRules)]
    gain: Annotated[GainRules, _part(GainRules)]
    growth: Annotated[GrowthRules, _part(GrowthRules)]
    patterns: Annotated[PatternRules, _part(PatternRules)]
    ceilings: Annotated[Mapping[str, float | None], _ceilings]
    algos: Mapping[str, WatchPolicy]

    def of(self, algo: str) -> WatchPolicy:
        """What holds for a run of this algorithm."""
        return self.algos.get(algo.lower(), self)


def parse_watch(body: Mapping[str, Any]) -> WatchPolicy:
    """Read a watch policy. Every key is required: defaults live in ``conf/watch/default.yaml``, not in code.

    Raises PolicyError with one line: the key, the value found, the valid ones.
    """
    own = dict(mapping("watch", body))
    algos = mapping("watch.algos", own.pop("algos", None) or {})
    policy = _whole("watch", own)
    differing = {
        str(algo).lower(): _whole(f"watch.algos.{algo}", overlaid(own, mapping(f"watch.algos.{algo}", changes)))
        for algo, changes in algos.items()
    }
    return replace(policy, algos=differing)


def _whole(path: str, body: Mapping[str, Any]) -> WatchPolicy:
    policy = WatchPolicy(**fields(path, body, readers(WatchPolicy), BEGIN), algos={})
    _check(policy)
    return policy


def _check(policy: WatchPolicy) -> None:
    """Refuse combinations that can never warn, or always would."""
    for path, sums in (("drift", policy.drift), ("band", policy.band)):
        if sums.critical < sums.warn:
            raise PolicyError(
                f"watch.{path}.critical: found {sums.critical:g}; expected at least watch.{path}.warn ({sums.warn:g})"
            )
    rows = policy.rows
    if rows.burn_in_least > rows.burn_in:
        raise PolicyError(
            f"watch.rows.burn_in_least: found {rows.burn_in_least}; expected at most watch.rows.burn_in "
            f"({rows.burn_in})"
        )
    if rows.window > rows.burn_in:
        raise PolicyError(
            f"watch.rows.window: found {rows.window}; expected at most watch.rows.burn_in ({rows.burn_in})"
        )
    for name in policy.drift.alone - policy.drift.streams.keys():
        raise unknown("watch.drift.alone", "stream", name, policy.drift.streams)
    for name, rule in policy.drift.streams.items():
        path = f"watch.drift.streams.{name}"
        if rule.scale is Scale.LOG and (rule.floor <= 0 or rule.warn_change <= 1):
            raise PolicyError(
                f"{path}: found floor {rule.floor:g}, warn_change {rule.warn_change:g}; on the log scale expected "
                "floor > 0 and a factor > 1"
            )
        if rule.critical_change is not None and rule.critical_change < rule.warn_change:
            raise PolicyError(
                f"{path}.critical_change: found {rule.critical_change:g}; expected at least warn_change "
                f"({rule.warn_change:g})"
            )
