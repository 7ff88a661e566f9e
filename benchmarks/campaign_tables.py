"""What campaign.py counts of its sessions: verdicts of unchanged code, faults and late slowdowns; causes named."""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from root_cause import RIGHT, kept  # noqa: E402  # the path is set above

from canary_mlflow.gates import Outcome, Series, Version, judge  # noqa: E402
from canary_mlflow.policies import load_policy  # noqa: E402

ALGOS = ("sft", "dpo", "kto", "reward", "ppo", "grpo", "rloo")
BESIDE = {"quiet": "nothing", "shared": "other work", "busy": "a busy loop"}
LOADS = tuple(BESIDE)
LATE = 0.6  # of a run
DEARER = (0.0, 0.2, 0.3, 0.4)
COSTS = ("step_cost", "iteration_cost")
VERDICTS = {0: "PASS", 1: "BLOCK", 2: "wrong use", 3: "INCONCLUSIVE", 4: "broken"}


def read(source: Path) -> list[dict[str, Any]]:
    """Records of a folder, or of a packed file."""
    if source.is_dir():
        return [json.loads(file.read_text()) for file in sorted((source / "records").glob("*.json"))]
    with gzip.open(source, "rt") as lines:
        return [json.loads(line) for line in lines]


def unchanged_table(records: list[dict[str, Any]]) -> list[str]:
    """PASS of unchanged code by algorithm and load, with the exact interval by session, and seconds."""
    from scipy.stats import binomtest

    lines = [
        "| algorithm | beside | load average | PASS | 95 % interval | not PASS, and which check "
        "| PASS, all pairs | median, s | longest, s | CPU, s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for algo in ALGOS:
        for load in LOADS:
            mine = [one for one in records if (one["algo"], one["load"], one["kind"]) == (algo, load, "unchanged")]
            if not mine:
                continue
            passed = sum(one["code"] == 0 for one in mine)
            low, high = binomtest(passed, len(mine)).proportion_ci()
            others = Counter(f"{VERDICTS[one['code']]} {causes(one)}" for one in mine if one["code"])
            said = "; ".join(f"{count} {what}" for what, count in others.items())
            seconds, cpu = sorted(one["seconds"] for one in mine), sorted(one["cpu_seconds"] for one in mine)
            loads = sorted(one["load_average"] for one in mine)
            lines.append(
                f"| `{algo}` | {BESIDE[load]} | {loads[0]:.1f} to {loads[-1]:.1f} | {passed} of {len(mine)} "
                f"| {100 * low:.0f} to {100 * high:.0f} % | {said} | {all_pairs(records, algo, load)} "
                f"| {seconds[len(mine) // 2]:.0f} | {seconds[-1]:.0f} | {cpu[len(mine) // 2]:.0f} |"
            )
    return lines


def all_pairs(records: list[dict[str, Any]], algo: str, load: str) -> str:
    """How many of the unchanged sessions' runs PASS, as `n of m`, beside the runs of each of the row's champions."""
    found = Counter(judge(load_policy("smoke"), *pair).outcome for pair in pairs(records, algo, load))
    return f"{found[Outcome.PASS]} of {found.total()}"


def pairs(records: list[dict[str, Any]], algo: str, load: str) -> Iterator[tuple[Version, Version]]:
    """Each of the row's champions with each of its unchanged sessions."""
    sides: dict[str, list[Version]] = {"baseline": [], "unchanged": []}
    for at, one in enumerate(records):
        if (one["algo"], one["load"]) == (algo, load) and one["kind"] in sides:
            runs = tuple(kept(at, run) for run in one["runs"])
            sides[one["kind"]].append(Version(model=algo, version=str(at), runs=runs))
    return product(sides["baseline"], sides["unchanged"])


def late_table(records: list[dict[str, Any]]) -> list[str]:
    """BLOCK and PASS in % of all pairs whose candidate's steps cost so much more from LATE of the run on."""
    lines = [
        f"| algorithm | beside | {' | '.join(f'+{100 * share:.0f} %' for share in DEARER)} |",
        f"|---|---|{'---|' * len(DEARER)}",
    ]
    for algo, load in product(ALGOS, LOADS):
        said = []
        for share in DEARER:
            beside = [(left, dearer(right, share)) for left, right in pairs(records, algo, load)]
            found = Counter(judge(load_policy("smoke"), *pair).outcome for pair in beside)
            said += [f"{100 * found[one] / len(beside):.0f}" for one in (Outcome.BLOCK, Outcome.PASS) if beside]
        if said:
            shown = " | ".join(f"{block}, {passed}" for block, passed in zip(said[::2], said[1::2], strict=True))
            lines.append(f"| `{algo}` | {BESIDE[load]} | {shown} |")
    return lines


def saved_table(records: list[dict[str, Any]]) -> list[str]:
    """Of each session beside its champion's: what it said, and how much of it was not made."""
    lines = [
        "| session | algorithm | verdict | runs made | steps made | steps saved, % |",
        "|---|---|---|---|---|---|",
    ]
    full = {(one["algo"], one["load"]): one for one in records if one["kind"] == "baseline" and not one["code"]}
    for one in sorted(records, key=lambda each: (each["kind"] == "unchanged", each["kind"], each["algo"])):
        whole = full.get((one["algo"], one["load"]))
        if one["kind"] == "baseline" or whole is None:
            continue
        planned, made = (sum(run["last_step"] for run in each["runs"]) for each in (whole, one))
        runs = f"{len(one['runs'])} of {len(whole['runs'])}"
        steps, saved = f"{made} of {planned}", f"{100 * (1 - made / planned):.0f}"
        cells = [f"`{one['kind']}`", one["algo"], f"{VERDICTS[one['code']]}: {causes(one)}", runs, steps, saved]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def dearer(version: Version, share: float) -> Version:
    """The version with steps that cost `share` more from LATE of each run on."""

    def late(series: Series) -> Series:
        values = series.values.copy()
        values[int(LATE * len(values)) :] *= 1 + share
        return replace(series, values=values)

    changed = [
        replace(run, series={name: late(one) if name in COSTS else one for name, one in run.series.items()})
        for run in version.runs
    ]
    return replace(version, runs=tuple(changed))


def causes(record: dict[str, Any]) -> str:
    """The checks that decided, else the reason's code."""
    word = VERDICTS[record["code"]]
    found = [check["metric"] for check in record["verdict"]["checks"] if check["outcome"] == word]
    return ", ".join(found) or str(record["verdict"]["reason_code"])


def fault_table(records: list[dict[str, Any]]) -> list[str]:
    """Per fault and algorithm, what a whole session said, which check showed it, and the cause that it named; nothing
    without faults."""
    if not faulty(records):
        return []
    loads = [load for load in LOADS if any(one["load"] == load for one in faulty(records))]
    lines = [
        f"| fault | algorithm | {' | '.join(f'beside {BESIDE[load]} | cause named' for load in loads)} |",
        f"|---|---|{'---|---|' * len(loads)}",
    ]
    found = {(one["kind"], one["algo"], one["load"]): one for one in faulty(records)}
    alike: dict[tuple[str, str], list[str]] = {}
    for kind, algo in sorted({(one["kind"], one["algo"]) for one in faulty(records)}):
        said = [found.get((kind, algo, load)) for load in loads]
        shown = " | ".join(f"{VERDICTS[one['code']]}: {causes(one)} | {cause(one)}" if one else " | " for one in said)
        alike.setdefault((kind, shown), []).append(algo)
    return lines + [f"| `{kind}` | {', '.join(algos)} | {shown} |" for (kind, shown), algos in alike.items()]


def faulty(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in records if one["kind"] not in ("baseline", "unchanged")]


def cause(record: dict[str, Any]) -> str:
    """The first cause named, and where the right one stands among them: the rules are not told the fault."""
    named, right = record["verdict"].get("causes") or [], RIGHT.get(record["kind"], ())
    at = next((place for place, one in enumerate(named, 1) if one in right), None)
    return f"{named[0]} ({'right' if at == 1 else f'right one is number {at}' if at else 'wrong'})" if named else "none"


def cause_table(records: list[dict[str, Any]]) -> list[str]:
    """Of the faults that the gate saw, how often the right cause came first, or among the first three."""
    seen = [one for one in faulty(records) if one["code"] == 1 or (one["code"] == 3 and one["verdict"].get("causes"))]
    calm = [one for one in records if one["kind"] == "unchanged"]

    def right(most: int) -> int:
        named = [(one["kind"], one["verdict"].get("causes") or []) for one in seen]
        return sum(any(cause in RIGHT.get(kind, ()) for cause in causes[:most]) for kind, causes in named)

    quiet = sum(not one["verdict"].get("causes") for one in calm)
    return [
        "| sessions | how many | right cause first | among the first three | no cause named |",
        "|---|---|---|---|---|",
        f"| with a fault that the gate saw | {len(seen)} of {len(faulty(records))} | {right(1)} | {right(3)} | |",
        f"| unchanged | {len(calm)} | | | {quiet} |",
    ]


def write(file: Path, tables: dict[str, list[str]]) -> None:
    """Put each table between its marks, where the file has them. Raises SystemExit where it has none at all."""
    text, found = file.read_text(), 0
    for mark, lines in tables.items():
        begin, end = f"<!-- {mark}: begin -->\n", f"<!-- {mark}: end -->"
        if begin in text:
            (head, rest), found = text.split(begin, 1), found + 1
            text = f"{head}{begin}{chr(10).join(lines)}\n{end}{rest.split(end, 1)[1]}"
    if not found:
        raise SystemExit(
            f"{file}: no place for a table; expected a line <!-- {next(iter(tables))}: begin --> and its end"
        )
    file.write_text(text)
