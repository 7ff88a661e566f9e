"""A clock that reads late, and a card that is slow: what the probes make of a GPU. Only the GPU is made up."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_gpu import Driver, LateGPU
from probe_setting import setting

from canary_mlflow.tracking.probes import BEAT, Row, sentinel
from canary_mlflow.tracking.probes.clock import Clock
from canary_mlflow.tracking.probes.phases import Phases
from canary_mlflow.tracking.probes.sentinel import Sentinel
from canary_mlflow.tracking.probes.surroundings import EVERY as ASKED_EVERY
from canary_mlflow.tracking.probes.surroundings import GPU, readings
from canary_mlflow.training.faults.pace import Pace


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateGPU:
    gpu = LateGPU()
    monkeypatch.setattr(time, "perf_counter", gpu.perf_counter)
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.synchronize)
    monkeypatch.setattr(torch.cuda, "Event", gpu.Event)
    return gpu


class Slow(torch.nn.Linear):
    """A forward pass of 20 ms on the GPU that takes the host no time."""

    gpu: Any = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.gpu.launch(0.02)
        return super().forward(inputs)


def test_a_step_is_timed_to_the_end_of_its_kernels(late: LateGPU) -> None:
    model = Slow(2, 2)
    model.gpu = late
    clock, phases = Clock(), Phases()
    for probe in (clock, phases):
        probe.start(setting(model=model, device="cuda"))
    rows: list[Row] = [{}, {}]
    for row in rows:
        clock.step_began()
        if row is rows[0]:
            model(torch.ones(1, 2))
        clock.step_ended(row)
        phases.step_ended(row)
    phases.stop()
    assert rows[0]["time_forward"] == pytest.approx(0.02, rel=0.01)
    assert 0.02 <= rows[0]["compute_time"] <= rows[0]["step_time"]
    assert rows[1]["step_time"] < 0.001  # nothing of the step before
    assert rows[1]["compute_time"] < 0.001


def test_a_dose_is_a_share_of_the_time_that_the_gpu_takes(late: LateGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "_compute", lambda self: late.launch(0.00005))
    handlers: list[Any] = []
    trainer: Any = SimpleNamespace(
        args=SimpleNamespace(device=torch.device("cuda")),
        callback_handler=SimpleNamespace(callbacks=handlers),
        add_callback=handlers.append,
    )
    pace = Pace(trainer)
    before, after = handlers
    after.on_train_begin()
    for _ in range(4):
        late.launch(0.02)
        before.on_step_end()
        late.synchronize()  # the recorder's
        after.on_step_end()
    assert pace.times[2:] == pytest.approx([0.02, 0.02], rel=0.01)
    late.launch(0.02)
    pace.burn(0.5)
    assert pace.burnt == pytest.approx(0.01, rel=0.01)  # beside no kernel


def sentinel_time(late: LateGPU, monkeypatch: pytest.MonkeyPatch, slowness: float) -> float:
    """A sentinel's time on a card that takes `slowness` times as long for everything."""
    kernel = sentinel._GPUKernel
    monkeypatch.setattr(sentinel, "_GPUKernel", lambda: kernel(side=4, device="cpu"))
    monkeypatch.setattr(sentinel.torch, "mm", lambda *factors, out: late.launch(0.0002 * slowness))
    clock = Clock()
    probe = Sentinel(clock)
    clock.start(setting(device="cuda"))
    probe.start(setting(device="cuda"))
    seen: Row = {}
    for _ in range(BEAT + 1):
        row: Row = {}
        late.launch(0.012 * slowness)
        clock.step_ended(row)
        probe.step_ended(row)
        probe.row_closed(row)
        seen |= row
    assert seen["step_time"] == pytest.approx(0.012 * slowness, rel=0.01)  # the kernel is not part of it
    assert seen["step_cost"] < 0.1  # the host's: it computed nothing
    return seen["sentinel_time"]


def test_a_throttled_card_shows_in_the_kernel_and_not_in_the_cost(
    late: LateGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        quiet = sentinel_time(late, patched, 1.0)
    with monkeypatch.context() as patched:
        throttled = sentinel_time(late, patched, 2.0)
    assert throttled / quiet == pytest.approx(2.0, rel=0.01)


def test_the_gpus_kernel_multiplies_in_half_precision() -> None:
    kernel = sentinel._GPUKernel(side=4, device="cpu")
    assert {one.dtype for one in kernel._factors} == {torch.float16}
    same = sentinel._GPUKernel(side=4, device="cpu")
    assert all(map(torch.equal, kernel._factors, same._factors))


def ask(probe: GPU, steps: int, busy: Callable[[bool], None], *, said: bool) -> list[Row]:
    rows: list[Row] = [{} for _ in range(steps)]
    for row in rows:
        busy(True)
        if said:
            probe.before_optimizer()
        busy(False)
        probe.step_ended(row)
    return rows


@pytest.mark.parametrize(("said", "clock"), [(True, 1980.0), (False, 345.0)])
def test_the_clock_is_read_while_the_card_works(said: bool, clock: float) -> None:
    """A trainer that does not say when the optimizer comes is read at the step's end, when the card idles."""
    driver = Driver()
    now = [False]
    driver.nvmlDeviceGetClockInfo = lambda handle, kind: 1980 if now[0] else 345  # type: ignore[method-assign]
    probe = GPU()
    probe._readings = readings(driver, "MIG-9b2d")
    rows = ask(probe, ASKED_EVERY + 1, lambda busy: now.__setitem__(0, busy), said=said)
    assert [row.get("gpu_clock") for row in rows] == [clock, *[None] * (ASKED_EVERY - 1), clock]
