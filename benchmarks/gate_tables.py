"""The tables of benchmarks/gate.py, and the Markdown file that holds them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gate_data import NOISE, STEPS
from gate_judges import JUDGES
from scipy import stats


def percent(found: dict[str, float], word: str) -> str:
    return f"{100 * found.get(word, 0.0):.1f}"


def simulated_tables(results: dict[str, Any], repeats: int, sides: tuple[int, int]) -> list[str]:
    """One table per tier; a cell: false BLOCK/BLOCK at 1.5 margins/PASS unchanged/false PASS at the margin."""
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
                    f"{percent(mine['unchanged'], 'BLOCK')}/{percent(mine['1.5 margins'], 'BLOCK')}/"
                    f"{percent(mine['unchanged'], 'PASS')}/{percent(mine['at the margin'], 'PASS')}"
                )
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def read_simulated_tables(text: str) -> dict[str, Any]:
    """The shares that `simulated_tables` wrote: cell → judge → effect → answer."""
    found: dict[str, Any] = defaultdict(dict)
    tier = ""
    for line in text.splitlines():
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if cells == list(NOISE):
            tier = first
        elif tier and len(cells) == len(NOISE) and cells[0].count("/") == 3:
            for noise, cell in zip(NOISE, cells, strict=True):
                blocked, power, passed, slipped = (float(figure) / 100 for figure in cell.split("/"))
                unchanged = {"BLOCK": blocked, "PASS": passed}
                harmed = {"1.5 margins": {"BLOCK": power}, "at the margin": {"PASS": slipped}}
                found[f"{tier} {noise}"][first] = {"unchanged": unchanged, **harmed}
        elif not line.startswith("|"):
            tier = ""
    return dict(found)


def pool_table(title: str, results: dict[str, Any]) -> list[str]:
    """Real pools, one row per source: its pools' mean share of BLOCK for unchanged runs, the upper end of the mean's
    95 % interval over runs, the worst pool, and the mean share of BLOCK at 1.5 margins."""
    lines = [
        "",
        f"{title}: BLOCK of unchanged runs, mean of the pools (upper 95 % over runs; worst pool), BLOCK at 1.5",
    ]
    lines += ["margins, PASS of unchanged runs, in %.", ""]
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
                f"{100 * statistics.mean(blocks):.1f} ({100 * high:.1f}; {100 * max(blocks):.1f}), "
                f"{100 * power:.0f}, {100 * passed:.0f}"
            )
        lines.append(f"| {source} ({len(pools)}) | {' | '.join(cells)} |")
    return lines


def write_tables(path: Path, lines: Sequence[str], mark: str) -> None:
    """Replace the text between the marks with the benchmark's name. Raises SystemExit if they are missing."""
    before, _, after = around_marks(path, mark)
    path.write_text(f"{before}\n" + "\n".join(lines) + f"\n{after}", encoding="utf-8")


def around_marks(path: Path, mark: str) -> tuple[str, str, str]:
    """What comes before the marked text, the text, and what follows it. Raises SystemExit if the marks are missing."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    text = path.read_text(encoding="utf-8")
    if begin not in text or end not in text:
        raise SystemExit(f"{path} has no lines {begin} and {end} around the tables")
    before, _, rest = text.partition(begin)
    marked, _, after = rest.partition(end)
    return before + begin, marked, end + after


def ours_against_promises(simulated_results: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Our gate's worst figures on the simulated grid up to twice its prior, with the promised ones."""
    quiet_enough = [name for name in simulated_results if not name.endswith("wild")]
    mine = {name: simulated_results[name]["ours"] for name in simulated_results}
    worst = max(mine[name]["unchanged"].get("BLOCK", 0.0) for name in quiet_enough)
    return {
        "false_block_worst": worst,
        "false_block_worst_upper95": upper(worst, repeats),
        "false_block_wild_worst": max(mine[n]["unchanged"].get("BLOCK", 0.0) for n in mine if n.endswith("wild")),
        "block_at_1.5_smoke_noisy": mine["smoke noisy"]["1.5 margins"].get("BLOCK", 0.0),
        "block_at_1.5_perf_typical": mine["perf typical"]["1.5 margins"].get("BLOCK", 0.0),
        "false_pass_at_margin_worst": max(mine[n]["at the margin"].get("PASS", 0.0) for n in quiet_enough),
        "false_pass_at_1.5_worst": max(mine[n]["1.5 margins"].get("PASS", 0.0) for n in quiet_enough),
    }


def upper(share: float, repeats: int) -> float:
    """Upper 95 % bound of a share (Clopper and Pearson)."""
    hits = round(share * repeats)
    return 1.0 if hits == repeats else float(stats.beta.ppf(0.95, hits + 1, repeats - hits))
