"""A campaign of whole sessions: unchanged code with seeds that the champion does not have, and every fault.

    python benchmarks/campaign.py make FOLDER --commit REV [--loads quiet busy] [--kinds unchanged faults]
                                     [--algos sft …] [--champions N] [--minutes N] [--hardware cuda]
                                     [--words tier=perf …]
    python benchmarks/campaign.py show FOLDER|FILE … [--write docs/measured/sessions.md]
    python benchmarks/campaign.py late FOLDER|FILE …
    python benchmarks/campaign.py saved FOLDER|FILE …
    python benchmarks/campaign.py pack FOLDER benchmarks/data/campaign.jsonl.gz

Per algorithm and load, up to five sessions each become a champion in a store of its own, with seeds that are drawn from
the commit's hash. Each candidate is a session as `python -m training` makes it, with three other seeds, beside one of
them, in a copy of its store: it registers, tops up, is judged, and promotes, as for anybody. `busy`: one busy loop
holds a core meanwhile; `shared`: the machine does whatever else it does. The load average is recorded. What is there
already is not made again, so a campaign can be stopped and grown (`--unchanged`).

`show` counts verdicts, with intervals by session, and what the gate says of each session's runs beside each champion of
its row (pairs, which are not independent); and whether the cause that a fault's verdict names is the right one.
`--words`: more of a session's command line. `saved` says how much of each session was not made, as it failed fast.
`late` says what the gate answers of the same pairs if the candidate's steps cost more from three fifths of each run on.
`pack` keeps each session's verdict, and of each run the series that the policy judges, to five digits.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from campaign_tables import (  # noqa: E402  # the path is set above
    ALGOS,
    LOADS,
    VERDICTS,
    cause_table,
    causes,
    fault_table,
    late_table,
    read,
    saved_table,
    unchanged_table,
    write,
)
from ppo_learns import drawn  # noqa: E402
from sessions import busy_loop, python_path, runs_of  # noqa: E402

BASELINES = 5
APART = 10  # between the first seeds of two sessions: no seed is in both
DIGITS = 5
TOLD = {"gpu_utilization"}  # what tells by which clock to judge


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One session. `baseline`: the number of the champion that it stands beside; None for a champion itself."""

    algo: str
    load: str
    kind: str  # baseline, unchanged, or a fault's name
    number: int
    baseline: int | None = None

    @property
    def label(self) -> str:
        return f"{self.algo}-{self.load}-{self.kind}-{self.number}"

    @property
    def words(self) -> list[str]:
        fault = [] if self.kind in ("baseline", "unchanged") else [f"fault={self.kind}"]
        return [f"algo={self.algo}", *fault]


def faults_of(algo: str) -> list[str]:
    """The faults that apply to it."""
    found = [yaml.safe_load(file.read_text()) for file in sorted((ROOT / "conf/fault").glob("[!_]*.yaml"))]
    return [one["name"] for one in found if algo in one.get("signals", {})]


def cells(
    load: str, kinds: Iterable[str], unchanged: int, algos: Sequence[str] = ALGOS, champions: int = BASELINES
) -> Iterator[Cell]:
    """Rounds over the algorithms, so that a stopped campaign is even: an unchanged session each, then some faults."""
    rounds = max(1, unchanged if "unchanged" in kinds else BASELINES)
    left = {algo: list(enumerate(faults_of(algo))) if "faults" in kinds else [] for algo in algos}
    for number in range(rounds):
        for algo in algos:
            if "unchanged" in kinds and number < unchanged:
                yield Cell(algo=algo, load=load, kind="unchanged", number=number, baseline=number % champions)
            due = -(-len(left[algo]) // (rounds - number))
            for index, fault in (left[algo].pop(0) for _ in range(due)):
                yield Cell(algo=algo, load=load, kind=fault, number=0, baseline=index % champions)


def with_champion(folder: Path, cell: Cell) -> Iterator[Cell]:
    """The session and, where its champion is not there yet, that one first: the first of four that becomes one."""
    for again in range(4):
        if not champion_of(folder, cell).exists():
            yield replace(cell, kind="baseline", number=(cell.baseline or 0) + again * BASELINES, baseline=None)
    if champion_of(folder, cell).exists():
        yield cell


def champion_of(folder: Path, cell: Cell) -> Path:
    return folder / "champions" / f"{cell.algo}-{cell.load}-{cell.baseline}"


def seed_of(cell: Cell, commit: str) -> int:
    """The session's first seed: drawn, and no neighbour of another session's."""
    number = int.from_bytes(cell.label.encode(), "big") % 10_000_019
    return drawn(f"{commit} {number}", 1)[0] * APART


def make(folder: Path, cell: Cell, commit: str, hardware: str, words: Sequence[str] = ()) -> dict[str, Any]:
    """The session's record; trains where there is none yet. The work is done at one place, as stores hold paths.
    `words`: more for its command line."""
    record = folder / "records" / f"{cell.label}.json"
    if record.exists():
        return dict(json.loads(record.read_text()))
    place, kept = folder / "place", champion_of(folder, cell)
    shutil.rmtree(place, ignore_errors=True)
    if cell.baseline is None:
        place.mkdir(parents=True)
    else:
        shutil.copytree(kept, place)
    seed, began = seed_of(cell, commit), time.time()
    before = {row.info.run_id for row, _ in runs_of(uri_of(kept))} if cell.baseline is not None else set()
    found = session(place, folder / "cache", [*cell.words, f"hardware={hardware}", f"seed={seed}", *words], cell.load)
    said = [file for file in place.rglob("verdict.json") if file.stat().st_mtime > began]
    plain = json.loads(said[-1].read_text()) if said else {}
    store = folder / "stores" / cell.label  # of its own: MLflow keeps the file open that it has read once
    for needed in (store, record.parent):
        needed.mkdir(parents=True, exist_ok=True)
    shutil.copy(place / "mlflow.db", store)
    made = [run for row, run in runs_of(uri_of(store)) if row.info.run_id not in before]
    runs = [plain_run(run, judged_in(plain)) for run in made]
    answer = {**asdict(cell), "commit": commit, "seed": seed, **found, "verdict": brief(plain), "runs": runs}
    if cell.baseline is None and found["code"] == 0:
        shutil.copytree(place, champion_of(folder, replace(cell, baseline=cell.number % BASELINES)))
    record.write_text(json.dumps(answer))
    return answer


def uri_of(place: Path) -> str:
    return f"sqlite:///{place}/mlflow.db"


def full_hash(commit: str) -> str:
    """A commit's 40 digits; those are taken as they are where there is no repository."""
    if re.fullmatch("[0-9a-f]{40}", commit):
        return commit
    asked = ["git", "rev-parse", commit]
    return subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def session(place: Path, cache: Path, words: list[str], load: str) -> dict[str, Any]:
    """Run it as a user does; the exit code, and what it took."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "CANARY_"))}
    own = {"PYTHONPATH": python_path(ROOT), "CANARY_CACHE": str(cache), "CANARY_KEYS": str(place / "keys")}
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with busy_loop(load == "busy"):
        done = subprocess.run(
            [sys.executable, "-m", "training", *words], cwd=place, env={**kept, **own}, capture_output=True, text=True
        )
        seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    took = {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1), "load_average": round(os.getloadavg()[0], 1)}
    broke = {"error": done.stderr.strip()[-1500:]} if done.returncode in (2, 4) else {}
    return {"code": done.returncode, **took, **broke}


def brief(plain: dict[str, Any]) -> dict[str, Any]:
    """Of a verdict: the answer, why, and each check that decided or was in the way."""
    verdict = plain.get("verdict", plain)
    shown = [
        {key: check.get(key) for key in ("metric", "role", "outcome", "reason", "evidence")}
        for check in verdict.get("checks", [])
        if check["outcome"] in ("BLOCK", "INCONCLUSIVE", "WARN")
    ]
    keys = ("outcome", "reason_code", "reason", "look", "planned_runs")
    named = [one["rule"] for one in verdict.get("causes", [])]
    return {**{key: verdict.get(key) for key in keys}, "checks": shown, "causes": named}


def judged_in(plain: dict[str, Any]) -> set[str]:
    """The series that the policy's rules read."""
    policy = plain.get("verdict", plain).get("policy", {})
    rules = policy.get("rules", [])
    return {rule["metric"] for rule in (rules.values() if isinstance(rules, dict) else rules)}


def plain_run(run: Any, judged: set[str]) -> dict[str, Any]:
    """What a judge reads of a run."""
    series = {
        name: [found.steps.tolist(), found.values.tolist()]
        for name, found in run.series.items()
        if name in judged | TOLD
    }
    facts = ("seed", "completed", "failure", "learned", "learned_reason", "invariants", "nan_steps", "inf_steps",
             "last_step")  # fmt: skip
    held = {"critical_held": run.critical_held, "workload": dict(run.workload), "hardware": dict(run.hardware)}
    return {**{name: getattr(run, name) for name in facts}, **held, "series": series}


def pack(folder: Path, file: Path) -> None:
    with gzip.GzipFile(file, "wb", mtime=0) as stream:
        for record in read(folder):
            for series in chain.from_iterable(run["series"].values() for run in record["runs"]):
                series[1] = [float(f"{value:.{DIGITS}g}") for value in series[1]]
            stream.write((json.dumps(record, separators=(",", ":")) + "\n").encode())
    print(f"{file}: {file.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("act", choices=("make", "show", "late", "saved", "pack"))
    parser.add_argument("paths", type=Path, nargs="+", help="see above")
    parser.add_argument("--commit", default="HEAD", help="the commit whose hash the seeds are drawn from")
    parser.add_argument("--loads", nargs="+", default=("quiet", "busy"), choices=LOADS)
    parser.add_argument("--kinds", nargs="+", default=("unchanged", "faults"), choices=("unchanged", "faults"))
    parser.add_argument("--algos", nargs="+", default=ALGOS, choices=ALGOS)
    parser.add_argument("--unchanged", type=int, default=20, help="unchanged sessions per algorithm and load")
    parser.add_argument("--champions", type=int, choices=range(1, BASELINES + 1), default=BASELINES)
    parser.add_argument("--hardware", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no session after so many")
    parser.add_argument("--words", nargs="+", default=())
    parser.add_argument("--write", type=Path, nargs="*", default=())
    options = parser.parse_args()
    if options.act == "pack":
        return pack(*options.paths)
    if options.act == "make":
        folder, last = options.paths[0].resolve(), time.monotonic() + 60 * options.minutes
        commit = full_hash(options.commit)
        for load in options.loads:
            planned = cells(load, options.kinds, options.unchanged, options.algos, options.champions)
            for cell in chain.from_iterable(with_champion(folder, one) for one in planned):
                if time.monotonic() < last:
                    made = make(folder, cell, commit, options.hardware, options.words)
                    took = f"{made['seconds']:6.1f} s"
                    print(f"{cell.label:40s} {VERDICTS[made['code']]:13s} {took} {causes(made)}".rstrip(), flush=True)
        return None
    records = [record for path in options.paths for record in read(path)]
    if options.act in ("late", "saved"):
        print("\n".join({"late": late_table, "saved": saved_table}[options.act](records)))
        return None
    tables = {
        "campaign unchanged": unchanged_table(records),
        "campaign faults": fault_table(records),
        "campaign causes": cause_table(records),
    }
    tables = {mark: lines for mark, lines in tables.items() if lines}
    print("\n\n".join("\n".join(lines) for lines in tables.values()))
    for file in options.write:
        write(file, tables)
    return None


if __name__ == "__main__":
    main()
