"""What a run is shown with: the champion's runs, the band of what they did, and how far the run departs from it.

Departures rank charts, and judge nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from canary_mlflow import tags
from canary_mlflow.gates.model.metrics import METRICS
from canary_mlflow.gates.model.records import Series, updates_of
from canary_mlflow.gates.model.rules import MetricRule, Scale
from canary_mlflow.pages.models import champion_session
from canary_mlflow.pages.requests import readers, registry_database, runs_database
from canary_mlflow.pages.series import read_series
from canary_mlflow.pages.verdict import judged
from canary_mlflow.policies import load_policy, policy_names
from canary_mlflow.reports.charts import Band, Steps, Values, envelope, thinned
from canary_mlflow.tracking.reading.database import children_of, read_facts
from canary_mlflow.tracking.reading.facts import RunFacts, count

STAYS = 5  # consecutive rows outside; and rows in a running median, as a single outlier is not a departure
NOISE = 3  # row-to-row standard deviations that may lie outside a band by chance
LITTLE = 0.05  # of the level, or of 1 if that is 0: less is not worth a look, with or without a rule
WAIT = 10  # of the reference's rollouts, in which a run has made two of its own
FARTHEST = 1e9  # for a series that is no longer a number


# ---- which runs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The runs behind a band. `said`: a sentence about them, or on why there are none. `version`: the champion's."""

    said: str
    version: int | None = None
    run_ids: tuple[str, ...] = ()


def champion_of(run: RunFacts, model: str, session: RunFacts | None) -> Reference:
    """The champion whose runs a run is shown with, or a sentence on why there is none. For a judged session, that is
    what it was judged against: also once it, or another version, is champion itself."""
    if not model:
        return Reference(said="No band of a champion: this run belongs to no session of a registered model.")
    unreadable = f"No band of a champion: you may not read that of {model}."
    if not readers().model(model):
        return Reference(said=unreadable)
    version, evidence = champion_session(registry_database(), model)
    known = judged(session) if session is not None and session.tags.get(tags.VERDICT) else None
    told = known[1].verdict if known is not None else None
    before = told if told is not None and told.baseline_runs else None
    if version is None and before is None:
        return Reference(said=f"No band of a champion: {model} has none yet.")
    if before is None and evidence and evidence == run.parent:
        return Reference(said=f"This run is evidence of the champion itself, version {version}.", version=version)
    if told is not None and before is None:
        return Reference(said="No band of a champion: it was judged without one.", version=version)
    ids = before.baseline_runs if before else children_of(runs_database(), [evidence])[evidence]
    runs = list(read_facts(runs_database(), ids).values())
    then = before is not None and before.baseline_version != str(version)
    version = count(before.baseline_version or "") if before else version
    if not all(readers().experiment(one.experiment) for one in runs):
        return Reference(said=unreadable)
    alike = [one for one in runs if workload(one) == workload(run) and one.tags.get(tags.COMPLETED) == "true"]
    if not alike:
        why = f"version {version} did other work than this run" if runs else f"the runs of version {version} are gone"
        return Reference(said=f"No band of the champion: {why}.", version=version)
    what = f"the range of {len(alike)} runs" if len(alike) > 1 else "a line, the one run"
    return Reference(
        said=f"Grey: {what} of the champion{' then' if then else ''}, version {version}.",
        version=version,
        run_ids=tuple(one.run_id for one in alike),
    )


def workload(run: RunFacts) -> dict[str, str]:
    """The workload tags: two runs can be compared if they are equal."""
    return {key: value for key, value in run.tags.items() if key.startswith(tags.WORKLOAD)}


# ---- what they did ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Usual:
    """What the reference's runs did. `width`: the unit of distance outside the band: the largest of the runs' distance
    from each other, their row-to-row noise, and what the gate tolerates, so that a single run has a width too.
    `updates`: as in gates' Run."""

    band: Band
    width: float
    updates: float = math.nan

    def at_pace(self, updates: float) -> Usual:
        """The same where a run is that makes so many steps on each rollout: on the same rollouts."""
        times = updates / self.updates
        if not math.isfinite(times):
            return self
        return replace(self, band=replace(self.band, steps=np.rint(self.band.steps * times).astype(np.int64)))

    def drawn(self, first: int | None = None, last: int | None = None) -> Band:
        """The band, with no more points than a screen needs, of all steps or from `first` to `last`."""
        steps = self.band.steps
        start = 0 if first is None else int(np.searchsorted(steps, first))
        end = len(steps) if last is None else int(np.searchsorted(steps, last, side="right"))
        band = self.band
        return thinned(Band(steps=steps[start:end], low=band.low[start:end], high=band.high[start:end]))


@lru_cache(maxsize=16)
def usual_of(run_ids: tuple[str, ...], names: tuple[str, ...], steps: int, tier: str) -> Mapping[str, Usual]:
    """What the reference's runs did, by name. `steps`: a cache key; the runs are read again when it changes."""
    if not run_ids:
        return {}
    runs = read_series(runs_database(), run_ids, [*names, "iteration_time"])
    rules = shipped_rules(tier)
    found = {name: band_of([run[name] for run in runs.values() if name in run], rules.get(name)) for name in names}
    pace = next(filter(math.isfinite, map(updates_of, runs.values())), math.nan)
    return {name: replace(one, updates=pace) for name, one in found.items() if one is not None}


def band_of(runs: Sequence[Series], rule: MetricRule | None = None) -> Usual | None:
    """The band and width of a series that the gate judges by `rule`; None if no run has a finite value."""
    finite = [one for one in (run.finite_only() for run in runs) if len(one.steps)]
    band = envelope(finite)
    if band is None:
        return None
    noise = float(np.median([row_noise(run.values) for run in finite]))
    level = float(np.median(np.abs(band.high)))
    width = max(
        float(np.median(band.high - band.low)), NOISE * noise, LITTLE * (level or 1.0), tolerated(rule, level), 1e-9
    )
    return Usual(band=band, width=width)


def row_noise(values: Values) -> float:
    """A robust standard deviation of the noise from row to row."""
    return 1.4826 * float(np.median(np.abs(np.diff(values)))) / np.sqrt(2) if len(values) > 2 else 0.0


def shipped_rules(tier: str) -> Mapping[str, MetricRule]:
    """How the tier's gate judges the level of each metric; for an unknown tier, the smoke tier's. Only shipped policies
    are read: a tag must not name a file to open."""
    rules = load_policy(tier if tier in policy_names() else "smoke").rules
    return {rule.metric: rule for rule in rules if rule.name == rule.metric}


def tolerated(rule: MetricRule | None, level: float) -> float:
    """The distance from a level that the gate tolerates, in the metric's unit; 0 if no rule judges it."""
    if rule is None:
        return 0.0
    return rule.margin * level if rule.scale is Scale.LOG else rule.margin


# ---- how far a run departs from it -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Departure:
    """`far`: the largest distance outside, in widths. `step`: where it left the band to the worse side and stayed
    out, None if it did not; `ahead`: the same, to the better side. `now`: where it is at its last step: above, below,
    better, inside, or not a number."""

    far: float
    step: int | None = None
    ahead: int | None = None
    now: str = "inside"


def departure(usual: Usual, series: Series, worse: str = "both") -> Departure:
    """The departure of a series, or of a stretch of it, which is worse when higher, lower or both. Steps that the
    reference never reached are ignored."""
    from scipy.ndimage import median_filter  # not above: each session would load it, and compares no curves

    if not series.finite.all():
        return Departure(far=FARTHEST, step=int(series.steps[~series.finite][0]), now="not a number")
    at = np.searchsorted(usual.band.steps, series.steps, side="right") - 1
    known = (at >= 0) & (series.steps <= usual.band.steps[-1])
    if not known.any():
        return Departure(far=0.0)
    steps, values, at = series.steps[known], series.values[known], at[known]
    low, high = usual.band.low[at], usual.band.high[at]
    outside = np.where(values > high, values - high, np.where(values < low, values - low, 0.0)) / usual.width
    smooth = median_filter(outside, size=STAYS, mode="nearest") if len(outside) >= STAYS else outside
    gone = {"higher": left(steps, smooth > 1), "lower": left(steps, smooth < -1)}
    ahead = gone.pop({"higher": "lower", "lower": "higher"}.get(worse, ""), None)
    at_end = "above" if smooth[-1] > 1 else "below" if smooth[-1] < -1 else "inside"
    return Departure(
        far=round(min(FARTHEST, float(np.abs(smooth).max())), 3),
        step=min((one for one in gone.values() if one is not None), default=None),
        ahead=ahead,
        now="better" if (at_end, worse) in (("above", "lower"), ("below", "higher")) else at_end,
    )


def left(steps: Steps, far: Any) -> int | None:
    """The step from which it is far out for STAYS rows, None if it never is."""
    stays = min(STAYS, len(far))
    runs = np.convolve(far, np.ones(stays), mode="valid") >= stays
    return int(steps[int(np.argmax(runs))]) if runs.any() else None


def away(known: Mapping[str, Usual], series: Mapping[str, Series]) -> dict[str, Any]:
    """How far each series departs from the reference, in widths, and where it left; a policy, by rollouts."""
    pace = updates_of(series)
    return {name: vars(departure(known[name].at_pace(pace), found, worse_side(name)))
            for name, found in series.items() if name in known}  # fmt: skip


def worse_side(name: str) -> str:
    """The side on which a metric is worse; of one of the user's own, a loss is known by its name."""
    return METRICS[name].worse if name in METRICS else "higher" if name.endswith("loss") else "both"


def unplaced(known: Mapping[str, Usual], pace: float, step: int) -> bool:
    """Whether a run at that step has yet to tell how many steps it makes on each rollout, as the reference's do."""
    return not math.isfinite(pace) and any(step < WAIT * one.updates for one in known.values())
