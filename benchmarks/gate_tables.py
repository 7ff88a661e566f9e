"""The tables of benchmarks/gate.py, and the Markdown file that holds them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gate_data import NOISE, STEPS
from gate_judges import JUDGES

BEGIN, END = "<!-- benchmarks/gate.py: begin -->", "<!-- benchmarks/gate.py: end -->"


def percent(found: dict[str, float], word: str) -> str:
    return f"{100 * found.get(word, 0.0):.1f}"


def simulated_tables(results: dict[str, Any], repeats: int, sides: tuple[int, int]) -> list[str]:
    """One table per tier; a cell: false BLOCK / BLOCK at 1.5 margins / PASS unchanged / false PASS at the margin."""
    lines = [
        f"Simulated runs, {sides[0]} against {sides[1]} ({repeats} repeats): BLOCK of unchanged code /",
        "BLOCK at 1.5 margins / PASS of unchanged code / PASS at the margin, in %.",
    ]
    for tier in STEPS:
        lines += ["", f"| {tier} | {' | '.join(NOISE)} |", "|---" * (len(NOISE) + 1) + "|"]
        for name in next(iter(results.values())):
            cells = []
            for noise in NOISE:
                mine = results[f"{tier} {noise}"][name]
                cells.append(
                    f"{percent(mine['unchanged'], 'BLOCK')} / {percent(mine['1.5 margins'], 'BLOCK')} / "
                    f"{percent(mine['unchanged'], 'PASS')} / {percent(mine['at the margin'], 'PASS')}"
                )
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def pool_table(title: str, results: dict[str, Any]) -> list[str]:
    """Real pools, each source in one row: its pools' mean share of BLOCK of unchanged runs, the upper end of the mean's
    95 % interval over runs, the worst pool; and the mean share of BLOCK at 1.5 margins."""
    lines = [
        "",
        f"{title}: BLOCK of unchanged runs, mean of the pools (upper 95 % over runs; worst pool) / BLOCK at 1.5",
    ]
    lines += ["margins / PASS of unchanged runs, in %.", ""]
    lines += [f"| source (pools) | {' | '.join(JUDGES)} |", "|---" * (len(JUDGES) + 1) + "|"]
    sources: dict[str, list[Any]] = defaultdict(list)
    for found in results.values():
        sources[found["source"]].append(found)
    for source, pools in sources.items():
        cells = []
        for name in JUDGES:
            same = [found[name]["unchanged"] for found in pools]
            blocks = [each.get("BLOCK", 0.0) for each in same]
            high = statistics.mean(each["interval"][1] for each in same)
            power = statistics.mean(found[name]["1.5 margins"].get("BLOCK", 0.0) for found in pools)
            passed = statistics.mean(each.get("PASS", 0.0) for each in same)
            cells.append(
                f"{100 * statistics.mean(blocks):.1f} ({100 * high:.1f}; {100 * max(blocks):.1f}) / "
                f"{100 * power:.0f} / {100 * passed:.0f}"
            )
        lines.append(f"| {source} ({len(pools)}) | {' | '.join(cells)} |")
    return lines


def fault_table(canary: str, rows: dict[str, dict[str, str]]) -> list[str]:
    lines = ["", f"| fault ({canary}) | verdict | checks that moved |", "|---|---|---|"]
    for fault, row in rows.items():
        moved = ", ".join(f"{name} {word}" for name, word in row.items() if name != "verdict") or "none"
        lines.append(f"| {fault} | {row['verdict']} | {moved} |")
    return lines


def write_tables(path: Path, lines: Sequence[str]) -> None:
    """Replace what stands between the marks."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}", encoding="utf-8")
