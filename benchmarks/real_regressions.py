"""Real regressions of trl, transformers and peft in two old environments: does `canary upgrade` see and name them?

    python benchmarks/real_regressions.py [--only NAME …] [--harmless] [--releases] [--out FILE]
    python benchmarks/real_regressions.py --write benchmarks/data/regressions.md

Each row is a pair of releases from a public thread. benchmarks/regressions/train.py, which does not import this
project, trains in both and says first whether the regression is there at all; then `canary upgrade` tries the same
script with its callback, with three or more packages moved that have nothing to do with it. Environments are built by
uv from the package index, and kept (CANARY_ENVIRONMENTS). A row that cannot be built is said and skipped. `--harmless`:
consecutive minor releases instead, which are to block on nothing but a fact that really differs. One JSON line for each
row; rows that are in FILE already are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from campaign_tables import write  # the path is set above
from regression_rows import HARMLESS, LATER, OWN, ROWS, SILENT, THREADS, UNSEEN, WIDER, Row

from canary_mlflow.errors import CanaryError
from canary_mlflow.reports.differences import differing
from canary_mlflow.reports.upgrade import explained
from canary_mlflow.upgrading.environments import build
from canary_mlflow.upgrading.outcome import PackageSets
from canary_mlflow.upgrading.pins import lock
from canary_mlflow.upgrading.probing import Prober
from canary_mlflow.upgrading.upgrade import Trial

SCRIPTS = Path(__file__).with_name("regressions")
OURS = ("mlflow==3.17.2", "filelock>=3.15", "junitparser", "psutil", "click>=8.2", "pyyaml", "rich", "scipy",
        "numpy>=2")  # fmt: skip
"""What the callback needs beside the training stack."""


def sides(row: Row) -> PackageSets:
    """Both locked sets; the innocent packages move with the culprit."""
    moving = row.innocents.items()
    before = {**row.base, row.culprit: row.good, **{name: old for name, (old, _) in moving}}
    torch = os.environ.get("REGRESSIONS_TORCH", "2.13.0+cpu")
    names = [word for word in OURS if word.partition("=")[0] not in before]
    good = lock({**before, "torch": torch}, [name for name in names if "psutil" not in name], {})
    bad = lock({row.culprit: row.bad, **{name: new for name, (_, new) in moving}}, good, good)
    return PackageSets(before=good, now=bad)


def bare(python: Path, row: Row) -> dict[str, Any]:
    """What the script says of itself, without this project."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [str(python), str(SCRIPTS / row.script), row.kind], cwd=folder, capture_output=True, text=True, check=False,
            env={**os.environ, "WATCHED": "0", "PYTHONPATH": ""},
        )  # fmt: skip
    line = next((line for line in done.stdout.splitlines() if line.startswith("SEEN ")), "")
    if line:
        found: dict[str, Any] = json.loads(line.removeprefix("SEEN "))
        return found
    return {"ended": (done.stderr.strip().splitlines() or ["nothing"])[-1][:200]}


def try_(row: Row, work: Path, *, releases: bool, bisect: bool = True) -> dict[str, Any]:
    """One row: whether it reproduces, whether it was seen, by what, and which package was named."""
    said: dict[str, Any] = {"name": row.name, "source": row.source, "pair": f"{row.culprit} {row.good} → {row.bad}"}
    try:
        plan = sides(row)
        python = [build(pins) for pins in (plan.before, plan.now)]
    except CanaryError as error:
        return {**said, "skipped": str(error)[:300]}
    good, bad = (bare(one, row) for one in python) if row in ROWS else ({}, {})
    try:
        said["reproduces"] = bool(row.shows(good, bad)) if good else None
    except (KeyError, TypeError, ZeroDivisionError) as error:
        said["reproduces"] = False
        said["why"] = f"{error!r}: {good.get('ended', 'good')} / {bad.get('ended', 'bad')}"
    prober = Prober(command=f"python {SCRIPTS / row.script} {row.kind}", work=work, overrides={"WATCHED": "1"})
    trial = Trial(plan=plan, prober=prober, say=lambda line: print(f"  {row.name}: {line}", file=sys.stderr))
    try:
        found = trial.carry_out(bisect=bisect, releases=releases)
    except CanaryError as error:
        return {**said, "skipped": str(error)[:300]}
    named = [one.name for one in found.culprit.packages] if found.culprit else []
    return {
        **said,
        "outcome": found.outcome,
        "open": found.finding.open,
        "seen": [one.said[:160] for one in found.finding.symptoms[:3]],
        "named": explained(found.culprit) if found.culprit else "",
        "right": named[:1] == [row.culprit],
        "moved": len(plan.changes),
        "defaults": [[one.key, one.before[:60], one.now[:60], one.explains] for one in found.defaults],
        "besides": [one.key for one in differing(found.finding.differences) if not one.decides][:8],
        "probes": len(found.probes),
        "minutes": round(found.seconds / 60, 1),
    }


def table(found: list[dict[str, Any]]) -> list[str]:
    """A line for each regression, which says more where it does not block or another package is named; then one for all
    harmless pairs, and one for each of those that is no PASS."""
    lines = ["| pair | thread | what blocks |", "|---|---|---|"]
    real = {row.name for row in ROWS}
    for one in (one for one in found if one["name"] in real):
        if "skipped" in one or not one["reproduces"]:
            why = f"not tried: {cell(one['skipped'])}" if "skipped" in one else "does not reproduce"
            lines.append(f"| {one['pair']}, {one['name']} | {one['source']} | {why} |")
            continue
        said = cell((*one["seen"], one["open"], "nothing that blocks")[0])
        said = said if one["outcome"] == "BLOCK" else f"{one['outcome']}: {said}"
        said += "" if one["right"] else f"; named: {cell(one['named']) or 'nothing'}"
        lines.append(f"| {one['pair']}, {one['name']} | {one['source']} | {said} |")
    calm = [one for one in found if one["name"] not in real]
    tried = [one for one in calm if "skipped" not in one]
    passed = sum(one["outcome"] == "PASS" for one in tried)
    if calm:
        lines += ["", f"Of {len(calm)} consecutive releases {len(tried)} installed, {passed} PASS."]
    if others := [one for one in tried if one["outcome"] != "PASS"]:
        lines += ["", "| pair | `canary upgrade` says | because of |", "|---|---|---|"]
    for one in others:
        why = "; ".join(map(cell, one["seen"] or one["besides"][:4])) or cell(one["open"])
        lines.append(f"| {one['pair']} | {one['outcome']} | {why} |")
    return lines


def cell(text: str) -> str:
    """It in one cell of a table, without the place of an environment."""
    text = re.sub(r" \(/\S*", "", text)
    return text.replace("|", "/").replace("`", "'").replace("\n", " ")[:80]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--harmless", action="store_true")
    parser.add_argument("--releases", action="store_true", help="halve over the culprit's releases too")
    parser.add_argument("--no-bisect", action="store_true", help="only whether it is seen, not by which package")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    parser.add_argument("--work", type=Path, default=Path(".canary-upgrade"))
    parser.add_argument("--table", action="store_true", help="Try nothing: the table of what FILE holds.")
    parser.add_argument("--write", type=Path, metavar="DOCUMENT", help="Put it between the marks of a document.")
    given = parser.parse_args()
    there = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    if given.table or given.write:
        marks = {"unseen": UNSEEN, "later": LATER, "wider": WIDER, "own": OWN, "threads": THREADS, "silent": SILENT}
        parts = {f"{mark} regressions": [one for one in there if one["name"] in {row.name for row in rows}]
                 for mark, rows in marks.items()}  # fmt: skip
        known = {id(one) for part in parts.values() for one in part}
        parts["real regressions"] = [one for one in there if id(one) not in known]
        tables = {mark: table(rows) for mark, rows in parts.items() if rows}
        print("\n\n".join("\n".join(lines) for lines in tables.values()))
        if given.write:
            write(given.write, tables)
        return
    rows = [row for row in (HARMLESS if given.harmless else ROWS) if not given.only or row.name in given.only]
    for row in rows:
        if any(one["name"] == row.name for one in there):
            continue
        found = try_(row, given.work.absolute(), releases=given.releases, bisect=not given.no_bisect)
        with given.out.open("a") as file:
            file.write(json.dumps(found) + "\n")
        there.append(found)
        print(json.dumps(found))
    done = [one for one in there if one["name"] in {row.name for row in rows}]
    real = [one for one in done if one.get("reproduces")]
    print(json.dumps({
        "rows": len(done),
        "skipped": sum("skipped" in one for one in done),
        "reproduce": len(real),
        "blocked": sum(one.get("outcome") == "BLOCK" for one in real),
        "named": sum(bool(one.get("right")) for one in real),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
