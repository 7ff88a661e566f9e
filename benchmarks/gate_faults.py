"""Real faults at graded strength, judged by this gate and by others: three runs with the fault against five without.

    python benchmarks/gate_faults.py FOLDER [--write benchmarks/data/graded-faults.md]

FOLDER: what benchmarks/gate_runs.py made. The first rows are controls: other sessions of the same code, the last of
them beside a load. The other judges see only the step time; of a run that broke off, they see what it recorded.
The last line is one JSON object; --write puts the table between its marks in a Markdown file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gate_judges import JUDGES, policy_for, verdict  # noqa: E402  # the path is set above
from gate_runs import HEALTHY, LONG, SMOKE, UNCHANGED, Session, read  # noqa: E402
from gate_tables import write_tables  # noqa: E402

from canary_mlflow.gates import Run  # noqa: E402

K, M = 5, 3
MARK = "benchmarks/gate_faults.py"
OTHERS = [name for name in JUDGES if name != "ours"]


def judged(baseline: list[Run], candidate: list[Run], session: Session) -> dict[str, Any]:
    """Each judge's word, and the checks of our gate that block or warn."""
    said = verdict(baseline, candidate, policy_for(session.tier))
    moved = {check.metric: str(check.outcome) for check in said.checks if check.outcome in ("BLOCK", "WARN")}
    others = {name: JUDGES[name](baseline, candidate, session.tier) for name in OTHERS}
    return {**others, "ours": str(said.outcome), "reason_code": str(said.reason_code), "moved": moved}


def lines(found: dict[str, dict[str, Any]]) -> list[str]:
    """One row per fault. The others' words by initial, in their order: B(LOCK), P(ASS), I(NCONCLUSIVE)."""
    table = [f"The others, in this order: {'; '.join(OTHERS)}.", "", "| fault | others | ours |", "|---|---|---|"]
    for name, row in found.items():
        words = "".join(row[other][0] for other in OTHERS)
        table.append(f"| {name} | {words} | {row['ours']} |")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=Path, help="a Markdown file with the two marks")
    asked = parser.parse_args()
    standard: dict[tuple[str, str], list[Run]] = {}
    found = {}
    for session in [*HEALTHY, *SMOKE, *LONG]:
        runs = read(asked.folder, session)
        if session.kind.startswith(UNCHANGED) and (session.algo, session.tier) not in standard:
            standard[session.algo, session.tier] = runs[:K]
            continue
        load = ", beside a load" if session.beside_load else ""
        name = f"{session.algo}, {session.tier}: {session.kind}{load}"
        found[name] = judged(standard[session.algo, session.tier], runs[:M], session)
    table = lines(found)
    print("\n".join(table))
    if asked.write:
        write_tables(asked.write, table, MARK)
    print(json.dumps({"benchmark": "gate faults", **found}))


if __name__ == "__main__":
    main()
