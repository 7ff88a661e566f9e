"""metrics.json: one run in the layout that rlhf-canary's users know, but with measured values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

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


def jsonable(value: Any) -> Any:
    """The same value with every non-finite number as None, and sets in order."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _column(rows: Rows, name: str) -> list[float]:
    return [row[name] for row in rows if name in row]
