"""What the doctor finds, where there is something to find."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from small_disk import small_disk

from canary_mlflow import doctor, installation
from canary_mlflow.installation import Finding, Level
from canary_mlflow.link_env import place_of


def test_requirements_missing_or_out_of_range_are_named() -> None:
    found = metadata.version("mlflow")
    asked = [Requirement("mlflow<1"), Requirement("no-such-package>=2"), Requirement("click")]
    finding = installation.requirements("packages", asked, Level.FAIL, "pip install it")
    assert finding.level is Level.FAIL
    assert finding.found == f"mlflow {found} found, <1 expected; no-such-package missing"
    assert installation.requirements("packages", asked[2:], Level.FAIL, "").level is Level.OK


def test_a_python_without_the_distribution_is_told_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "DISTRIBUTION", "no-such-distribution")
    (finding,) = installation.packages()
    assert (finding.level, finding.advice) == (Level.WARN, "in the project's folder: pip install -e .")
    assert list(installation.plugin()) == []


def test_packages_that_left_their_pins_are_named(tmp_path: Path) -> None:
    found = metadata.version("click")
    file = tmp_path / "requirements.txt"
    file.write_text(f"# pins\nclick=={found}\nno-such-package==1\n")
    assert [finding.level for finding in installation.pins(file)] == [Level.OK]
    file.write_text("click==0.1\n")
    (finding,) = installation.pins(file)
    assert (finding.level, finding.found) == (Level.WARN, f"click {found} (pin 0.1)")
    assert finding.advice == f"pip install -r {file}"
    assert list(installation.pins(tmp_path / "none.txt")) == []


def test_plugin_entry_points_are_loaded_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow only warns about one that does not load, so a broken one must be seen here."""
    info = tmp_path / "broken_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[mlflow.app]\nsound = json:loads\nbroken = no_such_module:app\n[console_scripts]\nx = no_such_module:x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(installation, "DISTRIBUTION", "broken-plugin")
    found = {finding.found.partition(" ")[2]: finding.level for finding in installation.plugin()}
    assert found["sound"] is Level.OK
    assert [level for text, level in found.items() if "no_such_module:app does not load" in text] == [Level.FAIL]
    assert len(found) == 2


@pytest.mark.parametrize(("limit", "level"), [("FAIL_FREE", Level.FAIL), ("WARN_FREE", Level.WARN)])
def test_little_room_is_said(recorded: Any, monkeypatch: pytest.MonkeyPatch, limit: str, level: Level) -> None:
    monkeypatch.setattr(doctor, limit, 1e9)
    finding, *others = doctor.disks(recorded.client)
    assert finding.level is level
    assert all(one.level is level for one in others)
    assert "make room" in finding.advice
    assert str(Path(recorded.uri.removeprefix("sqlite:///")).parent) in finding.found


def test_each_disk_is_looked_at_and_told_by_what_lies_on_it(
    recorded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "/var/tmp" if tmp_path.is_relative_to("/dev/shm") else "/dev/shm"
    monkeypatch.setenv("CANARY_KEYS", f"{other}/canary-keys-of-nobody")
    found = [finding.found for finding in doctor.disks(recorded.client)]
    assert len(found) == len({place.stat().st_dev for place in map(Path, (tmp_path, other, Path.cwd()))})
    assert [text for text in found if "keys" in text and "store" not in text]


def test_a_full_disk_of_keys_or_artifacts_is_a_fault_with_advice_of_its_own(
    recorded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "few", 64) as keys, small_disk(tmp_path / "kept", 4096) as kept:
        monkeypatch.setenv("CANARY_KEYS", str(keys / "mine"))
        recorded.client.create_experiment(tmp_path.as_posix(), artifact_location=str(kept / "mlruns"))
        found = {finding.found: finding for finding in doctor.disks(recorded.client)}
    (full,) = [finding for text, finding in found.items() if text.endswith(f"at {keys} (keys)")]
    assert (full.level, full.advice) == (
        Level.FAIL, "a session may need 10 MiB; make room, or move the folder and set CANARY_KEYS"
    )  # fmt: skip
    (full,) = [finding for text, finding in found.items() if text == f"4.0 MiB free at {kept} (artifacts)"]
    assert (full.level, full.advice) == (
        Level.FAIL, "a session may need 0.5 GiB; make room, or delete old runs: mlflow gc"
    )  # fmt: skip


def test_a_missing_store_is_no_fault_and_is_not_made(tmp_path: Path) -> None:
    finding, *disks = doctor.store(f"sqlite:///{tmp_path}/mlflow.db")
    assert {found.name for found in disks} == {"disk"}, "where it is going to be"
    assert (finding.level, list(tmp_path.iterdir())) == (Level.OK, [])
    assert "the first run makes it" in finding.found


def test_a_gpu_with_a_cpu_build_of_torch_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA H200, 570.86.15'\n")
    smi.chmod(0o755)
    info = tmp_path / "torch-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.syspath_prepend(tmp_path)
    finding = doctor.gpu()
    assert finding.level is Level.WARN
    assert "NVIDIA H200 driver 570.86.15" in finding.found


FAKE_TORCH = """
import warnings
class cuda:
    def is_available():
        warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). Please "
                      "update it. (Triggered internally at c10/cuda/CUDAFunctions.cpp:119.)")
        return False
"""


def test_a_driver_too_old_for_torch_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No card and no CUDA build is here: nvidia-smi and torch are made up, and say what they say on one."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'Tesla T4, 470.82'\n")
    smi.chmod(0o755)
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "2.13.0")
    finding = doctor.gpu()
    assert finding.level is Level.WARN
    assert finding.found == (
        "Tesla T4 driver 470.82; torch 2.13.0: The NVIDIA driver on your system is too old (found version 11040). "
        "Please update it.; runs use the CPU"
    )
    (tmp_path / "torch.py").write_text("raise SystemExit(0)")
    assert doctor.gpu().level is Level.OK


def test_no_gpu_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert doctor.gpu() == Finding(name="gpu", level=Level.OK, found="none: runs use the CPU")


def test_another_makers_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert doctor.gpu().level is Level.OK
    assert doctor.gpu().found.startswith("Apple: canaries use the CPU")


def test_an_unsupported_python_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installation.python().level is Level.OK
    monkeypatch.setattr(installation, "PYTHON_FROM", (3, 98))
    assert installation.python().level is Level.WARN


def test_a_link_that_another_checkout_took_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mlflow run .` would build an environment of its own, and without a network fail."""
    root = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("MLFLOW_ENV_ROOT", str(tmp_path / "envs"))
    (finding,) = doctor.project(root)
    assert (finding.level, "would build an environment" in finding.found) == (Level.WARN, True)
    place = place_of(root)
    place.parent.mkdir()
    place.symlink_to(tmp_path)
    (finding,) = doctor.project(root)
    assert finding.found == f"would use {tmp_path}"
    place.unlink()
    place.symlink_to(sys.prefix)
    (finding,) = doctor.project(root)
    assert finding.level is Level.OK
    assert list(doctor.project(tmp_path)) == []
