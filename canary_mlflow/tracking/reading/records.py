"""What a store holds of a run, as the judge takes it: points become series, tags and params a run."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from canary_mlflow import tags
from canary_mlflow.gates.facts.regressions import CANARY
from canary_mlflow.gates.model.records import Run, Series
from canary_mlflow.tracking.describing.compact import expanded, params_in
from canary_mlflow.tracking.describing.fact_tags import facts_in
from canary_mlflow.tracking.describing.failures import raised_from
from canary_mlflow.tracking.describing.schema import CONFIG_PREFIX, name_of_key
from canary_mlflow.tracking.reading.facts import count, whole

Points = NDArray[np.float64]
"""One series, shape (n, 3): step, timestamp in ms, value. All exact as floats."""
NONE: Points = np.empty((0, 3))


def run_from(run_id: str, said: Mapping[str, str], params: Mapping[str, str], points: Mapping[str, Points]) -> Run:
    """A run from its tags, its params, and its points by MLflow key."""
    said = expanded(said)
    series = {name_of_key(key): series_of(name_of_key(key), rows) for key, rows in sorted(points.items())}
    return Run(
        run_id=run_id,
        seed=whole(said.get(tags.SEED, "")),
        series=series,
        completed=said.get(tags.COMPLETED) == "true",
        failure=said.get(tags.FAILURE, ""),
        failure_reason=said.get(tags.FAILURE_REASON, ""),
        raised=raised_from(said),
        learned={"true": True, "false": False}.get(said.get(tags.LEARNED, "")),
        learned_reason=said.get(tags.LEARNED_REASON, ""),
        invariants=said.get(tags.INVARIANTS, ""),
        critical_held=said.get(tags.WATCH_CRITICAL_HELD),
        not_promotable=said.get(tags.NOT_PROMOTABLE, ""),
        nan_steps=count(said.get(tags.NAN_STEPS, "")),
        inf_steps=count(said.get(tags.INF_STEPS, "")),
        workload=_section(said, tags.WORKLOAD),
        hardware=_section(said, tags.HARDWARE),
        environment=_section(said, tags.ENV),
        configuration=configuration_of({**params_in(said), **params}, said),
        facts=facts_in(said),
        session=said.get(tags.PARENT_RUN, ""),
        note=said.get(tags.NOTE, ""),
        last_step=count(said.get(tags.LAST_STEP, "")),
    )


def configuration_of(params: Mapping[str, str], said: Mapping[str, str]) -> dict[str, str]:
    """What a training was told: the params that we store, and those of the user's own script or project. Params that
    `mlflow run` adds to a canary are left out: they repeat its command line, which ours give in full."""
    ours = _section(params, CONFIG_PREFIX)
    if CANARY in ours and tags.ENTRY_POINT in said:
        return ours
    return {**{key: value for key, value in params.items() if not key.startswith(CONFIG_PREFIX)}, **ours}


def series_of(name: str, points: Points) -> Series:
    """The points sorted by step; of several values at one step, the one written last (at the same moment the largest,
    as a database gives rows in any order)."""
    rising = (np.diff(points[:, 0]) > 0).all()
    ordered = points if rising else in_order(points)
    last = np.append(ordered[1:, 0] != ordered[:-1, 0], True)[: len(ordered)]
    return Series(name=name, steps=ordered[last, 0].astype(np.int64), values=with_infinities(ordered[last, 2]))


def in_order(points: Points) -> Points:
    """The rows by step, then by time, then by value."""
    return points[np.lexsort((points[:, 2], points[:, 1], points[:, 0]))]


def with_infinities(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values, with the infinities that SQL stores write as ±1.797e308."""
    return np.where(np.abs(values) >= sys.float_info.max, np.copysign(math.inf, values), values)


def _section(found: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in sorted(found.items()) if key.startswith(prefix)}
