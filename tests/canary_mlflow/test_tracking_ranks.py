"""Two processes train together: one run, the numbers of one process, the slowest rank, no waiting for the dead."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import forking
import pytest
from tiny_trainers import build

from canary_mlflow import CanaryCallback
from canary_mlflow.gates.measured import by_layer
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.reading.histories import read_runs

ROOT = Path(__file__).resolve().parents[2]
STEPS = 5
SETTINGS = {"max_steps": STEPS, "data_seed": 3, "seed": 3}

# One launch for everything, because importing is most of it. The last training loses a rank.
SCRIPT = """
import json, math, os, sys, time
from pathlib import Path
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from tiny_trainers import Line, arguments, build
from canary_mlflow import CanaryCallback

uri, tiny, folder, settings = sys.argv[1], sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4])
rank = int(os.environ["RANK"])
ranks = {"ddp_backend": "gloo", "ddp_find_unused_parameters": False}
found = {}

def canary(name):
    return CanaryCallback(tracking_uri=uri, experiment="recorded", run_name=name, system_metrics=False)

def tell():
    (folder / f"rank{rank}.json").write_text(json.dumps(found))

together = canary("together")
build("sft", tiny, folder, [together], per_device_train_batch_size=4, **ranks, **settings).train()
found["together"] = together.run_id

class Rows:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.02 * rank)
        return {"x": torch.ones(4), "labels": torch.tensor(1.0)}

class Uneven(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        self.ballast = bytearray(b"x" * 2**28 * rank)
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if rank == 1 and state.global_step == 1:
            model.w.grad[0] = math.inf

def plain(name, *others, **own):
    args = arguments(TrainingArguments, folder, remove_unused_columns=False, **ranks, **own)
    one = canary(name)
    trainer = Trainer(model=Line(), args=args, train_dataset=Rows(), callbacks=[*others, one])
    return trainer, one

trainer, uneven = plain("uneven", Uneven(), max_steps=4)
trainer.train()
found["uneven"] = uneven.run_id

trainer, healthy = plain("healthy", max_steps=2)
trainer.train()
trainer.evaluate(Rows())
found["healthy"] = healthy.run_id

class WantsToStop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if rank == 0 and state.global_step == 3:
            stopping.stopped = "the watch stopped it"

trainer, stopping = plain("stopping", WantsToStop(), max_steps=12)
trainer.train()
found["stopping"], found["stopped at"] = stopping.run_id, trainer.state.global_step
tell()

class Die(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if rank == 1 and state.global_step == 3:
            os._exit(3)

trainer, dying = plain("dying", Die(), max_steps=12)
try:
    trainer.train()
finally:
    dying.close()
"""


@pytest.fixture(scope="module")
def launched(shared: Any, tiny: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank wrote down."""
    folder = tmp_path_factory.mktemp("ranks")
    script = folder / "ranks.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [forking.python(), "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    done = subprocess.run(
        [*command, shared.uri, tiny, str(folder), json.dumps(SETTINGS)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    files = [folder / f"rank{rank}.json" for rank in (0, 1)]
    assert all(file.exists() for file in files), done.stderr[-3000:]
    assert done.returncode != 0, "the last training loses a rank"
    return [json.loads(file.read_text()) for file in files]


def runs_named(shared: Any, name: str) -> list[Any]:
    return list(shared.client.search_runs([shared.experiment], f"tags.`mlflow.runName` = '{name}'"))


def test_one_run_without_doubled_rows_and_with_the_numbers_of_one_process(
    launched: list[dict[str, Any]], shared: Any, tiny: str, place: Path
) -> None:
    zero, one = launched
    assert one["together"] is None
    (stored,) = runs_named(shared, "together")
    assert stored.info.run_id == zero["together"]
    assert stored.info.status == "FINISHED"
    assert not expanded(stored.data.tags).get("canary.troubles")
    for name in ("stability/loss", "perf/step_time"):
        assert len(shared.client.get_metric_history(stored.info.run_id, name)) == STEPS

    alone = CanaryCallback(sinks=(), system_metrics=False)
    build("sft", tiny, place, [alone], per_device_train_batch_size=8, **SETTINGS).train()
    assert alone.journal is not None
    (run,) = read_runs(shared.client, [zero["together"]])
    moved = alone.journal.probes.tags()["canary.facts.layer_drift"]
    assert {name: float(value) for name, value in json.loads(moved).items()} == pytest.approx(
        {layer: values[0] for layer, values in by_layer([run]).items()}, rel=1e-3
    )
    for name in ("loss", "grad_norm", "entropy", "tokens"):
        expected = [alone.rows[step][name] for step in range(1, STEPS + 1)]
        assert run.series[name].values.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6), name


def test_the_slowest_rank_the_largest_memory_and_every_ranks_bad_values_count(
    launched: list[dict[str, Any]], shared: Any
) -> None:
    (run,) = read_runs(shared.client, [launched[0]["uneven"]])
    assert run.series["data_wait"].values[:3].min() >= 0.08  # of the second rank; the first one's data is there at once
    assert run.series["nonfinite"].values[1] >= 1  # its gradient alone was spoilt
    (other,) = read_runs(shared.client, [launched[0]["together"]])
    assert run.series["peak_memory"].values[-1] > other.series["peak_memory"].values[-1] + 128


def test_the_last_step_is_of_all_ranks_too(launched: list[dict[str, Any]], shared: Any) -> None:
    """There an epoch ends, and an evaluation comes after it: the first rank hides no other's peak."""
    (run,) = read_runs(shared.client, [launched[0]["healthy"]])
    peaks = run.series["peak_memory"].values.tolist()
    assert peaks == sorted(peaks)


def test_a_stop_is_the_same_step_on_every_rank(launched: list[dict[str, Any]], shared: Any) -> None:
    zero, one = launched
    assert zero["stopped at"] == one["stopped at"] <= 6
    (run,) = read_runs(shared.client, [zero["stopping"]])
    assert (run.failure, run.failure_reason) == ("instability", "the watch stopped it")


def test_a_rank_that_dies_leaves_a_failed_run_and_nobody_waiting(launched: list[dict[str, Any]], shared: Any) -> None:
    (stored,) = runs_named(shared, "dying")
    assert stored.info.status == "FAILED"
    assert stored.data.tags["canary.failure"] in ("error", "interrupted")
    assert int(expanded(stored.data.tags)["canary.last_step"]) >= 3
