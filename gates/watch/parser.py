"""A mapping (from YAML) becomes a WatchPolicy; what is unknown, missing or impossible is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gates.model.policy import PolicyError
from gates.policies.fields import Reader, choice, count, flag, mapping, number, optional, some_fields, text, unknown
from gates.watch.advice import rules as rule_names
from gates.watch.ceilings import CEILINGS
from gates.watch.patterns import SPIKE_ROWS
from gates.watch.policy import (
    BandRules,
    DriftRules,
    FactRules,
    GainRules,
    Harm,
    LossRules,
    OnCritical,
    PatternRules,
    RowRules,
    Scale,
    StreamRule,
    WatchPolicy,
)


def parse_watch(body: Mapping[str, Any]) -> WatchPolicy:
    """Read a watch policy. Every key is required: defaults live in `conf/watch/default.yaml`, not in code.

    Raises PolicyError with one line: the key, the value found, the valid ones.
    """
    own = dict(mapping("watch", body))
    algos = mapping("watch.algos", own.pop("algos", None) or {})
    policy = _whole("watch", own)
    differing = {
        str(algo).lower(): _whole(f"watch.algos.{algo}", _overlaid(own, mapping(f"watch.algos.{algo}", changes)))
        for algo, changes in algos.items()
    }
    return replace(policy, algos=differing)


def _whole(path: str, body: Mapping[str, Any]) -> WatchPolicy:
    policy = WatchPolicy(**_all(path, body, _POLICY), algos={})
    _check(policy)
    return policy


def _overlaid(body: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping `body` with the values in `changes` replaced, mapping by mapping."""
    found = dict(body)
    for key, value in changes.items():
        below = found.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        found[key] = _overlaid(below, value) if both else value  # type: ignore[arg-type]
    return found


def _all(path: str, body: Any, readers: Mapping[str, Reader]) -> dict[str, Any]:
    found = some_fields(path, body, readers)
    missing = [key for key in readers if key not in found]
    if missing:
        raise PolicyError(
            f"{path}: {', '.join(missing)} missing; expected all of {', '.join(readers)}; "
            "write them, or begin the file with 'base: default'"
        )
    return found


def _section(kind: Any, readers: Mapping[str, Reader]) -> Reader:
    return lambda path, value: kind(**_all(path, value, readers))


def _streams(path: str, value: Any) -> Mapping[str, StreamRule]:
    return {
        str(name): StreamRule(stream=str(name), **_all(f"{path}.{name}", rule, _STREAM))
        for name, rule in mapping(path, value).items()
    }


def _list(path: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise PolicyError(f"{path}: found {value!r:.40}; expected a list, [] for none")
    return list(value)


def _silent(path: str, value: Any) -> frozenset[str]:
    names = _list(path, value)
    for name in names:
        if name not in rule_names():
            raise unknown(path, "rule", name, rule_names())
    return frozenset(names)


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
    if policy.patterns.persist > SPIKE_ROWS:
        raise PolicyError(
            f"watch.patterns.persist: found {policy.patterns.persist}; expected at most {SPIKE_ROWS}, the rows among "
            "which a spike is counted"
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


_POSITIVE = number(0, above=True)
_STREAM: dict[str, Reader] = {
    "worse": choice(Harm),
    "scale": choice(Scale),
    "floor": number(0),
    "warn_change": _POSITIVE,
    "critical_change": optional(_POSITIVE),
}
_ROWS: dict[str, Reader] = {
    "burn_in": count(8),
    "burn_in_least": count(8),
    "burn_in_share": number(0, 1, above=True),
    "burn_in_skip": count(0),
    "window": count(3),
    "quiet": count(1),
    "hold": count(2),
    "hold_share": number(0, 1),
    "hold_least": count(2),
}
_DRIFT: dict[str, Reader] = {
    "half_life": number(1),
    "allowance": number(0),
    "warn": _POSITIVE,
    "critical": _POSITIVE,
    "alone": lambda path, value: frozenset(text(path, name) for name in _list(path, value)),
    "streams": _streams,
}
_BAND: dict[str, Reader] = {
    "min_runs": count(2),
    "allowance": number(0),
    "warn": _POSITIVE,
    "critical": _POSITIVE,
    "leap": _POSITIVE,
}
_FACTS: dict[str, Reader] = {
    "nonfinite": flag,
    "loss_scale_rows": count(0),
    "nan_gradient_rows": count(1),
    "zero_loss_rows": count(2),
    "zero_loss_from": number(0),
    "frozen_rows": count(4),
    "flat_range": number(0, 1),
    "no_gain": number(0, 1),
    "no_gain_doubt": number(0),
    "stuck_rows": count(4),
    "stuck_share": number(0, 1),
    "capped_share": number(0, 1, above=True),
    "capped_from": number(0, 1),
    "capped_rows": count(1),
}
_LOSS: dict[str, Reader] = {
    "min_rows": count(5),
    "noise": number(0),
    "floor": number(0),
    "warn_rise": number(0),
    "warn_lost": number(0, 1),
    "critical_rise": number(0),
    "critical_lost": number(0, 1),
    "critical_start": number(0),
}
_GAIN: dict[str, Reader] = {
    "min_rows": count(5),
    "long_window": count(5),
    "noise": number(0),
    "floor": number(0),
    "warn_lost": number(0),
    "critical_lost": number(0),
    "critical_noise": number(0),
}
_PATTERNS: dict[str, Reader] = {
    "grad_spike": optional(number(1, above=True)),
    "no_spread": optional(number(0, 1, above=True)),
    "no_spread_rows": count(1),
    "displaced_share": optional(number(0, above=True)),
    "displaced_times": number(1, above=True),
    "displaced_nats": number(0),
    "persist": count(1),
}
_POLICY: dict[str, Reader] = {
    "name": text,
    "on_critical": choice(OnCritical),
    "silent": lambda path, value: _silent(path, value),
    "phases": lambda path, value: tuple(sorted(count(1)(path, step) for step in _list(path, value))),
    "rows": _section(RowRules, _ROWS),
    "drift": _section(DriftRules, _DRIFT),
    "band": _section(BandRules, _BAND),
    "facts": _section(FactRules, _FACTS),
    "loss": _section(LossRules, _LOSS),
    "gain": _section(GainRules, _GAIN),
    "patterns": _section(PatternRules, _PATTERNS),
    "ceilings": lambda path, value: _all(path, value, {name: optional(number(0)) for name in CEILINGS}),
}
