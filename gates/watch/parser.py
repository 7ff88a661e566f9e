"""A mapping (from YAML) becomes a WatchPolicy; what is unknown, missing or impossible is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gates.fields import Reader, choice, count, flag, mapping, number, optional, some_fields, text
from gates.policy import PolicyError
from gates.watch.ceilings import CEILINGS
from gates.watch.patterns import SPIKE_ROWS
from gates.watch.policy import (
    BandRules,
    DriftRules,
    FactRules,
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
    policy = WatchPolicy(**_all("watch", body, _POLICY))
    _check(policy)
    return policy


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


def _check(policy: WatchPolicy) -> None:
    """Refuse combinations that can never speak, or always would."""
    for path, rules in (("drift", policy.drift), ("band", policy.band)):
        if rules.critical < rules.warn:
            raise PolicyError(
                f"watch.{path}.critical: found {rules.critical:g}; expected at least watch.{path}.warn ({rules.warn:g})"
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
}
_DRIFT: dict[str, Reader] = {
    "half_life": number(1),
    "allowance": number(0),
    "warn": _POSITIVE,
    "critical": _POSITIVE,
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
    "benign_nan_gradients": count(0),
    "nan_gradient_rows": count(1),
    "zero_loss_rows": count(2),
    "zero_loss_from": number(0),
    "frozen_rows": count(4),
    "flat_range": number(0, 1),
    "no_gain": number(0, 1),
    "no_gain_doubt": number(0),
    "capped_share": number(0, 1, above=True),
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
_PATTERNS: dict[str, Reader] = {
    "loss_rising_rows": count(2),
    "loss_rising_change": number(0),
    "grad_spike": number(1, above=True),
    "kl_spike": number(1, above=True),
    "kl_spike_floor": number(0),
    "entropy_drop": number(0, 1, above=True),
    "entropy_rows": count(10),
    "clip_fraction": number(0, 1),
    "persist": count(1),
    "spiral_rows": count(1),
}
_POLICY: dict[str, Reader] = {
    "name": text,
    "on_critical": choice(OnCritical),
    "rows": _section(RowRules, _ROWS),
    "drift": _section(DriftRules, _DRIFT),
    "band": _section(BandRules, _BAND),
    "facts": _section(FactRules, _FACTS),
    "loss": _section(LossRules, _LOSS),
    "patterns": _section(PatternRules, _PATTERNS),
    "ceilings": lambda path, value: _all(path, value, {name: optional(number(0)) for name in CEILINGS}),
}
