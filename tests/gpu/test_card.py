"""What a run measures on a real card, beside CUDA's own clock and allocator. Elsewhere every test here is skipped."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from canaries import a_config

from canary_mlflow import CanaryCallback, doctor
from canary_mlflow.installation import Level
from canary_mlflow.tracking.describing import fingerprint, gpus
from canary_mlflow.tracking.probes import sentinel
from canary_mlflow.tracking.probes.surroundings import device_name
from canary_mlflow.training import devices
from canary_mlflow.training.config import MemoryConfig, QuantizationConfig
from canary_mlflow.training.faults.costs import MemoryLeak, SlowLoader, SlowStep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")

Events = tuple[Any, Any]
MIB = 2**20
ROOT = Path(__file__).resolve().parents[2]
SIDE, PRODUCTS = 4096, 12  # of a forward pass: many times its launches, so that the host does not show
STEPS = 24
FIRST = 4  # steps until kernels are loaded and clocks are up


class Products(torch.nn.Module):
    """Work that takes milliseconds of a card, timed by CUDA's events."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.eye(SIDE))
        self.events: list[Events] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.autocast("cuda", enabled=False), events_around(self.events):
            product = self.w
            for _ in range(PRODUCTS):
                product = product @ self.w
        return {"loss": (product[0, : labels.numel()] - labels.flatten()).square().mean()}


@contextmanager
def events_around(events: list[Events]) -> Iterator[None]:
    """Append two of CUDA's events, one before and one after the block's kernels."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    yield
    last.record()
    events.append((first, last))


def seconds(events: Sequence[Events]) -> np.ndarray:
    torch.cuda.synchronize()
    return np.array([first.elapsed_time(last) / 1000 for first, last in events])


def recorded(folder: Path, *, fault: Any = None, **fault_settings: Any) -> tuple[dict[str, np.ndarray], Any, Any]:
    """The series of a run of `Products`, the events around its steps, and its model."""
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    from canary_mlflow.tracking.reading.histories import read_runs
    from canary_mlflow.tracking.stores.store import prepare_store

    steps: list[Events] = []

    class StepEvents(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.around = events_around(steps)
            self.around.__enter__()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.around.__exit__(None, None, None)

    uri = f"sqlite:///{folder}/mlflow.db"
    model = Products()
    data = [{"x": torch.ones(1), "labels": torch.ones(1)} for _ in range(64)]
    arguments = TrainingArguments(
        output_dir=str(folder / "out"), max_steps=STEPS, per_device_train_batch_size=2, report_to="none",
        disable_tqdm=True, save_strategy="no", remove_unused_columns=False, learning_rate=1e-9, logging_steps=1,
    )  # fmt: skip
    callback = CanaryCallback(tracking_uri=uri, folder=folder / "canary")
    trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[StepEvents(), callback])
    trainer.remove_callback(PrinterCallback)
    if fault is not None:
        fault().install(trainer, SimpleNamespace(**fault_settings))
    trainer.train()
    client = prepare_store(uri)
    experiments = [one.experiment_id for one in client.search_experiments()]
    (run,) = read_runs(client, [one.info.run_id for one in client.search_runs(experiments)])
    return {name: one.values for name, one in run.series.items()}, steps, model


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.cuda.reset_peak_memory_stats()
    found = recorded(tmp_path_factory.mktemp("healthy"))
    return *found, torch.cuda.max_memory_allocated() / MIB, torch.cuda.max_memory_reserved() / MIB


def test_a_step_is_as_long_as_cuda_says(healthy: Any) -> None:
    series, steps, *_ = healthy
    told, measured = seconds(steps)[FIRST:], series["compute_time"][FIRST:]
    print(f"compute_time {np.median(measured):.5f} s, CUDA's events {np.median(told):.5f} s")
    assert np.median(measured / told) == pytest.approx(1, rel=0.02)
    assert np.median(series["step_time"][FIRST:] / told) == pytest.approx(1, rel=0.05)  # the callback's own is in it


def test_a_forward_pass_is_as_long_as_cuda_says(healthy: Any) -> None:
    series, _, model, *_ = healthy
    told, measured = seconds(model.events)[FIRST:], series["time_forward"][FIRST:]
    print(f"time_forward {np.median(measured):.5f} s, CUDA's events {np.median(told):.5f} s")
    assert np.median(measured / told) == pytest.approx(1, rel=0.02)
    parts = sum(series[f"time_{name}"][FIRST:] for name in ("forward", "backward", "optimizer"))
    assert np.all(parts <= series["compute_time"][FIRST:] * 1.01)
    assert np.median(parts / series["compute_time"][FIRST:]) > 0.9


def test_peak_memory_is_the_allocators(healthy: Any) -> None:
    series, _, _, allocated, reserved = healthy
    assert series["peak_memory"].max() == pytest.approx(allocated, rel=0.02)
    assert series["reserved_memory"].max() == pytest.approx(reserved, rel=0.02)


def test_the_driver_is_asked_for_the_card_that_trains(healthy: Any) -> None:
    series, *_ = healthy
    clocks = series["gpu_clock"][np.isfinite(series["gpu_clock"])]
    print(f"gpu_clock {np.median(clocks):.0f} MHz, power {np.nanmedian(series['gpu_power']):.0f} W")
    with gpus.driver() as nvml:
        card = gpus.handle(nvml, device_name())
        highest = nvml.nvmlDeviceGetMaxClockInfo(card, nvml.NVML_CLOCK_SM)
    assert np.median(clocks) > 0.5 * highest  # an idle card runs at a fifth
    assert np.nanmax(series["gpu_memory"]) >= series["reserved_memory"].max()


@pytest.mark.parametrize(("fault", "strength"), [(SlowStep, 0.3), (SlowLoader, 0.3)])
def test_a_dose_is_a_share_of_the_step(fault: Any, strength: float, tmp_path: Path, healthy: Any) -> None:
    series, *_ = recorded(tmp_path, fault=fault, step=12, strength=strength)
    if fault is SlowStep:
        slow, usual = series["step_time"][14:], series["step_time"][FIRST:12]
    else:
        slow, usual = series["step_time"][FIRST:], healthy[0]["step_time"][FIRST:]
    print(f"{fault.__name__}: {np.median(slow) / np.median(usual) - 1:.3f} of a step")
    assert np.median(slow) / np.median(usual) == pytest.approx(1 + strength, rel=0.05)


def test_a_leak_shows_where_it_is(tmp_path: Path) -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    series, *_ = recorded(tmp_path, fault=MemoryLeak, step=0, strength=8.0)
    growth = np.polyfit(np.arange(STEPS - FIRST), series["peak_memory"][FIRST:], 1)[0]
    assert growth == pytest.approx(8.0, rel=0.1)


def test_a_leak_of_nothing_is_flat(healthy: Any) -> None:
    series, *_ = healthy
    assert abs(np.polyfit(np.arange(STEPS - FIRST), series["peak_memory"][FIRST:], 1)[0]) < 0.1


def test_the_fixed_kernel_is_as_long_as_cuda_says_and_steady() -> None:
    kernel = sentinel._GPUKernel()
    kernel.seconds()
    alone = [kernel.seconds() for _ in range(50)]
    began = time.perf_counter()
    for _ in range(50):
        kernel.seconds()
    wall = (time.perf_counter() - began) / 50
    told: list[Events] = []
    for _ in range(20):
        with events_around(told), torch.no_grad():
            for _ in range(sentinel.PRODUCTS):
                torch.mm(*kernel._factors, out=kernel._product)
    usual = statistics.median(alone)
    spread = statistics.quantiles(alone, n=10)
    print(
        f"kernel {usual * 1e3:.3f} ms (deciles {spread[0] * 1e3:.3f} to {spread[-1] * 1e3:.3f}), wall {wall * 1e3:.3f}"
    )
    assert usual == pytest.approx(float(np.median(seconds(told))), rel=0.05)
    assert spread[-1] / spread[0] < 1.1  # a tenth is what the gate takes for a slow card


def test_a_neighbour_shows_in_the_fixed_kernel_as_in_the_steps(tmp_path: Path, healthy: Any) -> None:
    """So that the gate does not judge those runs by the clock."""
    usual = healthy[0]
    with neighbour():
        beside = recorded(tmp_path)[0]
    steps, kernels = (
        float(np.median(beside[name][-12:]) / np.median(usual[name][-12:])) for name in ("step_time", "sentinel_time")
    )
    print(f"beside a neighbour: steps x {steps:.2f}, the kernel x {kernels:.2f}")
    assert steps > 1.3
    assert kernels > 1.1  # validity.sentinel_rise


@contextmanager
def neighbour() -> Iterator[None]:
    """Another process multiplies on the card meanwhile."""
    code = (
        "import torch\na = torch.randn(4096, 4096, device='cuda', dtype=torch.float16)\n"
        "torch.mm(a, a); torch.cuda.synchronize(); print('on', flush=True)\n"
        "while True:\n for _ in range(20): torch.mm(a, a)\n torch.cuda.synchronize()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        yield
        process.kill()


def test_auto_takes_the_card_and_names_it() -> None:
    auto = replace(a_config().hardware, name="auto", device="auto", precision="auto")
    found = devices.settle(auto)
    major, _ = torch.cuda.get_device_capability()
    assert (found.kind, found.precision, found.note) == ("cuda", "bf16" if major >= 8 else "fp32", "")
    devices.check(replace(auto, device="cuda"))
    fingerprint.gpu_facts.cache_clear()
    assert fingerprint.hardware("cuda")["device"] == torch.cuda.get_device_name()
    with gpus.driver() as nvml:
        assert device_name() in gpus.visible(nvml)
    assert devices.memory("cuda") == pytest.approx(torch.cuda.mem_get_info()[0], rel=0.05)


def test_the_doctor_computes_on_the_card() -> None:
    finding = doctor.gpu()
    print(finding.found)
    assert finding.level is Level.OK
    assert "computes on it" in finding.found


@pytest.mark.parametrize("visible", ["", "-1"])
def test_a_hidden_card_is_none(visible: str) -> None:
    code = (
        "from canary_mlflow.training import devices; from canary_mlflow.training.config import HardwareConfig\n"
        "auto = HardwareConfig(name='auto', device='auto', precision='auto', threads=1)\n"
        "print(devices.settle(auto).kind, len(devices.cards_in_sight(vars(auto))))"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": visible, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cpu", "0"]


def test_weights_in_few_bytes_are_read_onto_the_card() -> None:
    from canary_mlflow.training.assets.tiny import tiny_model_folder
    from canary_mlflow.training.loading import load_model, load_tokenizer

    cuda = devices.Device(kind="cuda", precision="bf16")
    folder = tiny_model_folder()
    for name in ("nf4", "int8"):
        config = replace(a_config(adapter="lora"), quantization=QuantizationConfig(name=name))
        model = load_model(config, folder, load_tokenizer(folder), cuda)
        assert {one.device.type for one in model.parameters()} == {"cuda"}
    saving = replace(a_config(), memory=MemoryConfig(gradient_checkpointing=True, weights="bf16", attention="sdpa"))
    model = load_model(saving, folder, load_tokenizer(folder), cuda)
    assert {(one.device.type, one.dtype) for one in model.parameters()} == {("cuda", torch.bfloat16)}
