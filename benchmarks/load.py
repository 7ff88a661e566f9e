"""Many runs that write at once, with and without faults, and the gate in a store of many runs and versions.

    python benchmarks/load.py [--runs 50] [--steps 150] [--pace 0.2] [--stored 10000] [--versions 1000]
                              [--only NAME …] [--kept FILE] [--write FILE]

On SQLite and on PostgreSQL, each behind a real `mlflow server` with the guard, unless a line says otherwise. Each run
is a process that logs 24 metrics at every step. With a fault, every second run ends half-way and leaves what it could
not send; the fault begins after 12 s, so the steps should take about 30 s. Then `canary deliver` runs, up to three
times while it says that something still waits, and the store's tables are counted. The full disk is a small one of its
own, which only root may mount, and all files of the database lie on it.

Of the many runs and versions most are written straight into the tables. The gate judges a version against the champion
as usual and moves nothing: the decision alone, up to its row in the ledger; the same with the session's report and
pictures; and `canary gate` as a command, from its start to its end, most of which is loading MLflow.

`--only`: these measurements, named as in the last line. `--kept`: a file with what has been measured, which is not
measured again. `--write`: puts the tables into a page between its marks. The last line is one JSON object. Exit code 1:
something was lost or doubled, a run did not end, or a bound is broken.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gate_tables import around_marks, write_tables
from load_registry import registry
from load_writers import load

MARK = "load"
STORES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
FAULTS = {
    "none": "nothing breaks",
    "killed": "the server is killed, and started 15 s later",
    "500": "it answers 500 for 15 s; half of that had been stored",
    "hangs": "it stands still for 60 s",
    "full": "the database's disk is full for 15 s",
    "direct none": "without a server: nothing breaks",
    "direct locked": "without a server: somebody locks the tables for 60 s",
    "direct full": "without a server: the database's disk is full for 15 s",
}
SIZES = {
    "decision_s": "the gate's decision, with its row in the ledger",
    "gate_s": "the same with the session's report and pictures",
    "command_s": "`canary gate` as a command",
    "children_s": "the runs of a session",
}
BOUNDS = {"decision_s": 2.0, "gate_s": 2.0, "children_s": 0.1}
Found = dict[str, dict[str, Any]]


def measurements(asked: argparse.Namespace) -> dict[str, Callable[[Path], dict[str, Any]]]:
    """Each by its name."""
    made: dict[str, Callable[[Path], dict[str, Any]]] = {}
    of_runs = {"runs": asked.runs, "steps": asked.steps, "pace": asked.pace}
    for store in STORES:
        for fault in FAULTS:
            made[f"{store} {fault}"] = partial(load, store, fault, **of_runs)
        for where in ("direct", "server"):
            sizes = {"runs": asked.stored, "count": asked.versions}
            made[f"{store} registry {where}"] = partial(registry, store, where == "direct", **sizes)
    return made


def measure(asked: argparse.Namespace) -> Found:
    """Everything that was asked for, from the file where it has been measured before."""
    kept = asked.kept.read_text().splitlines() if asked.kept and asked.kept.exists() else []
    found: Found = dict(json.loads(line) for line in kept)
    for name, call in measurements(asked).items():
        if name in found or (asked.only and name not in asked.only):
            continue
        with tempfile.TemporaryDirectory(prefix="canary-load-") as folder:
            found[name] = call(Path(folder))
        line = json.dumps([name, found[name]])
        print(line, file=sys.stderr, flush=True)
        if asked.kept:
            with asked.kept.open("a") as file:
                file.write(f"{line}\n")
    return found


def tables(found: Found) -> list[str]:
    """The lines for the docs; what was not measured on any store has none."""
    names = " | ".join(STORES.values())
    lines = [f"| runs at once | {names} |", "|---|---|---|"]
    for fault, words in FAULTS.items():
        if any(f"{store} {fault}" in found for store in STORES):
            lines.append(f"| {words} | {' | '.join(writers(found.get(f'{store} {fault}')) for store in STORES)} |")
    lines += ["", f"| {sizes_of(found)} | {names} |", "|---|---:|---:|"]
    for key, words in SIZES.items():
        for where in ("direct", "server"):
            if any(f"{store} registry {where}" in found for store in STORES):
                cells = [seconds(found.get(f"{store} registry {where}"), key) for store in STORES]
                lines.append(f"| {words}{', without a server' if where == 'direct' else ''} | {' | '.join(cells)} |")
    return lines


def writers(one: dict[str, Any] | None) -> str:
    """`50 (25 later), 27,000, 0, 0`: runs, those whose rest `canary deliver` sent, values, lost, doubled."""
    if one is None:
        return "not tried"
    later = f" ({one['waited']} later)" if one["waited"] else ""
    return f"{one['runs']}{later}, {one['values']:,}, {one['lost']}, {one['doubled']}"


def seconds(one: dict[str, Any] | None, key: str) -> str:
    """A cell of the second table."""
    return "not tried" if one is None else f"{one[key]:.2g} s" if one[key] < 1 else f"{one[key]:.2f} s"


def sizes_of(found: Found) -> str:
    """`10,028 runs, 1,000 versions of one model, 4,012 rows of the ledger`."""
    for name, one in found.items():
        if "registry" in name:
            of_model = f"{one['model_versions']:,} versions of one model"
            return f"{one['runs']:,} runs, {of_model}, {one['canary_ledger']:,} rows in the ledger"
    return "a large store"


def broken(found: Found) -> list[str]:
    """A sentence for everything that is not as it should be."""
    wrong = [
        f"{name}: {what.replace('_', ' ')}: {one[what]}; expected 0"
        for name, one in found.items()
        for what in ("lost", "doubled", "not_ended")
        if one.get(what)
    ]
    slow = [
        f"{name}: {SIZES[key]}: {one[key]} s; expected at most {most} s"
        for name, one in found.items()
        for key, most in BOUNDS.items()
        if one.get(key, 0.0) > most
    ]
    return wrong + slow


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50, help="that write at once")
    parser.add_argument("--steps", type=int, default=150, help="of each of them")
    parser.add_argument("--pace", type=float, default=0.2, help="seconds of a step")
    parser.add_argument("--stored", type=int, default=10_000, help="runs in the large store")
    parser.add_argument("--versions", type=int, default=1000, help="in the large store")
    parser.add_argument("--only", nargs="*", default=[], help="measurements, by their names in the last line")
    parser.add_argument("--kept", type=Path, help="a file of what has been measured")
    parser.add_argument("--write", type=Path, help="a page with marks for the tables")
    asked = parser.parse_args()
    if asked.write:
        around_marks(asked.write, MARK)  # refused before an hour of measuring, not after
    found = measure(asked)
    lines = tables(found)
    print("\n".join(lines))
    if asked.write:
        write_tables(asked.write, lines, MARK)
    for sentence in (wrong := broken(found)):
        print(sentence, file=sys.stderr)
    print(json.dumps({"benchmark": "load", **found}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
