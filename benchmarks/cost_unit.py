"""How much of a slowdown `step_cost` shows beside the time of the steps, and its spread between unchanged runs.

    python benchmarks/cost_unit.py [--algos sft dpo] [--seeds 6]

Canaries on this CPU, in turns: unchanged, with steps that end in 20 % more work, with data that take as much longer.
Each row says by how much the middle steps are longer than those of the unchanged run with the same seed. The kernel is
timed right after a step: if the work at its end slows the kernel down too, the cost hides a part of it.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import card_desk  # noqa: E402  # the path is set above
import card_measures  # noqa: E402
import on_card  # noqa: E402

SIDES = {
    "unchanged": (),
    "slow_step_from_n": ("fault=slow_step_from_n", "fault.strength=0.2", "fault.step=0"),
    "slow_loader": ("fault=slow_loader", "fault.strength=0.2"),
}
COSTS = ("step_time", "step_cpu_time", "step_cost")
WARM_UP = 10


def level(record: on_card.Record, cost: str) -> float:
    """The logarithm of the mean of the middle half of the steps."""
    steps = sorted(record["run"]["series"][cost][1][WARM_UP:])
    return math.log(mean(steps[len(steps) // 4 : -(len(steps) // 4)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--algos", nargs="+", default=["sft", "dpo"])
    parser.add_argument("--seeds", type=int, default=6)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        desk = card_desk.Desk(folder=folder, size=card_desk.TINY, book=on_card.Book(folder / "book.jsonl", ""))
        card_desk.load()
        for algo in asked.algos:
            print("\n".join(table(desk, algo, asked.seeds)), flush=True)


def table(desk: card_desk.Desk, algo: str, seeds: int) -> list[str]:
    """The rows of one algorithm."""
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for number in range(seeds):
        for side in SIDES if number % 2 == 0 else reversed(SIDES):
            words = [f"algo={algo}", "hardware=cpu", "train.max_steps=60", f"seed={7_000 + number}", *SIDES[side]]
            unit = on_card.Unit(
                part=algo, name=side, minutes=1.0, make=lambda asked=words: card_measures.train(desk, asked, False)
            )
            record = on_card.measured(unit, desk.folder)
            found[side].append({cost: level(record, cost) for cost in COSTS})
    usual = found["unchanged"]
    rows = [f"{algo:18s} {'':10s}" + "".join(f"{cost:>16s}" for cost in COSTS)]
    spreads = "".join(f"{stdev(one[cost] for one in usual):16.1%}" for cost in COSTS)
    rows.append(f"{'unchanged':18s} {'spread':10s}{spreads}")
    for side in list(SIDES)[1:]:
        longer = {cost: mean(a[cost] - b[cost] for a, b in zip(found[side], usual, strict=True)) for cost in COSTS}
        rows.append(f"{side:18s} {'longer by':10s}" + "".join(f"{math.expm1(longer[cost]):16.1%}" for cost in COSTS))
    return rows


if __name__ == "__main__":
    main()
