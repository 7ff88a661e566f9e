"""Where rows go: what each sink writes can be read back, and none blocks another."""

from __future__ import annotations

import json
import logging
import math
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forking
import numpy as np
import pytest

from canary_mlflow.errors import UsageError
from canary_mlflow.files.reading import read_history
from canary_mlflow.tracking.ending import Target
from canary_mlflow.tracking.journal import Journal
from canary_mlflow.tracking.probes import Setting
from canary_mlflow.tracking.sinks import SINKS, SinkSetting, check_names
from canary_mlflow.tracking.stores.places import artifact_folder
from canary_mlflow.tracking.system_metrics import SystemMetrics

IDLE = Setting(model=None, device="cpu", compiled=False, ranks=1, iterates=False, idle_cpu=float)
FIELDS = [
    *("timestamp", "step", "kl", "kl_target_err", "entropy", "reward_mean", "reward_std", "advantage_mean"),
    *("advantage_std", "grad_norm", "ppo_clip_fraction", "tokens_per_second", "batch_size", "policy_loss"),
    "learning_rate",
]


def journal_of(shared: Any, folder: Path, *names: str, algo: str = "dpo") -> Journal:
    run_id = shared.client.create_run(shared.experiment).info.run_id
    artifacts = artifact_folder(shared.client, run_id)
    setting = SinkSetting(folder=folder, artifacts=artifacts, algo=algo, batch_size=16)
    target = Target(client=shared.client, run_id=run_id, owned=True, algo=algo, folder=folder)
    journal = Journal(target, {}, [SINKS[name](setting) for name in names])
    journal.begin(IDLE)
    return journal


def rows_of(journal: Journal) -> list[dict[str, Any]]:
    assert journal.target.client is not None
    path = journal.target.client.download_artifacts(journal.target.run_id, "stability.jsonl")

    def no_number(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=no_number) for line in Path(path).read_text().splitlines()]


def test_stability_jsonl_has_a_line_per_step_in_valid_json(shared: Any, tmp_path: Path) -> None:
    journal = journal_of(shared, tmp_path, "jsonl")
    for step in range(1, 5):
        journal.step_ended(step)
        logs = {"loss": 0.5, "objective/kl": 0.1 * step, "policy/clipfrac_avg": 0.2, "lr": 1e-5, "odd": 1.0}
        logs["grad_norm"] = {2: math.nan, 3: math.inf, 4: -math.inf}.get(step, 1.5)
        journal.logged(step, logs)
    time.sleep(1.0)
    assert len(rows_of(journal)) == 3  # on disk, and an artifact, while training goes on
    journal.finish()
    rows = rows_of(journal)
    assert [list(row)[:15] for row in rows] == [FIELDS] * 4
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["grad_norm"] for row in rows] == [1.5, "NaN", "Infinity", "-Infinity"]
    assert (rows[1]["kl"], rows[1]["ppo_clip_fraction"], rows[1]["batch_size"]) == (0.2, 0.2, 16)
    assert rows[0]["entropy"] is None
    assert rows[0]["timestamp"].endswith("+00:00")
    assert rows[0]["loss"] == 0.5  # the other series follow, a trainer's own do not
    assert not any(key.startswith("trl/") for key in rows[0])


def test_stability_jsonl_can_be_replayed(shared: Any, tmp_path: Path) -> None:
    journal = journal_of(shared, tmp_path, "jsonl")
    norms = [1.0, math.nan, math.inf, 2.0]
    for step, norm in enumerate(norms, 1):
        journal.step_ended(step)
        journal.logged(step, {"loss": 1.0 / step, "grad_norm": norm, "kl_target_error": 0.1, "clip_fraction": 0.3})
    journal.finish()
    assert journal.target.client is not None
    path = journal.target.client.download_artifacts(journal.target.run_id, "stability.jsonl")
    found = read_history(Path(path))
    assert np.array_equal(found.series["grad_norm"].values, norms, equal_nan=True)
    assert found.series["loss"].steps.tolist() == [1, 2, 3, 4]
    assert {"kl_target_error", "clip_fraction"} <= set(found.series)


def test_for_ppo_a_line_is_an_iteration_or_broken(shared: Any, tmp_path: Path) -> None:
    journal = journal_of(shared, tmp_path, "jsonl", algo="ppo")
    for step in range(1, 10):
        journal.step_ended(step)
        journal.logged(step, {"loss": math.nan if step == 5 else 0.5})
        if step % 4 == 0:
            journal.logged(step, {"iteration_time": 2.0, "kl": 0.1, "tokens_prompt": 30.0, "tokens_response": 70.0})
    journal.finish()
    rows = rows_of(journal)
    assert [row["step"] for row in rows] == [4, 5, 8]
    assert [row["tokens_per_second"] for row in rows] == [50.0, None, 50.0]


def test_a_run_that_is_killed_keeps_its_rows(tmp_path: Path) -> None:
    script = f"""
import os, time
from pathlib import Path
from canary_mlflow.tracking.sinks import SINKS, SinkSetting
log = SINKS["jsonl"](SinkSetting(folder=Path({str(tmp_path)!r}), artifacts=None, algo="sft", batch_size=1))
log.begin(None)
for step in range(1, 101):
    log.row_closed(step, {{"loss": 1.0, "entropy": float("nan")}})
time.sleep(1)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([forking.python(), "-c", script], check=False)
    assert done.returncode == -9
    rows = [json.loads(line) for line in (tmp_path / "stability.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 101))


def events(folder: Path) -> Iterator[tuple[str, int, float]]:
    """(tag, step, value) of every scalar in a folder's event files; TFRecord: length, crc, content, crc."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(folder.glob("events.out.tfevents.*")):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            event = Event.FromString(content[at + 12 : at + 12 + length])
            at += 16 + length
            for value in event.summary.value:
                yield value.tag, event.step, value.simple_value


def test_tensorboard_has_every_row(shared: Any, tmp_path: Path) -> None:
    journal = journal_of(shared, tmp_path, "tensorboard")
    for step in (1, 2, 3):
        journal.step_ended(step)
        journal.logged(step, {"loss": 0.5 * step, "odd": math.nan})
    journal.finish()
    journal.logged(3, {"eval_loss": 0.25})
    found = list(events(tmp_path / "tensorboard"))
    assert [(step, value) for tag, step, value in found if tag == "stability/loss"] == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert [math.isnan(value) for tag, _, value in found if tag == "trl/odd"] == [True] * 3
    assert ("quality/eval_loss", 3, 0.25) in found
    assert not shared.client.get_run(journal.target.run_id).data.metrics  # that sink was not asked for


def test_a_missing_writer_is_one_line_and_stops_nothing(
    shared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("tensorboard", "tensorboardX"):
        monkeypatch.setitem(sys.modules, name, None)
    with caplog.at_level(logging.WARNING):
        journal = journal_of(shared, tmp_path, "mlflow", "tensorboard")
    assert "neither tensorboard nor tensorboardX is installed" in caplog.text
    journal.step_ended(1)
    journal.logged(1, {"loss": 0.5})
    journal.finish()
    assert shared.client.get_run(journal.target.run_id).data.metrics == {"stability/loss": 0.5}


def test_an_unknown_sink_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'wandb': no such sink; expected mlflow, jsonl, tensorboard"):
        check_names(["mlflow", "wandb"])


FULL = """
import logging, resource, sys
from pathlib import Path
from mlflow import MlflowClient
from canary_mlflow.tracking.ending import Target
from canary_mlflow.tracking.journal import Journal
from canary_mlflow.tracking.probes import Setting
from canary_mlflow.tracking.sinks import SINKS, SinkSetting

folder = Path(sys.argv[1])
setting = SinkSetting(folder=folder / "r1", artifacts=None, algo="sft", batch_size=1)
target = Target(client=MlflowClient("http://127.0.0.1:9"), run_id="r1", owned=True, algo="sft", folder=folder)
journal = Journal(target, {}, [SINKS["mlflow"](setting), SINKS["jsonl"](setting)])
journal.recorder.outbox.most = 20
journal.begin(Setting(model=None, device="cpu", compiled=False, ranks=1, iterates=False, idle_cpu=float))
resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))  # as a disk that is full from there on
for step in range(1, 201):
    journal.step_ended(step)
    journal.logged(step, {"loss": 1.0, "entropy": 2.0})
journal.finish(timeout=0.5)
print(journal.last_step, journal.recorder.lost, journal.rows_lost)
"""


def test_a_full_disk_and_a_dead_server_cost_no_step_and_are_counted_and_said(tmp_path: Path) -> None:
    done = subprocess.run([forking.python(), "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    last_step, lost, missing = map(int, done.stdout.split())
    assert last_step == 200
    kept = [json.loads(line) for line in (tmp_path / "r1" / "undelivered.jsonl").read_text().splitlines()]
    in_file = sum(len(line["names"]) for line in kept if "names" in line)
    assert lost > 0
    assert lost + in_file == missing == 400
    assert f"{lost} values are lost" in done.stderr
    assert "File too large" in done.stderr
    written = len((tmp_path / "r1" / "stability.jsonl").read_text().splitlines())
    assert f"{200 - written} rows were not kept: [Errno 27] File too large" in done.stderr


def test_the_machine_is_measured_beside_the_run(shared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.05")
    run_id = shared.client.create_run(shared.experiment).info.run_id
    target = Target(client=shared.client, run_id=run_id, owned=True, algo="sft", folder=tmp_path)
    journal = Journal(target, {}, [SystemMetrics(run_id)])
    journal.begin(IDLE)
    assert journal.recorder is not None
    while journal.recorder.outbox.values < 20:
        sum(range(10_000))
    journal.finish()
    memory = shared.client.get_metric_history(run_id, "system/system_memory_usage_percentage")
    assert [point.step for point in memory] == list(range(len(memory)))
    assert len(memory) >= 2
    assert all(0 < point.value < 100 for point in memory)
    assert not journal.rows  # the machine's numbers are no steps
