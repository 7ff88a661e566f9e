"""Sessions of canary trainings that a benchmark makes, each in a folder with a separate store, and their runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from canary_mlflow.gates import Run

ROOT = Path(__file__).resolve().parents[1]


def train(place: Path, words: Sequence[str]) -> int:
    """Train a session in the folder and return its exit code. Raises SystemExit if its words are refused."""
    place.mkdir(parents=True, exist_ok=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    done = subprocess.run(
        [sys.executable, "-m", "training", *words],
        cwd=place,
        env={**kept, "PYTHONPATH": python_path(ROOT)},
        capture_output=True,
        text=True,
    )
    if done.returncode == 2:
        raise SystemExit(f"{place.name}: {done.stderr.strip()[-500:]}")
    return done.returncode


def python_path(*first: Path) -> str:
    """These folders, then those that this process was started with: on a machine that reaches no index they hold the
    packages."""
    return os.pathsep.join([*map(str, first), *filter(None, [os.environ.get("PYTHONPATH")])])


@contextlib.contextmanager
def busy_loop(wanted: bool) -> Iterator[None]:
    """A busy loop holds a core meanwhile, if it is wanted."""
    code = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"  # no longer than this process
    process = subprocess.Popen([sys.executable, "-c", code]) if wanted else None
    try:
        yield
    finally:
        if process:
            process.kill()
            process.wait()


def store_of(place: Path) -> Path:
    """The database in which `train` records."""
    return place / "mlflow.db"


def runs_of(uri: str) -> list[tuple[Any, Run]]:
    """The runs of a store in the order in which they began: (MLflow's run, the run as the gate reads it)."""
    from canary_mlflow.tracking.reading.histories import read_runs
    from canary_mlflow.tracking.stores.store import experiment_id, prepare_store

    client = prepare_store(uri)
    found = client.search_runs(
        [experiment_id(client, "canary")], "tags.`canary.role` = 'run'", order_by=["start_time"], max_results=5000
    )
    return list(zip(found, read_runs(client, [row.info.run_id for row in found]), strict=True))
