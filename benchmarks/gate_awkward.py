"""Unchanged sessions with one slip in them, for benchmarks/gate_ablation.py: a unit, a sign, a gap, a series cut short.

    python benchmarks/gate_awkward.py

For three algorithms, an unchanged session of benchmarks/data/campaign.jsonl.gz beside its champion's; and the same with
each slip in each series of all runs of one side, and with each slip of whole runs in one of the candidate's. Printed:
the verdicts by slip and side.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gate_judges import policy_for  # noqa: E402  # the path is set above

from canary_mlflow.gates import Run, Series, Version, judge  # noqa: E402

Values = NDArray[np.float64]
ALGORITHMS = ("dpo", "ppo", "sft")


def _cut(keep: Callable[[int], slice]) -> Callable[[Series], Series]:
    def cut(series: Series) -> Series:
        part = keep(len(series.values))
        return replace(series, steps=series.steps[part], values=series.values[part])

    return cut


def _with(change: Callable[[Values], Values]) -> Callable[[Series], Series]:
    return lambda series: replace(series, values=change(series.values.copy()))


def _end_in(value: float, share: float) -> Callable[[Values], Values]:
    return lambda values: np.r_[
        values[: len(values) - int(share * len(values))], np.full(int(share * len(values)), value)
    ]


SLIPS: dict[str, Callable[[Series], Series]] = {
    "a hundredfold": _with(lambda values: values * 100),
    "a thousandth": _with(lambda values: values / 1000),
    "in bytes": _with(lambda values: values * 2.0**20),
    "without its sign": _with(np.negative),
    "all zero": _with(np.zeros_like),
    "all NaN": _with(lambda values: np.full_like(values, np.nan)),
    "ends in zeros": _with(_end_in(0.0, 0.3)),
    "begins with infinity": _with(lambda values: np.r_[np.inf, values[1:]]),
    "every second value zero": _with(lambda values: values * (np.arange(len(values)) % 2)),
    "every tenth step": _cut(lambda _: slice(None, None, 10)),
    "without its first half": _cut(lambda length: slice(length // 2, None)),
    "without its second half": _cut(lambda length: slice(max(1, length // 2))),
    "one value": _cut(lambda _: slice(-1, None)),
}


def _half(run: Run) -> Run:
    end = run.last_step // 2
    cut = {name: one for name, one in run.series.items() if one.steps[0] <= end}
    kept = {
        name: replace(one, steps=one.steps[one.steps <= end], values=one.values[one.steps <= end])
        for name, one in cut.items()
    }
    return replace(run, last_step=end, series=kept)


def _tenfold(run: Run) -> Run:
    return replace(run, series={name: replace(one, values=one.values * 10) for name, one in run.series.items()})


WHOLE: dict[str, Callable[[Run], Run]] = {
    "a run of half the length": _half,
    "a run tenfold": _tenfold,
    "a run without learning": lambda run: replace(run, learned=False),
    "a run without a seed": lambda run: replace(run, seed=None),
}


def awkward(left: Sequence[Run], right: Sequence[Run]) -> Iterator[tuple[str, list[Run], list[Run]]]:
    """Each slip with the side that has it, and both sides then."""
    for name in sorted({name for run in right for name in run.series}):
        for slip, change in SLIPS.items():
            slipped = [[_changed(run, name, change) for run in side] for side in (left, right)]
            yield f"{slip}, baseline", slipped[0], list(right)
            yield f"{slip}, candidate", list(left), slipped[1]
            yield f"{slip}, both", slipped[0], slipped[1]
    for slip, whole in WHOLE.items():
        yield f"{slip}, candidate", list(left), [whole(right[0]), *right[1:]]
    yield "a run given again under another name", list(left), [*right, replace(right[0], run_id="again")]
    yield "the first run alone, and its champion's", [left[0]], [right[0]]


def _changed(run: Run, name: str, change: Callable[[Series], Series]) -> Run:
    return replace(run, series={**run.series, name: change(run.series[name])}) if name in run.series else run


def main() -> None:
    from gate_ablation import of_awkward

    policy, said = policy_for("smoke"), Counter[tuple[str, str]]()
    for name, _, left, right in of_awkward():
        sides = (Version(model="m", version=str(at), runs=tuple(side)) for at, side in enumerate((left, right)))
        said[name, str(judge(policy, *sides).outcome)] += 1
    print("| slip | BLOCK | INCONCLUSIVE | PASS |\n|---|---|---|---|")
    for slip in dict.fromkeys(slip for slip, _ in said):
        counts = [said[slip, outcome] for outcome in ("BLOCK", "INCONCLUSIVE", "PASS")]
        print(f"| {slip} | {' | '.join(map(str, counts))} |")


if __name__ == "__main__":
    main()
