"""Where a run computes. No GPU is here: the driver's answers are made up; processes and torch's own code are real."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from canaries import a_config
from fake_gpu import Driver

from canary_mlflow.errors import UsageError
from canary_mlflow.tracking.describing import fingerprint
from canary_mlflow.tracking.probes import surroundings
from canary_mlflow.training import devices, process, submitting
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.workload import describe

AUTO = replace(a_config().hardware, name="auto", device="auto", precision="auto")


@pytest.fixture
def driver(monkeypatch):
    def use(*models):
        made = Driver(*models)
        monkeypatch.setitem(sys.modules, "pynvml", made)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
        fingerprint.gpu_facts.cache_clear()
        return made

    yield use
    fingerprint.gpu_facts.cache_clear()


@pytest.mark.parametrize(
    ("models", "listed", "pinned"),
    [
        (("H100", "H100"), None, "GPU-aa11"),
        (("H100", "H100"), "1,0", "GPU-bb22"),
        (("H100", "H100"), "GPU-bb,GPU-aa", "GPU-bb22"),
        (("T4", "H100"), "1,0", "1"),  # CUDA puts the fastest first: number 1 need not be the driver's
        (("H100", "H100"), "1", None),  # one already
        (("H100", "H100"), "1,7,0", None),  # CUDA stops at the 7
        (("H100", "H100"), "", None),
    ],
)
def test_a_run_gets_one_of_several_devices(driver, monkeypatch, models, listed, pinned):
    driver(*models)
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    expected = {} if pinned is None else {"CUDA_VISIBLE_DEVICES": pinned}
    assert devices.environment({"device": "auto"}) == expected
    assert devices.environment({"device": "cpu"}) == {}


def test_the_order_of_the_bus_makes_numbers_safe(driver, monkeypatch):
    driver("T4", "H100")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert devices.environment({"device": "cuda"}) == {"CUDA_VISIBLE_DEVICES": "GPU-aa11"}


def test_a_runs_process_sees_one_device(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-one,GPU-two")
    shell = tmp_path / "python"
    shell.write_text(
        '#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $CUBLAS_WORKSPACE_CONFIG" > "$3/seen"\necho {} > "$3/ready.json"\n'
    )
    shell.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(shell))
    config = {"hardware": {"device": "auto", "deterministic": True}}
    with process.workers({tmp_path / "seed-0": 0}, config, "sft", 1) as crew:
        (worker,) = crew
        worker.process.wait()
    assert (tmp_path / "seed-0" / "seen").read_text() == "GPU-one :4096:8\n"


def test_the_fingerprint_is_of_the_device_in_use(driver, monkeypatch):
    driver("T4", "H100")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb22")
    assert fingerprint.gpu_facts() == {"driver": "570.86", "gpu": "H100", "gpu_count": "1", "gpu_memory": "81920"}
    fingerprint.gpu_facts.cache_clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert fingerprint.gpu_facts() == {}


def test_a_card_that_somebody_set_up_otherwise_is_said(driver):
    made = driver("T4", "H100")
    made.NVML_FEATURE_DISABLED = made.NVML_DEVICE_MIG_ENABLE = 0
    made.nvmlDeviceGetEccMode = lambda handle: (0, 1)
    made.nvmlDeviceGetEnforcedPowerLimit = lambda handle: 350_000
    made.nvmlDeviceGetPowerManagementDefaultLimit = lambda handle: 700_000
    made.nvmlDeviceGetApplicationsClock = made.nvmlDeviceGetDefaultApplicationsClock = lambda handle, kind: 1980
    assert fingerprint.environment()["gpu_mode"] == "ECC off, power limit 350 of 700 W"


def test_what_changes_kernels_without_being_an_argument_is_said(monkeypatch):
    before = surroundings.gpu_settings(1)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        found = surroundings.gpu_settings(1)
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    assert before == {}
    assert found == {
        "gpu_allocator": "expandable_segments:True",
        "gpu_cudnn_benchmark": "true",
        "gpu_attention_off": "flash",
        "gpu_cuda_launch_blocking": "1",
    }


def old_driver():
    warnings.warn(
        "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). Please update your "
        "GPU driver. (Triggered internally at c10/cuda/CUDAFunctions.cpp:119.)",
        stacklevel=1,
    )
    return False


def test_a_gpu_that_torch_cannot_use_is_said(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "_has_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", old_driver)
    found = devices.settle(AUTO)
    assert (found.kind, found.precision) == ("cpu", "fp32")
    assert "the runs use the CPU" in found.note
    assert "driver on your system is too old (found version 11040)" in found.note
    assert "Triggered" not in found.note
    with pytest.raises(SetupError, match=r"too old \(found version 11040\).*use hardware=cpu"):
        devices.settle(replace(AUTO, device="cuda"))
    assert devices.settle(a_config().hardware).note == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.settle(AUTO).note == ""  # hidden on purpose


def test_without_any_gpu_nothing_is_said(monkeypatch):
    monkeypatch.setattr(devices, "_has_driver", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.settle(AUTO) == devices.Device(kind="cpu", precision="fp32")


@pytest.mark.parametrize(("major", "precision"), [(7, "fp32"), (8, "bf16")])
def test_emulated_bf16_is_no_bf16(monkeypatch, major, precision):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=major))
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda device: True)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert torch.cuda.is_bf16_supported()  # with emulation, as on a T4
    assert devices.settle(AUTO).precision == precision
    asked = devices.settle(replace(AUTO, precision="bf16"))
    assert asked.precision == "bf16"
    assert ("emulates bf16" in asked.note) == (major < 8)


def test_determinism_is_torchs_and_another_canary(monkeypatch):
    called = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", called.append)
    hardware = replace(a_config().hardware, deterministic=True)
    device = devices.settle(hardware)
    assert called == [True]
    inputs = SimpleNamespace(model_revision="r", data=SimpleNamespace(digest="d"), reward_revisions=())
    plain, switched = a_config(), replace(a_config(), hardware=hardware)
    assert describe(switched, inputs, device).items() - describe(plain, inputs, device).items() == {
        ("deterministic", "true")
    }


@pytest.mark.parametrize(
    ("asked", "device", "refused"), [(None, "auto", True), (1, "auto", False), (None, "cpu", False)]
)
def test_a_sweep_by_submitit_on_a_machine_with_gpus_says_how_many_a_job_has(driver, asked, device, refused):
    """Submitit hides them where no number is given, and every job would train on the CPU."""
    driver("H100", "H100")
    config = replace(a_config(), hardware=replace(AUTO, device=device))
    keys = {"nodes": 1, "tasks_per_node": 1, "gpus_per_node": asked}
    if not refused:
        submitting.check("submitit_local", keys, config, multirun=True)
        return
    with pytest.raises(UsageError, match=r"expected hydra\.launcher\.gpus_per_node=1, or hardware=cpu"):
        submitting.check("submitit_local", keys, config, multirun=True)


def test_a_process_has_the_cores_that_it_was_given():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})  # as a batch system does to a job
        devices.check(replace(AUTO, device="cpu"))
        with pytest.raises(SetupError, match="expected at most 1, the cores that this process may use"):
            devices.check(replace(AUTO, device="cpu", threads=2))
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/system.slice/job_7/task_0", {"system.slice/job_7/memory.max": "600", "memory.max": "max"}),
        (
            "3:cpuset:/job_7\n4:memory:/uid_0/job_7/task_0\n0::/",
            {"memory/uid_0/job_7/memory.limit_in_bytes": "600", "memory/uid_0/memory.limit_in_bytes": "900"},
        ),
        ("0::/docker/elsewhere", {"memory.max": "600"}),  # the path outside of a container, which sees only its own
    ],
)
def test_a_limit_around_a_process_is_found(tmp_path, own, files):
    (tmp_path / "cgroup").write_text(f"{own}\n")
    for name, limit in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(f"{limit}\n")
    assert min(devices.memory_limits(tmp_path / "cgroup", tmp_path / "fs")) == 600
