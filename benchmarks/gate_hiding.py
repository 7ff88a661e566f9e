"""What a bad candidate gains by leaving out what shows it: each faulty session of the campaign, hidden in every way.

    python benchmarks/gate_hiding.py

Each session of campaign.jsonl.gz and campaign-others.jsonl.gz with a fault is judged beside its champion's as it is;
with runs that tell nothing of themselves (no warning, no invariant, nothing about learning, no failure, no NaN); and so
with each series, or half of it, left out of all runs or of all but the first, without any clock, or any evaluation, and
with all runs but the first interrupted. Printed: how many are judged in each way, the verdicts, and whatever passes.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gate_judges import policy_for  # noqa: E402  # the path is set above

from canary_mlflow.gates import Run, Version, judge  # noqa: E402

CLOCKS = ("step_time", "step_cpu_time", "step_cost", "iteration_time", "iteration_cpu_time", "iteration_cost")


def silent(run: Run) -> Run:
    """The run, telling nothing but its numbers."""
    return replace(run, critical_held=None, learned=None, invariants="", nan_steps=0, inf_steps=0, failure="",
                   completed=True)  # fmt: skip


def without(run: Run, names: Sequence[str]) -> Run:
    return replace(run, series={name: series for name, series in run.series.items() if name not in names})


def half(run: Run, name: str) -> Run:
    series = run.series.get(name)
    if series is None:
        return run
    end = max(1, len(series.values) // 2)
    return replace(
        run, series={**run.series, name: replace(series, steps=series.steps[:end], values=series.values[:end])}
    )


def ways(runs: Sequence[Run]) -> Iterator[tuple[str, list[Run]]]:
    """Each way of leaving something out, and the runs then."""
    names = sorted({name for run in runs for name in run.series})
    quiet = [silent(run) for run in runs]
    yield "as it is", list(runs)
    yield "nothing but numbers", quiet
    yield "all but the first interrupted", [quiet[0], *(replace(r, failure="interrupted") for r in quiet[1:])]
    yield "no clock", [without(run, CLOCKS) for run in quiet]
    yield "no evaluation", [without(run, [name for name in names if name.startswith("eval")]) for run in quiet]
    for name in names:
        yield "a series left out", [without(run, [name]) for run in quiet]
        yield "half of a series left out", [half(run, name) for run in quiet]
        yield "a series left out of all but the first", [quiet[0], *(without(run, [name]) for run in quiet[1:])]


def main() -> None:
    from gate_ablation import CAMPAIGN, of_campaign

    policy, said, passed = policy_for("smoke"), Counter[tuple[str, str]](), []
    for file in (CAMPAIGN, CAMPAIGN.with_name("campaign-others.jsonl.gz")):
        for name, _, left, right in of_campaign(file):
            if name != "campaign faults":
                continue
            for way, runs in ways(right):
                sides = (Version(model="m", version=str(at), runs=tuple(side)) for at, side in enumerate((left, runs)))
                outcome = str(judge(policy, *sides).outcome)
                said[way, outcome] += 1
                passed += [f"{way}: {right[0].run_id}"] if outcome == "PASS" else []
    print("| left out | verdicts | BLOCK | INCONCLUSIVE | PASS |\n|---|---|---|---|---|")
    for way in dict.fromkeys(way for way, _ in said):
        counts = [said[way, outcome] for outcome in ("BLOCK", "INCONCLUSIVE", "PASS")]
        print(f"| {way} | {sum(counts)} | {' | '.join(map(str, counts))} |")
    print(json.dumps({"benchmark": "gate hiding", "passed": passed}))


if __name__ == "__main__":
    main()
