"""Probes and fingerprint on their own: cases that the trainers of other tests do not produce."""

from __future__ import annotations

import math
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from probe_setting import setting

from canary_mlflow.tracking.describing import fingerprint
from canary_mlflow.tracking.probes import BEAT, Row, standard_probes
from canary_mlflow.tracking.probes import sentinel as sentinel_module
from canary_mlflow.tracking.probes.clock import Clock
from canary_mlflow.tracking.probes.memory import resident_peak
from canary_mlflow.tracking.probes.sentinel import Sentinel
from canary_mlflow.tracking.probes.tokens import Tokens


def test_an_iteration_is_an_epoch_from_end_to_end() -> None:
    clock = Clock()
    clock.start(setting(iterates=True))
    rows: list[Row] = [{}, {}]
    for row in rows:
        clock.iteration_began()
        time.sleep(0.1)  # the rollout
        for _ in range(2):
            time.sleep(0.01)
            clock.step_ended(row)
        time.sleep(0.3)
        clock.paused()  # an evaluation
        clock.iteration_ended(row)
    for row in rows:
        assert 0.01 <= row["step_time"] < 0.1
        assert 0.12 <= row["iteration_time"] < 0.3
        assert row["iteration_cpu_time"] < 0.02


def test_what_is_taken_out_of_the_step_times_is_kept() -> None:
    clock = Clock()
    clock.start(setting())
    time.sleep(0.05)
    clock.paused()  # the start
    rows: list[Row] = [{}, {}, {}]
    for row, outside in zip(rows, (0.0, 0.03, 0.0), strict=True):
        time.sleep(outside)  # an evaluation, or whatever a script does before it says that it paused
        if outside:
            clock.paused()
        clock.step_ended(row)
    assert "pause_time" not in rows[0]
    assert 0.03 <= rows[1]["pause_time"] < 0.1
    assert rows[1]["step_time"] < 0.02
    assert "pause_time" not in rows[2]


def test_of_what_belongs_to_no_step_the_computing_is_told_and_not_our_own() -> None:
    def compute(seconds: float) -> None:
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass

    clock = Clock()
    clock.start(setting())
    rows: list[Row] = [{}, {}, {}, {}, {}]
    clock.step_ended(rows[0])
    compute(0.1)
    clock.paused()  # evaluating, saving
    clock.step_ended(rows[1])
    time.sleep(0.1)
    clock.paused()
    clock.step_ended(rows[2])
    compute(0.1)
    clock.paused(ours=True)
    clock.step_ended(rows[3])
    compute(0.1)  # a step
    clock.step_ended(rows[4])
    assert rows[0]["setup_time"] > 0
    assert 0 < rows[0]["outside_time"] < 0.1
    assert 0.1 <= rows[1]["outside_time"] < 0.2
    assert not any("outside_time" in row for row in rows[2:])
    assert rows[4]["step_cpu_time"] >= 0.1


def test_a_fork_does_not_owe_what_its_parent_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clock, "trained", (os.getppid(), 1e6))
    clock, row = Clock(), Row()
    clock.start(setting())
    clock.step_ended(row)
    assert row["setup_time"] > 0.1


def test_where_there_are_no_epochs_a_ppo_step_is_the_iteration() -> None:
    clock = Clock()
    clock.start(setting(iterates=True))
    row: Row = {}
    clock.step_ended(row)
    assert row["iteration_time"] == row["step_time"]


def test_the_writers_own_cpu_time_is_no_part_of_training() -> None:
    spent = [0.0]
    clock = Clock()
    clock.start(setting(idle_cpu=lambda: spent[0]))
    began = time.process_time()
    while time.process_time() - began < 0.03:
        pass
    spent[0] = 0.03
    row: Row = {}
    clock.step_ended(row)
    assert row["step_cpu_time"] < 0.01


def test_several_ranks_count_by_the_trainers_total() -> None:
    tokens = Tokens()
    tokens.start(setting(ranks=2))
    rows: list[Row] = [{"trl/num_tokens": 100.0, "step_time": 0.5}, {"trl/num_tokens": 160.0, "step_time": 0.5}]
    for row in rows:
        row["tokens"] = 1.0  # what this rank saw
        tokens.row_closed(row)
    assert [(row["tokens"], row["tokens_per_second"]) for row in rows] == [(100.0, 200.0), (60.0, 120.0)]


class Model(torch.nn.Module):
    """Takes what language models take."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None) -> torch.Tensor:
        return torch.zeros(1)


def test_only_trained_passes_count_and_only_their_tokens() -> None:
    model, tokens = Model(), Tokens()
    tokens.start(setting(model=model))
    ids = torch.ones(2, 5, dtype=torch.long)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])
    model(ids, mask)  # by position
    model(input_ids=ids)  # without padding
    with torch.no_grad():
        model(ids, mask)  # a reference or a generation
    model.eval()(ids, mask)
    row: Row = {}
    tokens.step_ended(row)
    assert row == {"tokens": 15.0}
    tokens.stop()
    model.train()(ids, mask)
    tokens.step_ended(row := {})
    assert row == {}


def test_cost_is_cpu_time_in_kernels_and_the_kernel_is_no_steps_time() -> None:
    clock = Clock()
    sentinel = Sentinel(clock)
    clock.start(setting())
    sentinel.start(setting())
    rows: list[Row] = [{} for _ in range(2 * BEAT)]
    for row in rows:
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        clock.step_ended(row)
        sentinel.step_ended(row)
        sentinel.row_closed(row)
    assert [index for index, row in enumerate(rows, 1) if "sentinel_time" in row] == [BEAT, 2 * BEAT]
    timed = rows[BEAT - 1]["sentinel_time"]
    assert rows[BEAT - 1]["step_cost"] == rows[BEAT - 1]["step_cpu_time"] / timed
    assert rows[BEAT]["step_cost"] == rows[BEAT]["step_cpu_time"] / timed
    assert rows[BEAT]["step_cpu_time"] < 0.02 + timed  # the step after a kernel does not pay for it


def test_an_iterations_cost_is_in_kernels_too_and_other_devices_have_none() -> None:
    clock = Clock()
    sentinel = Sentinel(clock)
    sentinel.start(setting(iterates=True, device="mps"))
    sentinel.step_ended(row := {"step_cpu_time": 1.0})
    sentinel.row_closed(row)
    assert row == {"step_cpu_time": 1.0}
    clock.start(setting(iterates=True))
    sentinel.start(setting(iterates=True))
    for _ in range(BEAT):
        sentinel.step_ended(row := {})
    sentinel.iteration_ended(row := row | {"iteration_cpu_time": 2.0})
    assert 2.0 / row["iteration_cost"] == pytest.approx(row["sentinel_time"], rel=1.0)


def test_a_kernel_is_timed_once_its_caches_are_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, passes = sentinel_module._Kernel(), list[float]()
    monkeypatch.setattr(kernel, "_compute", lambda: passes.append(0.5 if passes else 7.0))
    monkeypatch.setattr(sentinel_module.time, "thread_time", lambda: sum(passes))
    assert kernel.seconds() == 0.5


def test_the_sentinel_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    clock = Clock()
    sentinel = Sentinel(clock)
    clock.start(use := setting())
    torch.manual_seed(0)
    sentinel.start(use)
    assert torch.equal(torch.rand(3), expected)


def test_each_run_gets_probes_of_its_own_under_their_names() -> None:
    first, second = standard_probes(), standard_probes()
    assert next(iter(first)) == "clock"  # what the others do after a step is not part of it
    assert {name for name, probe in first.items() if probe.essential} == {"gradients", "finiteness", "parameters"}
    assert not set(map(id, first.values())) & set(map(id, second.values()))
    assert all(probe.name == name for name, probe in first.items())


def test_peak_memory_sees_a_ballast() -> None:
    before = resident_peak()
    ballast = bytearray(b"x" * 2**28)
    assert resident_peak() >= min(before + 100, 256)
    assert ballast


def test_the_commit_and_its_dirtiness_are_told(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@t")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    assert fingerprint.git(tmp_path) == {"git_commit": "unknown", "git_dirty": "unknown"}
    git("init")
    (tmp_path / "file").write_text("1")
    git("add", ".")
    git("commit", "-m", "one")
    clean = fingerprint.git(tmp_path)
    assert len(clean["git_commit"]) == 40
    assert clean["git_dirty"] == "false"
    git("commit", "--allow-empty", "-m", "two")
    found = fingerprint.git(tmp_path)
    assert found["git_title"] == "two"
    head, first = found["git_log"].split()
    assert (head == first, clean["git_commit"].startswith(first)) == (False, True), "the newest first"
    clean = fingerprint.git(tmp_path)
    (tmp_path / "output").write_text("of a run")
    assert fingerprint.git(tmp_path)["git_dirty"] == "false"
    (tmp_path / "file").write_text("2")
    changed = fingerprint.git(tmp_path)
    assert (changed["git_commit"], changed["git_dirty"]) == (clean["git_commit"], "true")
    (tmp_path / "file").write_text("3")
    assert fingerprint.git(tmp_path)["git_diff"] != changed["git_diff"]  # dirty in another way


def test_without_git_the_commit_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fingerprint.git(tmp_path)["git_commit"] == "unknown"


def test_the_fingerprint_says_what_makes_runs_differ() -> None:
    facts = fingerprint.environment()
    assert {"python", "platform", "host", "cpu", "mlflow", "git_commit"} <= set(facts)
    assert facts["torch"] == torch.__version__
    assert all(isinstance(value, str) and value for value in facts.values())
    hardware = fingerprint.hardware("cpu")
    assert set(hardware) == {"backend", "device", "count"}
    assert int(hardware["count"]) >= 1


def test_what_may_be_undefined_is_no_fault() -> None:
    """An explained variance of equal returns, a spread of one reward: NaN in healthy runs."""
    probe = standard_probes()["finiteness"]
    for row in ({"loss": 1.0, "explained_variance": math.nan}, {"loss": math.nan}):
        probe.row_closed(row)
    assert (probe.nan_steps, probe.inf_steps) == (1, 0)
    for row in ({"reward_margin": math.inf}, {"explained_variance": -math.inf}):
        probe.row_closed(row)
    assert (probe.nan_steps, probe.inf_steps) == (1, 1), "an infinite margin is one"
