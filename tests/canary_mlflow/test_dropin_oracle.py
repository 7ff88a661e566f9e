"""The callback on trl 1.12.0, in a separate process that imports that release first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.sides import candidate_side
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.describing.schema import required
from canary_mlflow.tracking.reading.histories import read_runs

ROOT = Path(__file__).resolve().parents[2]
ORACLE = ROOT / ".oracle"

pytestmark = pytest.mark.skipif(
    not (ORACLE / "trl").is_dir(), reason="trl 1.12.0 is not there; `make oracle` brings it"
)


@pytest.fixture(scope="module")
def runs(shared: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("oracle")
    paths = [ORACLE, ROOT, ROOT / "tests", ROOT / "tests" / "oracle"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "oracle" / "dropin.py"), shared.uri, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return dict(zip(found, read_runs(shared.client, list(found.values())), strict=True))


@pytest.mark.parametrize("algo", ["ppo", "sft", "dpo"])
def test_a_run_on_trl_1_12_has_what_it_must_have(algo: str, runs: dict[str, Run], shared: Any) -> None:
    run = runs[algo]
    assert run.environment["trl"] == "1.12.0"
    assert (run.completed, run.failure, run.failure_reason) == (True, "", "")
    assert set(required(algo, {"beta": 0.1})) <= run.series.keys()
    stored = shared.client.get_run(run.run_id)
    assert stored.info.status == "FINISHED"
    assert not expanded(stored.data.tags).get("canary.troubles")
    assert expanded(stored.data.tags)["canary.invariants"] == "ok"
    assert candidate_side([run]).evidence == (run,)


def test_trls_ppo_is_measured_where_it_tells_nobody(runs: dict[str, Run]) -> None:
    run = runs["ppo"]
    steps = [1, 2, 3]
    for name in ("iteration_time", "time_generate", "time_reference", "time_forward", "time_backward", "tokens"):
        assert run.series[name].steps.tolist() == steps, name
    assert (run.series["grad_norm"].values > 0).all()  # it logs none
    assert "clipped" not in run.series  # and does not clip
    assert (run.series["time_generate"].values < run.series["iteration_time"].values).all()
