"""How soon the page of a running training names a chart that left the champion's band.

    python benchmarks/live_page.py [--fault kl_zero] [--seeds 7 11 12 13]

A PPO champion of one run; then, for each seed, a run with the fault, whose page is open in Chromium from its start.
For each chart that the page names: the seconds from the row where it left the band, as the run itself wrote it down, to
the moment when its name stands on the page. The page asks for five rows in a row outside before it says anything, and
for new rows every two seconds. The last line is one JSON object. Needs Chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
os.environ.setdefault("CANARY_KEYS", tempfile.mkdtemp(prefix="canary-bench-keys-"))

from browser import canary_ui, chromium, window  # noqa: E402  # the path is set above

from canary_mlflow.registry.acts.by_hand import bless  # noqa: E402
from canary_mlflow.tracking.sinks import STABILITY  # noqa: E402
from canary_mlflow.tracking.stores.places import local_folder  # noqa: E402
from canary_mlflow.tracking.stores.store import prepare_store  # noqa: E402

AFTERWARDS = 6.0  # seconds that the page stays open when the run is over
BEGINS = "Out of the champion's band: "


def training(folder: Path, uri: str, *words: str) -> subprocess.Popen[bytes]:
    """A session of one PPO run."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    command = [sys.executable, "-m", "training", "algo=ppo", "repeats=1", *words]
    with (folder / "training.log").open("ab") as log:
        environment = {**kept, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": uri, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


def begun(client: Any, known: set[str]) -> str:
    """Wait for a run that is not `known`; its id."""
    while True:
        found = client.search_runs(experiments(client), "tags.`canary.role` = 'run'")
        if new := [run.info.run_id for run in found if run.info.run_id not in known]:
            return str(new[0])
        time.sleep(0.1)


def experiments(client: Any) -> list[str]:
    return [one.experiment_id for one in client.search_experiments()]


def watched(page: Any, process: subprocess.Popen[bytes]) -> dict[str, tuple[float, int]]:
    """Look at the page until the run is over. Chart → (when it was first named, the step at which it left)."""
    named: dict[str, tuple[float, int]] = {}
    end = None
    while end is None or time.time() < end:
        text = page.evaluate("document.getElementById('gone').textContent")
        for part in filter(None, text.removeprefix(BEGINS).rstrip(".").split("; ")):
            chart, _, rest = part.rpartition(" at step ")
            named.setdefault(chart, (time.time(), int(rest.split(" ")[0])))
        if end is None and process.poll() is not None:
            end = time.time() + AFTERWARDS
        page.wait_for_timeout(100)
    return named


def written(client: Any, run_id: str) -> dict[int, float]:
    """Step → when the run wrote its row, in seconds since 1970."""
    place = local_folder(client.get_run(run_id).info.artifact_uri)
    rows = map(json.loads, (Path(str(place)) / STABILITY).read_text().splitlines())
    return {row["step"]: datetime.fromisoformat(row["timestamp"]).timestamp() for row in rows}


def measure(fault: str, seeds: list[int], folder: Path) -> dict[str, dict[str, float]]:
    """Seed → chart → seconds from the row where it left the band to its name on the page."""
    uri, found = f"sqlite:///{folder}/mlflow.db", {}
    client = prepare_store(uri)
    training(folder, uri, "seed=1").wait()
    bless(client, next(iter(client.search_registered_models())).name, "1", "a champion of one run")
    with canary_ui(uri, folder) as address, chromium() as browser:
        for seed in seeds:
            known = {run.info.run_id for run in client.search_runs(experiments(client))}
            process = training(folder, uri, f"seed={seed}", f"fault={fault}")
            run_id = begun(client, known)
            with window(browser, address) as seen:
                seen.page.goto(f"{address}/canary/run?id={run_id}")
                named = watched(seen.page, process)
            rows = written(client, run_id)
            delays = {chart: round(at - rows[step], 1) for chart, (at, step) in named.items() if step in rows}
            found[str(seed)] = delays
            print(f"seed {seed}: {', '.join(f'{chart} {took:.1f} s' for chart, took in delays.items())}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", default="kl_zero")
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 11, 12, 13])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="canary-live-") as folder:
        print(json.dumps({"benchmark": "live page", "seconds": measure(asked.fault, asked.seeds, Path(folder))}))


if __name__ == "__main__":
    main()
