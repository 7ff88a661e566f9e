"""How the gate judges benchmark histories of other projects' CI, most of them made on shared machines.

    python benchmarks/gate_ci.py DATA.js [DATA.js …]

DATA.js: what github-action-benchmark publishes on a project's pages, as dev/bench/data.js. Series of at least 50 times,
or rates, are cut into stretches as NumPy's are (gate_histories.py): five values in a row against the next three. Each
is judged alone, and with the 60 values before it as history (`canary judge --history`). One value of CI is a run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gate_freeze import size_in_margins  # noqa: E402  # the path is set above
from gate_histories import Stretch, as_runs, stretches_of  # noqa: E402
from gate_judges import STEP_LIMIT, policy_for, verdict  # noqa: E402

from canary_mlflow.gates.calibration import with_history  # noqa: E402

LEAST = 50
TIMES = frozenset(("ns", "us", "µs", "ms", "s", "sec", "seconds", "ns/iter", "ns/op", "us/iter", "ms/iter"))
RATES = frozenset(("iter/sec", "ops/sec", "Hz"))


def stretches_in(path: Path) -> Iterator[Stretch]:
    """Those of every series of times, or of rates as their inverse, in order of the commits' dates."""
    text = path.read_text(encoding="utf-8", errors="replace")
    entries = json.loads(text[text.index("{") :].rstrip().rstrip(";"))["entries"]
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for group, commits in entries.items():
        for commit in commits:
            for bench in commit["benches"]:
                unit = str(bench.get("unit", "")).split("\t")[0].strip()
                value = bench["value"] if isinstance(bench["value"], int | float) else 0.0
                if value > 0 and (unit in TIMES or unit in RATES):
                    seconds = value if unit in TIMES else 1 / value
                    found[f"{path}:{group}:{bench['name']}"].append((commit["date"], seconds))
    for name, points in found.items():
        if len(points) >= LEAST:
            yield from stretches_of(name, np.array([value for _, value in sorted(points)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    told: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    series: set[str] = set()
    for path in parser.parse_args().files:
        for one in stretches_in(path):
            series.add(one.name.rpartition("@")[0])
            sides = as_runs("a", one.baseline), as_runs("b", one.candidate)
            for tier, margin in STEP_LIMIT.items():
                what = "stable" if one.size == 0 else size_in_margins(float(np.expm1(one.size)) / margin)
                alone = policy_for(tier)
                for how, policy in (("", alone), (", with history", with_history(alone, as_runs("h", one.past), {}))):
                    if what:
                        told[what, tier, how][str(verdict(*sides, policy).outcome)] += 1
    print(f"{len(series)} series with such stretches")
    print("| stretches | verdicts | BLOCK % | PASS % |\n|---|---|---|---|")
    for (what, tier, how), counts in sorted(told.items()):
        block, passed = (100 * counts[word] / counts.total() for word in ("BLOCK", "PASS"))
        print(f"| {what}, {tier}{how} | {counts.total()} | {block:.1f} | {passed:.1f} |")


if __name__ == "__main__":
    main()
