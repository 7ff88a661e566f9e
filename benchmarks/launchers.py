"""What an engine adds: the same smoke runs on this machine, on a Ray cluster of two nodes, by submitit, and on Slurm.

    python benchmarks/launchers.py FOLDER [--algo sft] [--rounds 3] [--only ray submitit slurm]
                                   [--write docs/measured/sessions.md]

The engines take turns, each with a store, in which a session without an engine first makes a champion. Ray runs
sessions; its cluster stands before. submitit and Slurm run sweeps, one job per seed, one after the other, beside
Hydra's own launcher (`sweep`). Slurm's cluster, with this machine as its only node, stands before, and each job gets
all its cores. What Ray or submitit needs must be installed; without Slurm's daemons its row is left out. Exits with 1
if an engine's verdicts or losses differ from those without one. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests")]

import slurm_cluster  # noqa: E402  # the path is set above
from ray_cluster import nodes  # noqa: E402
from sessions import runs_of, train  # noqa: E402

BEGIN, END = "<!-- launchers: begin -->", "<!-- launchers: end -->"
ENGINES = {
    "here": "a session",
    "ray": "the same, `launcher=ray`",
    "sweep": "a sweep over its seeds",
    "submitit": "the same, `hydra/launcher=submitit_local`",
    "slurm": "the same, `hydra/launcher=submitit_slurm`",
}
WITHOUT = {"ray": "here", "submitit": "sweep", "slurm": "sweep"}
SEEDS = ["--multirun", "seed=0,1,2"]
ONE_BY_ONE = "hydra.sweeper.max_batch_size=1"


def words_of(engine: str, stack: ExitStack) -> list[str]:
    """The words that choose the engine; a cluster lives as long as the stack."""
    if engine == "ray":
        return ["launcher=ray", f"launcher.address={stack.enter_context(nodes()).address}"]
    if engine == "slurm":
        os.environ |= stack.enter_context(slurm_cluster.cluster()).environment
        asked = [f"partition={slurm_cluster.PARTITION}", f"cpus_per_task={slurm_cluster.CORES}"]
        return [*SEEDS, "hydra/launcher=submitit_slurm", *(f"hydra.launcher.{one}" for one in asked)]
    own = {"sweep": [*SEEDS, ONE_BY_ONE], "submitit": [*SEEDS, ONE_BY_ONE, "hydra/launcher=submitit_local"]}
    return own.get(engine, [])


def losses(folder: Path) -> list[list[float]]:
    """Each run's losses, by seed, oldest session first."""
    found = runs_of(f"sqlite:///{folder}/mlflow.db")
    series = [
        (str(run.seed), row.info.start_time, list(run.series["loss"].values) if "loss" in run.series else [])
        for row, run in found
    ]
    return [values for _, _, values in sorted(series, key=lambda one: one[:2])]


def table(found: dict[str, dict[str, Any]]) -> str:
    """The rows for the docs."""
    lines = ["| engine | seconds | more than without | exit codes | losses |", "|---|---:|---:|---|---|"]
    for engine, one in found.items():
        other = WITHOUT.get(engine)
        more = f"{one['median'] - found[other]['median']:+.1f}" if other else ""
        same = "" if engine == "here" else "bit-equal" if one["losses_equal"] else "DIFFERENT"
        codes = ", ".join(str(code) for code in one["codes"])
        lines.append(f"| {ENGINES[engine]} | {one['median']:.1f} | {more} | {codes} | {same} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--algo", default="sft")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    if "slurm" in given.only and (why := slurm_cluster.lacking()):
        print(f"slurm is left out: {why}", file=sys.stderr)
        given.only.remove("slurm")
    wanted = {"here", *given.only, *(WITHOUT[engine] for engine in given.only if engine in WITHOUT)}
    engines = [engine for engine in ENGINES if engine in wanted]
    seconds: dict[str, list[float]] = {engine: [] for engine in engines}
    codes: dict[str, list[int]] = {engine: [] for engine in engines}
    with ExitStack() as stack:
        words = {engine: words_of(engine, stack) for engine in engines}
        for at in range(given.rounds + 1):
            for engine in engines:
                started = time.perf_counter()
                place = given.folder.absolute() / engine
                own = words[engine] if at else []
                codes[engine].append(train(place, [f"algo={given.algo}", "hardware=cpu", *own]))
                seconds[engine].append(time.perf_counter() - started)
                print(f"{at} {engine}: exit {codes[engine][-1]}, {seconds[engine][-1]:.1f} s", file=sys.stderr)
    want = losses(given.folder.absolute() / "here")
    found = {
        engine: {
            "seconds": seconds[engine],
            "median": statistics.median(seconds[engine][1:]),
            "codes": codes[engine],
            "losses_equal": losses(given.folder.absolute() / engine) == want,
        }
        for engine in engines
    }
    print(table(found))
    if given.write:
        page = given.write.read_text()
        given.write.write_text(f"{page.partition(BEGIN)[0]}{BEGIN}\n{table(found)}\n{END}{page.partition(END)[2]}")
    print(json.dumps({"benchmark": "launchers", "algo": given.algo, **found}))
    return int(any(one["codes"] != codes["here"] or not one["losses_equal"] for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
