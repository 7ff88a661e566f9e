"""What a run says about itself when it is over: tags and metrics.json, in the layout that rlhf-canary's users know."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow import tags
from canary_mlflow.tracking.describing.fact_tags import jsonable
from canary_mlflow.tracking.describing.failures import raised_tags
from canary_mlflow.tracking.experiment import VARIABLE
from canary_mlflow.tracking.observers import Ending
from canary_mlflow.tracking.stores.places import without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True, kw_only=True)
class Target:
    """The MLflow run that is written, and what metrics.json says about it.

    `client` None: the store could not be reached, and rows are only kept in memory. `owned`: this journal started the
    run and ends it; otherwise whoever started the run sets FINISHED.
    """

    client: MlflowClient | None
    run_id: str
    owned: bool
    algo: str
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    workload: Mapping[str, str] = field(default_factory=dict)
    warmup_steps: int = 0
    required: tuple[str, ...] = ()  # series without which a finished run is no evidence
    folder: Path = Path("canary")  # holds one folder per run, for what MLflow does not hold


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the probes found over the whole run."""

    nan_steps: int
    inf_steps: int
    parameters_finite: bool | None  # None: unknown
    learned: bool | None
    learned_reason: str


def end_tags(ending: Ending, found: Findings, rows_lost: int, troubles: Mapping[str, str]) -> dict[str, str]:
    """The run's tags. `rows_lost`: number of lost values. `troubles`: what broke → why."""
    # The last update itself may have broken the parameters, which no logged value shows.
    poisoned = int(found.parameters_finite is False)
    return {
        tags.COMPLETED: _word(ending.completed),
        tags.LAST_STEP: str(ending.last_step),
        tags.FAILURE: ending.failure,
        tags.FAILURE_REASON: ending.reason,
        **raised_tags(ending.raised),
        tags.NAN_STEPS: str(max(found.nan_steps, 0 if found.inf_steps else poisoned)),
        tags.INF_STEPS: str(found.inf_steps),
        tags.FINITE: _word(not (found.nan_steps or found.inf_steps or poisoned)),  # to filter by
        tags.PARAMETERS_FINITE: "unknown" if found.parameters_finite is None else _word(found.parameters_finite),
        tags.LEARNED: "unknown" if found.learned is None else _word(found.learned),
        tags.LEARNED_REASON: found.learned_reason,
        tags.ROWS_LOST: str(rows_lost),
        tags.TROUBLES: "; ".join(f"{what}: {why}" for what, why in troubles.items()),
    }


def shortfall(target: Target, rows: Sequence[Mapping[str, float]], lost_sight: str) -> tuple[str, str]:
    """(failure, sentence) for a run that reached its end but is still no evidence; both "" for one that is evidence.

    The failure is `error`: the gate leaves such a run out, and cannot say PASS without enough others.
    """
    found = {name for row in rows for name in row}
    missing = [name for name in target.required if name not in found]
    if lost_sight:
        return "error", f"no evidence: {lost_sight}"
    if missing and rows:
        names = ", ".join(missing)
        return "error", f"no evidence: no value of {names}; expected of every run by this trainer; have it log them"
    return "", ""


def summary(
    target: Target, ending: Ending, found: Findings, rows: Sequence[Mapping[str, float]], began: float
) -> dict[str, Any]:
    """The content of metrics.json; `began` in seconds since the epoch."""
    return metrics_json(
        rows,
        run_id=target.run_id,
        timestamp=datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
        status={"": "completed", "timeout": "timeout"}.get(ending.failure, "failed"),
        duration_seconds=time.time() - began,
        nan_steps=found.nan_steps,
        inf_steps=found.inf_steps,
        config=target.config,
        env=target.environment,
        warmup_steps=target.warmup_steps,
    )


def _word(flag: bool) -> str:
    return "true" if flag else "false"


def whereabouts(target: Target) -> str:
    """One line on where the run is and which command shows it; '' if no store was reached."""
    if target.client is None:
        return ""
    if session := os.environ.get(VARIABLE):  # the session prints such a line itself
        return f"canary: run {target.run_id} of session {session}\n"
    store = without_password(str(target.client.tracking_uri))
    ask = f"canary report {target.run_id}, canary compare BASELINE {target.run_id} --policy smoke"
    return f"canary: run {target.run_id} is in {store}; {ask}\n"


Rows = Sequence[Mapping[str, float]]

EDGE = 10  # losses at either end that divergence compares
DIVERGED = 1.5  # late mean beyond this multiple of the early one


def metrics_json(
    rows: Rows,
    *,
    run_id: str,
    timestamp: str,
    status: str,
    duration_seconds: float,
    nan_steps: int,
    inf_steps: int,
    config: Mapping[str, Any],
    env: Mapping[str, str],
    warmup_steps: int,
) -> dict[str, Any]:
    """The file as plain JSON values; NaN and ±Inf, which JSON does not have, are null (the counts tell them apart).

    `rows`: canonical name → value, one per optimizer step, in order. Times are in seconds, memory in MiB. Tokens are
    counted, while rlhf-canary derives them from batch size and maximum length; losses and gradient norms are those of
    the whole run, not the last 100.
    """
    losses, norms = _column(rows, "loss"), _column(rows, "grad_norm")
    content = {
        "run_id": run_id,
        "timestamp": timestamp,
        "status": status,
        "duration_seconds": duration_seconds,
        "config": dict(config),
        "env": dict(env),
        "perf": perf(rows, warmup_steps),
        "stability": {
            "nan_steps": nan_steps,
            "inf_steps": inf_steps,
            "loss_diverged": loss_diverged(losses),
            "final_loss": losses[-1] if losses else None,
            "loss_values": losses,
            "grad_norm_values": norms,
        },
    }
    cleaned: dict[str, Any] = jsonable(content)
    return cleaned


def perf(rows: Rows, warmup_steps: int) -> dict[str, Any]:
    """Step time statistics, tokens per second and peak memory without the first `warmup_steps` steps.

    A run no longer than its warm-up is measured whole.
    """
    timed = [row for row in rows if "step_time" in row]
    measured = timed[warmup_steps:] or timed
    times = [row["step_time"] for row in measured]
    counted = [row for row in measured if "tokens" in row]
    seconds = sum(row["step_time"] for row in counted)
    memory = _column(rows, "peak_memory")
    return {
        "step_time": statistics(times),
        "approx_tokens_per_sec": sum(row["tokens"] for row in counted) / seconds if seconds else None,
        "max_mem_mb": max(memory) if memory else None,
    }


def statistics(times: Sequence[float]) -> dict[str, float | int | None]:
    """count, mean, median, percentiles, extremes and standard deviation (n - 1) of step times in seconds."""
    names = ("mean", "median", "p50", "p95", "p99", "min", "max", "std")
    if not times:
        return {"count": 0, **dict.fromkeys(names)}
    ordered, count = sorted(times), len(times)
    mean = sum(ordered) / count
    spread = math.sqrt(sum((time - mean) ** 2 for time in ordered) / (count - 1)) if count > 1 else 0.0
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    # Percentiles by index, as rlhf-canary takes them.
    p50, p95, p99 = (ordered[int(share * (count - 1))] for share in (0.50, 0.95, 0.99))
    values = (mean, middle, p50, p95, p99, ordered[0], ordered[-1], spread)
    return {"count": count, **dict(zip(names, values, strict=True))}


def loss_diverged(losses: Sequence[float]) -> bool:
    """Whether there are more than 20 losses, and the mean of the last 10 is 1.5 times as bad as that of the first 10,
    or not a number."""
    if any(not math.isfinite(loss) for loss in losses[-EDGE:]):
        return True
    if len(losses) <= 2 * EDGE:
        return False
    early, late = (sum(part) / EDGE for part in (losses[:EDGE], losses[-EDGE:]))
    if not math.isfinite(early):
        return True
    return late > DIVERGED * early if early >= 0 else late > early / DIVERGED


def _column(rows: Rows, name: str) -> list[float]:
    return [row[name] for row in rows if name in row]
