"""Made-up runs for the watch: healthy ones and ones that fail in a known way from a known row on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy

import numpy as np
import yaml

from canary_mlflow.gates.watch import Watch, WatchPolicy, parse_watch
from canary_mlflow.policies import conf_dir

Rows = list[dict[str, float]]
DEFAULT = yaml.safe_load((conf_dir() / "watch" / "default.yaml").read_text())
SHIPPED = parse_watch(DEFAULT)


def policy(**changes: object) -> WatchPolicy:
    """The shipped policy; a change is named by its path, with two underscores for a dot."""
    if not changes:
        return SHIPPED
    body = deepcopy(DEFAULT)
    for path, value in changes.items():
        *folders, key = path.split("__")
        at = body
        for folder in folders:
            at = at[folder]
        assert key in at, path
        at[key] = value
    return parse_watch(body)


def watch(rows: Iterable[Mapping[str, float]], rules: WatchPolicy | None = None, **options: object) -> Watch:
    """A watch that has seen all rows, at steps 1, 2, 3 …, and the end of the run."""
    seen = Watch(rules or policy(), **options)  # type: ignore[arg-type]
    for step, row in enumerate(rows, 1):
        seen.observe(step, row)
    seen.finish(True)
    return seen


def said(seen: Watch) -> list[tuple[int, str, str, str]]:
    return [(one.step, one.level.name, one.stream, one.rule) for one in seen.warnings]


def noise(rng: np.random.Generator, rows: int, phi: float, sd: float) -> np.ndarray:
    """AR(1) with stationary standard deviation `sd`."""
    shocks = rng.normal(0, sd * math.sqrt(1 - phi**2), rows)
    values = np.empty(rows)
    at = rng.normal(0, sd)
    for row in range(rows):
        at = values[row] = phi * at + shocks[row]
    return values


def sft(seed: int, rows: int = 400, *, scale: float = 2.5) -> Rows:
    """Loss falls to 40 %, gradients are noisy and spike alone now and then."""
    rng = np.random.default_rng(seed)
    level = scale * rng.lognormal(0, 0.2) * (0.4 + 0.6 * np.exp(-np.arange(rows) / (rows / 5)))
    loss = level * np.exp(noise(rng, rows, 0.3, 0.08))
    grad = rng.lognormal(0, 0.3) * np.exp(noise(rng, rows, 0.3, 0.2))
    grad *= np.where(rng.random(rows) < 0.01, 15, 1)
    return [{"loss": float(a), "grad_norm": float(b), "learning_rate": 1e-4} for a, b in zip(loss, grad, strict=True)]


def rl(seed: int, rows: int = 400, *, kl: float = 4.0, entropy: float = 2.0, grad: float = 1.0) -> Rows:
    """KL rises to its level, entropy falls slowly, the reward grows; the loss is as good as noise around 0."""
    rng = np.random.default_rng(seed)
    time = np.arange(rows)
    run = rng.lognormal(0, 0.25, 4)
    columns = {
        "loss": noise(rng, rows, 0.3, 0.02),
        "kl": kl * run[0] * (1 - np.exp(-time / 40)) * np.exp(noise(rng, rows, 0.7, 0.2)),
        "entropy": entropy * run[1] * (0.7 + 0.3 * np.exp(-time / 200)) * np.exp(noise(rng, rows, 0.5, 0.05)),
        "grad_norm": grad * run[2] * np.exp(noise(rng, rows, 0.4, 0.25)) * np.where(rng.random(rows) < 0.01, 12, 1),
        "reward_mean": run[3] * (1 - np.exp(-time / 100)) + noise(rng, rows, 0.5, 0.2),
        "clip_fraction": 0.08 * np.exp(noise(rng, rows, 0.3, 0.3)),
    }
    return [{name: float(values[row]) for name, values in columns.items()} for row in range(rows)]


def fail(rows: Rows, onset: int, length: int, **streams: Callable[[float, float], float]) -> Rows:
    """The rows with `streams` changed from `onset` on: value, share of the way to the failure → value."""
    changed = []
    for at, row in enumerate(rows[: onset + length]):
        share = max(0.0, (at - onset) / length)
        changed.append(row | {name: f(row[name], share) for name, f in streams.items()} if at >= onset else row)
    return changed


# Named failures: from healthy rows to failing ones, with the row at which they begin and the row at which it is over.
FAILURES: dict[str, tuple[Callable[[int], Rows], int, int, dict[str, Callable[[float, float], float]]]] = {
    "loss explodes": (sft, 200, 60, {"loss": lambda x, s: x * (1 + 6 * s), "grad_norm": lambda x, s: x * 30**s}),
    "gradients explode": (sft, 200, 60, {"grad_norm": lambda x, s: x * 1000**s, "loss": lambda x, s: x * (1 + s**2)}),
    "KL explodes": (rl, 200, 60, {"kl": lambda x, s: x * 60**s}),
    "a policy collapses": (rl, 200, 60, {"entropy": lambda x, s: x * 0.02**s, "reward_mean": lambda x, s: x - 3 * s}),
    "KL creeps": (rl, 150, 220, {"kl": lambda x, s: x * 25**s}),
}


def constant(rows: int, **streams: float) -> Rows:
    return [dict(streams) for _ in range(rows)]


def reward(seed: int, rows: int = 200, *, noise: float = 0.15) -> np.ndarray:
    """A reward of small batches that rises from 0.2 to 0.8."""
    rng = np.random.default_rng(seed)
    return 0.8 - 0.6 * np.exp(-np.arange(rows) / 40) + noise * rng.normal(size=rows)
