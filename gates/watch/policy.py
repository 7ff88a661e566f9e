"""What the watch looks for, and how soon it speaks; `conf/watch/default.yaml` says what each key means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class OnCritical(StrEnum):
    """What a training does at level STOP: only report it, or end. AUTO: a canary's run ends, any other goes on."""

    WARN = "warn"
    STOP = "stop"
    AUTO = "auto"


class Harm(StrEnum):
    """The direction in which a stream gets worse."""

    HIGHER = "higher"
    LOWER = "lower"


class Scale(StrEnum):
    """LOG: changes are factors. IDENTITY: changes are standard deviations of the burn-in."""

    LOG = "log"
    IDENTITY = "identity"


@dataclass(frozen=True, kw_only=True)
class RowRules:
    """How rows are counted; a row is one logged value of a stream."""

    burn_in: int
    burn_in_least: int
    burn_in_share: float
    burn_in_skip: int
    window: int
    quiet: int
    hold: int
    hold_share: float
    hold_least: int


@dataclass(frozen=True, kw_only=True)
class StreamRule:
    """How one stream drifts into trouble."""

    stream: str
    worse: Harm
    scale: Scale
    floor: float
    warn_change: float
    critical_change: float | None


@dataclass(frozen=True, kw_only=True)
class DriftRules:
    """The detector of drifts: a forecast that follows slowly, and the sum of its misses.

    `alone`: the streams that are judged in a run by itself; the others only beside the champion's (`band`).
    """

    half_life: float
    allowance: float
    warn: float
    critical: float
    alone: frozenset[str]
    streams: Mapping[str, StreamRule]


@dataclass(frozen=True, kw_only=True)
class BandRules:
    """The comparison with the champion's runs at the same step."""

    min_runs: int
    allowance: float
    warn: float
    critical: float
    leap: float


@dataclass(frozen=True, kw_only=True)
class FactRules:
    """Facts that are true or not, and need no statistics."""

    nonfinite: bool
    loss_scale_rows: int
    nan_gradient_rows: int
    zero_loss_rows: int
    zero_loss_from: float
    frozen_rows: int
    flat_range: float
    no_gain: float
    no_gain_doubt: float
    stuck_rows: int
    stuck_share: float
    capped_share: float
    capped_from: float
    capped_rows: int


@dataclass(frozen=True, kw_only=True)
class LossRules:
    """When a loss that should fall has risen."""

    min_rows: int
    noise: float
    floor: float
    warn_rise: float
    warn_lost: float
    critical_rise: float
    critical_lost: float
    critical_start: float


@dataclass(frozen=True, kw_only=True)
class GainRules:
    """When a reward, an accuracy or a margin, which should rise, has fallen."""

    min_rows: int
    long_window: int
    noise: float
    floor: float
    warn_lost: float
    critical_lost: float
    critical_noise: float


@dataclass(frozen=True, kw_only=True)
class PatternRules:
    """The named early signs; None: the rule is off."""

    grad_spike: float | None
    no_spread: float | None
    no_spread_rows: int
    displaced_share: float | None
    displaced_times: float
    displaced_nats: float
    persist: int


@dataclass(frozen=True, kw_only=True)
class WatchPolicy:
    """Everything that one watch goes by.

    `silent`: rules that are switched off. `phases`: steps at which the work changes as planned. `ceilings`: stream →
    limit, None if none is set. `algos`: algorithm → the settings that differ for it.
    """

    name: str
    on_critical: OnCritical
    silent: frozenset[str]
    phases: tuple[int, ...]
    rows: RowRules
    drift: DriftRules
    band: BandRules
    facts: FactRules
    loss: LossRules
    gain: GainRules
    patterns: PatternRules
    ceilings: Mapping[str, float | None]
    algos: Mapping[str, WatchPolicy]

    def of(self, algo: str) -> WatchPolicy:
        """What holds for a run of this algorithm."""
        return self.algos.get(algo.lower(), self)
