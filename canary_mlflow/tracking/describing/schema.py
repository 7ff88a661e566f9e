"""Translates names of metrics (gates/model/metrics.py) to MLflow's keys, and from what trainers log
(tracking/describing/trainers.py)."""

from __future__ import annotations

import math
import re
from functools import cache

from canary_mlflow.tracking.describing.trainers import NAMES, OWN_PPO
from gates.model.metrics import METRICS, Metric

CONFIG_PREFIX = "cfg/"  # of params that hold what a training was told
FOREIGN = "trl/"  # prefix of everything a trainer logs that has no canonical name


def key_of(metric: Metric) -> str:
    """The metric's key in MLflow, whose UI makes a section of each group."""
    return f"{metric.group}/{metric.name}"


def aliases(metric: Metric) -> tuple[str, ...]:
    """The keys under which trainers log the metric.

    A trainer's key that equals a metric's name is taken to mean that metric in the groups stability and quality; in the
    group perf only from our own PPO (trainers.OWN_PPO).
    """
    own = (metric.name,) if metric.group != "perf" or metric.name in OWN_PPO else ()
    given = [key for names in NAMES.values() for key, name in names.items() if name == metric.name]
    return tuple(dict.fromkeys((*own, *given)))


BY_KEY = {key_of(metric): name for name, metric in METRICS.items()}
BY_ALIAS = {alias: name for name, metric in METRICS.items() for alias in aliases(metric)}


def is_fault(name: str, value: float) -> bool:
    """Whether a value is a fault: a NaN in a metric that must not have one, or an infinity, which only an explained
    variance may be."""
    metric = METRICS.get(name)
    if math.isnan(value):
        return metric is not None and metric.never_nan
    return math.isinf(value) and metric is not None and metric.group == "stability" and name != "explained_variance"


# MLflow refuses a whole batch for one key outside this set.
_FORBIDDEN = re.compile(r"[^\w\-. /:]")
_LONGEST_KEY = 250


@cache
def canonical(trainer_key: str) -> str | None:
    """The canonical name of what a trainer logs; None if it has none."""
    return BY_ALIAS.get(trainer_key)


@cache
def name_of(trainer_key: str) -> str:
    """The name under which a logged value is kept: canonical, or `trl/<key>` unchanged."""
    return canonical(trainer_key) or FOREIGN + trainer_key


@cache
def mlflow_key(name: str) -> str:
    """The MLflow key of a canonical name, or of a `trl/<key>`, made safe for MLflow."""
    metric = METRICS.get(name)
    return key_of(metric) if metric else _FORBIDDEN.sub("_", name)[:_LONGEST_KEY]


@cache
def name_of_key(key: str) -> str:
    """The inverse of `mlflow_key`: a series' name from its MLflow key; foreign keys stay as they are."""
    return BY_KEY.get(key, key)


def as_number(value: object) -> float | None:
    """A logged value as a float: Python and numpy numbers, tensors of one element; None for anything else."""
    if isinstance(value, (int, float)):
        return float(value)
    item = getattr(value, "item", None)
    if item is None or getattr(value, "size", None) is None or getattr(value, "ndim", 0) != 0:
        return None
    number = item()
    return float(number) if isinstance(number, (int, float)) else None
