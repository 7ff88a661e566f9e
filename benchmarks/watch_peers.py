"""What the watch is compared with: the dashboard's fixed limits and the usual early-warning rules, as alarm rows.

Both take the rows of one run and a severity: 1 is their own; 2 requires twice as much for an alarm. After an alarm they
are silent for 25 rows, as the watch is, so that rates can be compared.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from canary_mlflow.gates.hard.hard_gates import divergence
from canary_mlflow.gates.model.records import Run, Series
from canary_mlflow.gates.watch import Watch, WatchPolicy, WatchWarning, bands_of

Rows = Sequence[tuple[int, Mapping[str, float]]]
Judge = Callable[[Rows, float], list[int]]
QUIET = 25


def dashboard(rows: Rows, severity: float) -> list[int]:
    """rlhf-systems-kit: KL > 0.2, entropy < 0.1, grad norm > 1000, reward std > 2, KL-target error > 0.15."""
    upper = {"kl": 0.2, "grad_norm": 1000.0, "reward_std": 2.0, "kl_target_error": 0.15}

    def bad(_: int, row: Mapping[str, float]) -> bool:
        over = any(abs(row[name]) > limit * severity for name, limit in upper.items() if name in row)
        return over or row.get("entropy", math.inf) < 0.1 / severity

    return _silenced(bad(at, row) for at, (_, row) in enumerate(rows))


def usual(rows: Rows, severity: float) -> list[int]:
    """rlhf-canary's notebooks: loss up five times in a row, grad norm and KL beyond multiples of their median, entropy
    halved within 20 rows, clip fraction > 0.3, anything that is not a number."""
    columns = {name: [row.get(name) for _, row in rows] for name in ("loss", "grad_norm", "kl", "entropy")}

    def bad(at: int, row: Mapping[str, float]) -> bool:
        if any(not math.isfinite(row[name]) for name in columns if name in row):
            return True
        length = round(5 * severity)
        losses = [value for value in columns["loss"][max(0, at - length) : at + 1] if value is not None]
        rising = len(losses) == length + 1 and all(a < b for a, b in itertools.pairwise(losses))
        spikes = any(
            name in row
            and len(past := _numbers(columns[name][:at])) >= 10
            and row[name] > times * severity * _mid(past)
            for name, times in (("grad_norm", 10), ("kl", 3))
        )
        before = columns["entropy"][at - 20] if at >= 20 else None
        halved = before is not None and row.get("entropy", math.inf) < before / (1 + severity)
        return rising or spikes or halved or row.get("clip_fraction", 0.0) > min(0.3 * severity, 0.99)

    return _silenced(bad(at, row) for at, (_, row) in enumerate(rows))


def z_score(rows: Rows, severity: float) -> list[int]:
    """Three rows in a row more than 3 standard deviations of the 30 rows before them on their bad side: loss, KL,
    gradient norm up; reward, margin down."""
    sides = {"loss": 1, "grad_norm": 1, "kl": 1, "reward_mean": -1, "score_mean": -1, "reward_margin": -1}
    return _silenced(
        any(
            all(_deviation(rows, at - back, name, sign, 30) > 3 * severity for back in range(3))
            for name, sign in sides.items()
        )
        for at in range(len(rows))
    )


def spikes(rows: Rows, severity: float) -> list[int]:
    """A loss or gradient norm more than 7 standard deviations above its mean of the last 1,000 rows: OLMo 2's spike
    score as an alarm. PaLM restarted at such spikes, by eye."""
    return _silenced(
        any(_deviation(rows, at, name, 1, 1000) > 7 * severity for name in ("loss", "grad_norm"))
        for at in range(len(rows))
    )


def _deviation(rows: Rows, at: int, name: str, sign: int, most: int) -> float:
    """How many standard deviations a row is beyond the mean of the rows before it; 0 with fewer than ten."""
    past = [row[name] for _, row in rows[max(0, at - most) : max(0, at)] if math.isfinite(row.get(name, math.nan))]
    if at < 10 or name not in rows[at][1] or len(past) < 10:
        return 0.0
    spread = statistics.stdev(past)
    miss = sign * (rows[at][1][name] - statistics.fmean(past))
    return math.inf if miss > 0 and not spread else miss / spread if spread else 0.0


def ends_diverged(rows: Rows, algo: str) -> list[int]:
    """The last row, if the gate's check of that name blocks the run."""
    found = divergence(Run(run_id="", seed=None, series=_columns(rows), workload={"algo": algo}))
    return [len(rows) - 1] if found else []


def watched(policy: WatchPolicy, algo: str, champion: Sequence[Rows] = (), level: int = 1) -> Judge:
    """The watch at its own severity, as alarm rows. `champion`: the runs that it compares with."""
    said = warnings(policy, algo, champion)

    def judge(rows: Rows, _: float) -> list[int]:
        at = {step: number for number, (step, _) in enumerate(rows)}
        return sorted({at[warning.step] for warning in said(rows) if warning.level >= level})

    return judge


def warnings(policy: WatchPolicy, algo: str, champion: Sequence[Rows] = ()) -> Callable[[Rows], Sequence[WatchWarning]]:
    """A function from a run's rows to all warnings of the watch."""
    bands = bands_of(policy.drift.streams, policy.band, [_columns(rows) for rows in champion])

    def said(rows: Rows) -> Sequence[WatchWarning]:
        watch = Watch(policy, algo=algo, max_steps=rows[-1][0] if rows else None, bands=bands)
        for step, row in rows:
            watch.observe(step, row)
        watch.finish(completed=True)
        return watch.warnings

    return said


def _columns(rows: Rows) -> dict[str, Series]:
    names = {name for _, row in rows for name in row}
    return {name: Series.from_pairs(name, [(step, row[name]) for step, row in rows if name in row]) for name in names}


def _silenced(bad: Iterator[bool]) -> list[int]:
    found: list[int] = []
    for at, one in enumerate(bad):
        if one and (not found or at - found[-1] >= QUIET):
            found.append(at)
    return found


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [value for value in values[-200:] if value is not None and math.isfinite(value)]


def _mid(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
