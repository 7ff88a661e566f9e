"""What an open page costs the training that it shows.

    python benchmarks/open_page.py [--minutes 6] [--viewers 10]

One smoke canary trains for so long beside `canary ui`, and its page is open (the requests of a browser, as often) for
10 seconds in every 20: spells of one run a few seconds apart differ far less than two runs do. Even so, the cost of one
page is lost in their differences; so several viewers look at once, and the cost of one is theirs divided by their
number: pages do not get cheaper if there are more. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

from browser import canary_ui  # noqa: E402
from page import get  # noqa: E402

EVERY = 2.0  # seconds between the refreshes of a run's curves
RARELY = 5  # such refreshes for each one of the rest of the page
SPELL = EVERY * RARELY  # seconds with viewers, or without
WARM = 100  # steps before the first spell


def training(minutes: float, viewers: int) -> dict[str, Any]:
    """Mean step of one long training with so many viewers relative to that without, by pairs of spells."""
    from canary_mlflow.tracking.stores.store import prepare_store

    with tempfile.TemporaryDirectory(prefix="canary-page-") as made:
        folder = Path(made)
        uri = f"sqlite:///{folder}/mlflow.db"
        client = prepare_store(uri)
        with canary_ui(uri, folder) as address:
            server = psutil.Process().children(recursive=True)
            with trained(folder, uri):
                run = begun(client)
                turns = list(in_turn(60 * minutes / SPELL))
                audience = [Viewer(f"{address}/canary/run", run) for _ in range(viewers)]
                spells, shares = zip(*(spell(audience if looking else [], server) for looking in turns), strict=True)
        found: dict[str, Any] = {"viewers": viewers}
        for name in ("step_time", "step_cpu_time"):
            points = client.get_metric_history(run, f"perf/{name}")
            found[name] = one = compared([mean_within(points, *one) for one in spells], viewers)
            for count, many in ((viewers, "all_percent"), (1, "one_percent")):
                effect, low, high = one[many]
                print(f"{name:<14} {one['without_ms']:.2f} ms; pages open: {count}, "
                      f"{effect:+.2f} % [{low:+.2f}, {high:+.2f}], {one['pairs']} pairs of spells")  # fmt: skip
        for looking, word in ((True, "open"), (False, "shut")):
            shares_of = [share for share, one in zip(shares, turns, strict=True) if one is looking]
            found[f"server_cpu_{word}_percent"] = 100 * statistics.fmean(shares_of)
            print(f"the server, {viewers} pages {word}: {100 * statistics.fmean(shares_of):.2f} % of one core")
    return found


def in_turn(count: float) -> Iterator[bool]:
    """Whether somebody looks: no, yes, yes, no, repeated, so that neither side has the earlier half of the run."""
    for number in range(4 * max(1, round(count / 4))):
        yield number % 4 in (1, 2)


@dataclass
class Viewer:
    """Somebody who looks at the page of a run."""

    page: str
    run: str
    after: int = 0  # the last step that the page has

    def look(self, wait: float) -> None:
        """For one spell, make the requests of the page's script, the first after `wait` seconds."""
        began = time.time() + wait
        for turn in range(RARELY):
            time.sleep(max(0.0, began + turn * EVERY - time.time()))
            self.after = json.loads(get(f"{self.page}.json?id={self.run}&after={self.after}"))["next"]
            if turn == 0:
                get(f"{self.page}?id={self.run}")


def spell(audience: list[Viewer], server: list[psutil.Process]) -> tuple[tuple[float, float], float]:
    """Let the training run for one spell. Returns (the seconds since 1970 between which its steps count, the share of a
    core that the server used). The viewers start one after the other, as people do."""
    began, taken = time.time(), cpu_seconds(server)
    with ThreadPoolExecutor(max(1, len(audience))) as pool:
        looks = [pool.submit(one.look, EVERY * place / len(audience)) for place, one in enumerate(audience)]
        time.sleep(SPELL)
    for look in looks:
        look.result()  # raises its exception, if it had one
    ended = time.time()
    return (began, ended), (cpu_seconds(server) - taken) / (ended - began)


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """User and system time of the processes so far, in seconds."""
    return sum(one.cpu_times().user + one.cpu_times().system for one in processes)


def mean_within(points: list[Any], began: float, ended: float) -> float:
    """The mean of what was recorded in a spell: a median would miss one step in a hundred that takes twice as long."""
    return statistics.fmean(float(one.value) for one in points if began <= one.timestamp / 1000 < ended)


def compared(means: list[float], viewers: int) -> dict[str, Any]:
    """The effect of looking: the median over the groups of four spells (no, yes, yes, no), with its 95 % interval by
    bootstrap; for all viewers, and for one. A median, because now and then a neighbour of this machine stops everything
    for a second."""
    groups = np.log(np.array(means)).reshape(-1, 4)
    effects = (groups[:, 1] + groups[:, 2] - groups[:, 0] - groups[:, 3]) / 2
    rng = np.random.default_rng(0)
    drawn = np.median(rng.choice(effects, (10_000, len(effects))), axis=1)
    logs = [float(np.median(effects)), *np.quantile(drawn, [0.025, 0.975]).tolist()]
    return {
        "without_ms": 1000 * statistics.median(means[0::4] + means[3::4]),
        "all_percent": [100 * math.expm1(value) for value in logs],
        "one_percent": [100 * math.expm1(value) / viewers for value in logs],
        "pairs": 2 * len(effects),
        "spells_ms": [round(1000 * mean, 3) for mean in means],
    }


@contextmanager
def trained(folder: Path, uri: str) -> Iterator[None]:
    """A smoke canary that trains until it is told to stop."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    environment = {**kept, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": uri, "CANARY_KEYS": str(folder / "keys")}
    words = ["tier=smoke", "algo=sft", "repeats=1", "train.max_steps=1000000"]
    command = [sys.executable, "-m", "training", *words]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def begun(client: Any) -> str:
    """Wait until the run is past its first steps; its id."""
    while True:
        time.sleep(1)
        found = client.search_runs(["1", "0"], "tags.`canary.role` = 'run'", max_results=1)
        if found and len(client.get_metric_history(found[0].info.run_id, "perf/step_time")) > WARM:
            return str(found[0].info.run_id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--viewers", type=int, default=10)
    chosen = parser.parse_args()
    print(json.dumps(training(chosen.minutes, chosen.viewers)))


if __name__ == "__main__":
    main()
