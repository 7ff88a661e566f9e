"""A mapping (from YAML) becomes a WatchPolicy; what is unknown, missing or impossible is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gates.model.fields import PolicyError, fields, mapping, overlaid, readers, unknown
from gates.model.rules import Scale
from gates.watch.policy import BEGIN, WatchPolicy


def parse_watch(body: Mapping[str, Any]) -> WatchPolicy:
    """Read a watch policy. Every key is required: defaults live in `conf/watch/default.yaml`, not in code.

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
