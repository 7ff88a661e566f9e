"""Memory growth, waiting for data, clipping, and the GPU that a process is told of."""

from __future__ import annotations

import mmap
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_gpu import Driver
from probe_setting import setting
from tiny_trainers import Line, arguments, build
from transformers import Trainer, TrainerCallback, TrainingArguments

from canary_mlflow import CanaryCallback
from canary_mlflow.tracking.describing.gpus import driver_name
from canary_mlflow.tracking.probes import Row, sentinel, surroundings
from canary_mlflow.tracking.probes.clock import Clock
from canary_mlflow.tracking.probes.derived import Clipping
from canary_mlflow.tracking.probes.memory import Growth
from canary_mlflow.tracking.probes.sentinel import Sentinel
from canary_mlflow.tracking.probes.surroundings import GPU, readings


def growth_of(values: Any) -> float:
    growth = Growth()
    found = [slope for value in values if growth.due() and (slope := growth.add(value)) is not None]
    return found[-1]


def test_growth_is_the_leak_and_not_a_jump_or_noise() -> None:
    noise = np.random.default_rng(0).normal(0, 3, 400)
    steps = np.arange(400)
    assert growth_of(500 + 2.0 * steps + noise) == pytest.approx(2.0, abs=0.02)
    assert growth_of(500 + noise) == pytest.approx(0, abs=0.02)
    assert growth_of(500 + 80.0 * (steps > 300) + noise) == pytest.approx(0, abs=0.1)  # a cache that filled late
    assert growth_of(500 + 2.0 * steps[:14]) == pytest.approx(2.0)


class Leak(TrainerCallback):
    """Keeps 2 MiB of every step, in pages of their own: malloc would first fill what others have freed."""

    def __init__(self) -> None:
        self.kept: list[mmap.mmap] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.kept.append(mmap.mmap(-1, 2 * 2**20))
        self.kept[-1].write(b"x" * 2 * 2**20)


def last_growth(place: Path, *others: Any) -> float:
    canary = CanaryCallback(sinks=(), system_metrics=False)
    build("trainer", "", place, [*others, canary], max_steps=30).train()
    return [row["memory_growth"] for _, row in sorted(canary.rows.items()) if "memory_growth" in row][-1]


def growths(place: Path) -> tuple[float, float]:
    """Without a leak and with one."""
    return last_growth(place), last_growth(place, Leak())


@pytest.mark.full
def test_a_leak_of_the_process_shows(place: Path) -> None:
    # In a fresh process, as a run is to be: what earlier tests have left is given back at any time, and hides a leak.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        without, leaking = fresh.submit(growths, place).result()
    assert leaking == pytest.approx(2.0, abs=0.5)
    assert without < 0.5


class SlowRows:
    """A dataset that takes 10 ms for a row."""

    def __init__(self) -> None:
        import torch

        self.rows = [{"x": torch.ones(4), "labels": torch.tensor(1.0)}] * 64

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return self.rows[index]


def test_waiting_for_data_is_told_from_computing(place: Path) -> None:
    class Slow(Line):
        def forward(self, x: Any, labels: Any) -> Any:
            time.sleep(0.02)
            return super().forward(x, labels)

    canary = CanaryCallback(sinks=(), system_metrics=False)
    args = arguments(TrainingArguments, place, remove_unused_columns=False, max_steps=4)
    Trainer(model=Slow(), args=args, train_dataset=SlowRows(), callbacks=[canary]).train()
    for step in (1, 2, 3):  # the last batch is fetched ahead
        row = canary.rows[step]
        assert row["data_wait"] >= 0.04  # 4 rows a batch
        assert 0.02 <= row["time_forward"] <= row["compute_time"]
        assert row["data_wait"] + row["compute_time"] <= row["step_time"]


def test_a_step_is_clipped_when_its_norm_was_beyond_the_limit() -> None:
    clipping = Clipping()
    clipping.start(setting(arguments={"max_grad_norm": 1.0}))
    rows: list[Row] = [{"loss": 1.0, "grad_norm": norm} for norm in (0.5, 1.0, 3.0)]
    for row in rows:
        clipping.row_closed(row)
    assert [row["clipped"] for row in rows] == [0.0, 0.0, 1.0]
    unclipped = Clipping()
    unclipped.start(setting(arguments={"max_grad_norm": 0.0}))
    unclipped.row_closed(row := {"loss": 1.0, "grad_norm": 9.0})
    assert "clipped" not in row


@pytest.mark.parametrize(
    ("visible", "index", "uuid", "name"),
    [
        (None, 0, "0af1-77", "GPU-0af1-77"),  # as torch writes it
        (None, 0, "GPU-0af1-77", "GPU-0af1-77"),
        ("3,1", 1, "0af1-77", "GPU-0af1-77"),
        ("3,1", 1, None, "1"),
        (None, 2, None, "2"),
        ("GPU-8932f937,GPU-2", 0, None, "GPU-8932f937"),
        ("MIG-7a1c,MIG-9b2d", 1, "0af1-77", "MIG-9b2d"),  # a slice, whatever the card is called
        ("0,-1,1", 1, None, "1"),  # CUDA stops reading at the -1: there is no second device to be asked for
        (" 5 , 6 ", 1, None, "6"),
    ],
)
def test_a_device_is_asked_for_by_the_name_that_the_driver_knows(
    visible: str | None, index: int, uuid: str | None, name: str
) -> None:
    assert driver_name(visible, index, uuid) == name


def test_a_card_and_a_slice_give_what_the_driver_answers() -> None:
    driver = Driver()
    card = {name: read() for name, read in readings(driver, "GPU-bb").items()}  # a prefix is enough for CUDA
    assert driver.asked == ["GPU-bb22"]
    assert card == {"gpu_utilization": 87.0, "gpu_memory": 40960.0, "gpu_power": 412.5, "gpu_clock": 1980.0}
    part = {name: read() for name, read in readings(driver, "MIG-9b2d").items()}
    assert part == {"gpu_memory": 5120.0, "gpu_power": 412.5, "gpu_clock": 1980.0}


def test_without_a_gpu_or_a_driver_there_is_no_series(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    monkeypatch.setattr(surroundings, "device_name", lambda: pytest.fail("nobody to ask"))
    for device in ("cpu", "cuda"):
        probe, row = GPU(), Row()
        probe.start(setting(device=device))
        probe.step_ended(row)
        probe.stop()
        assert row == {}


@pytest.mark.parametrize(("own", "most"), [(True, 6), (False, 100)])
def test_the_kernel_takes_little_of_somebodys_own_training(
    own: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundredth of a step of 5 ms at most; a canary measures as often as it can."""

    now = 0.0

    def seconds(kernel: Any) -> float:
        nonlocal now
        now += 0.002
        return 0.002

    monkeypatch.setattr(sentinel, "time", SimpleNamespace(perf_counter=lambda: now))  # other work would lengthen it
    monkeypatch.setattr(sentinel._Kernel, "seconds", seconds)
    clock, timings = Clock(), 0
    probe = Sentinel(clock)
    clock.start(setting())
    probe.start(setting(own=own))
    for _ in range(400):
        row: Row = {"step_time": 0.005, "step_cpu_time": 0.004}
        probe.step_ended(row)
        probe.row_closed(row)
        timings += "sentinel_time" in row
        assert row["step_cost"] == pytest.approx(2.0)
    assert 3 <= timings <= most
    assert own or timings == most
