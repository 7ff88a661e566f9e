"""What works on this machine: one finding per line, with what to do about it."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from canary_mlflow.errors import CanaryError
from canary_mlflow.gates.model.wording import counted, listed
from canary_mlflow.installation import SHOWN, Finding, Level, packages, pins, plugin, python
from canary_mlflow.tracking.stores.places import without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

WARN_FREE, FAIL_FREE = 5.0, 0.5  # GiB: about a hundred tiny sessions; less than one session may need
FAIL_FEW, WARN_FEW = 10 / 1024, 100 / 1024  # GiB, for disks with only keys and temporary files
OLD_RUNS = "make room, or delete old runs: mlflow gc"
TRY_SECONDS = 120  # for the GPU; torch alone takes ten on a busy machine
FIX = "canary doctor --fix ends and removes them, as the next session does"


def examine(tracking_uri: str | None, *, fix: bool) -> Iterator[Finding]:
    """The findings of all checks, the quick ones first. `fix`: close and remove what killed processes left behind."""
    yield python()
    yield from packages()
    yield from pins()
    yield from plugin()
    yield gpu()
    yield from project(Path.cwd())
    yield folders(fix)
    yield from store(tracking_uri, fix=fix)


def project(folder: Path) -> Iterator[Finding]:
    """In a checkout: whether `mlflow run .` finds this environment. Another checkout may have taken the link since."""
    from canary_mlflow.link_env import place_of
    from canary_mlflow.tracking.experiment import is_project

    if not is_project(folder):
        return
    try:
        place = place_of(folder)
    except ImportError:
        return  # another MLflow version: `pins` reports it
    if place.exists() and place.resolve() == Path(sys.prefix).resolve():
        yield Finding(name="mlflow run", level=Level.OK, found=f"uses {sys.prefix}")
        return
    found = f"would use {place.resolve()}" if place.exists() else f"would build an environment at {place}"
    advice = f"make smoke links it to this one, or {sys.executable} -m canary_mlflow.link_env"
    yield Finding(name="mlflow run", level=Level.WARN, found=found, advice=advice)


def gpu() -> Finding:
    """What nvidia-smi reports, and whether the installed torch can use it."""
    names = nvidia_gpus()
    if not names:
        return Finding(name="gpu", level=Level.OK, found=other_gpu() or "none: runs use the CPU")
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    if torch.endswith("+cpu"):
        advice = "this torch cannot use it: install a CUDA build (https://pytorch.org/get-started/locally)"
        return Finding(name="gpu", level=Level.WARN, found=f"{', '.join(names)}; torch {torch}", advice=advice)
    if why := unusable():
        found, advice = (
            f"{', '.join(names)}; torch {torch}: {why}",
            "update the driver, or install a torch for it",
        )
        return Finding(name="gpu", level=Level.WARN, found=f"{found}; runs use the CPU", advice=advice)
    return Finding(name="gpu", level=Level.OK, found=f"{', '.join(names)}; torch {torch} computes on it")


def other_gpu() -> str:
    """What a card of another maker than NVIDIA means here; "" without one."""
    if Path("/dev/kfd").exists():
        return "AMD: a torch for ROCm gives time and memory; utilization, power and clock are not read; never tried"
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return "Apple: canaries use the CPU; your own script may use mps, and is timed, but has no memory; never tried"
    return ""


TRY = """
import torch
with __import__("warnings").catch_warnings(record=True) as said:
    __import__("warnings").simplefilter("always")
    if not torch.cuda.is_available():
        raise SystemExit(str(said[0].message) if said else "torch finds no GPU")
raise SystemExit(0 if (torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")).sum().item() == 64**3
                 else "a product of two matrices is wrong")
"""


def unusable() -> str:
    """Why torch cannot compute on the GPU, in its own words; "" if it can. Tried in a separate process: torch is large,
    and a broken driver may do anything to a process."""
    try:
        done = subprocess.run([sys.executable, "-c", TRY], capture_output=True, text=True, timeout=TRY_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no answer in {TRY_SECONDS} s"
    said = done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"]
    return "" if done.returncode == 0 else said[-1].removeprefix("CUDA initialization: ").split(" (Triggered")[0]


def nvidia_gpus() -> list[str]:
    """Name and driver of each GPU; empty without nvidia-smi or when it fails."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [" driver ".join(re.split(r",\s*", text)) for text in done.stdout.splitlines() if text.strip()]


def folders(fix: bool) -> Finding:
    """Scratch folders and git worktrees of processes that were killed."""
    from canary_mlflow.tracking.stores.owner import left_behind, remove_left_behind

    if fix:
        return Finding(name="scratch", level=Level.OK, found=f"{remove_left_behind()} folders removed")
    if not (found := left_behind()):
        return Finding(name="scratch", level=Level.OK, found="no folder of a killed process")
    shown = listed([*map(str, found)], SHOWN)
    return Finding(name="scratch", level=Level.WARN, found=f"left by killed processes: {shown}", advice=FIX)


def store(tracking_uri: str | None, *, fix: bool = False) -> Iterator[Finding]:
    """The MLflow store: reachable, room left, nothing forgotten."""
    from canary_mlflow.tracking.stores.places import sqlite_file
    from canary_mlflow.tracking.stores.store import prepare_store, reading_store, resolve

    began = time.perf_counter()
    try:
        file = sqlite_file(resolve(tracking_uri))
        if file is not None and not file.exists():
            yield Finding(name="store", level=Level.OK, found=f"none yet at {file}: the first run makes it")
            yield from disks(None, file)
            return
        client = prepare_store(tracking_uri) if fix else reading_store(tracking_uri)
        experiments = len(client.search_experiments())
    except CanaryError as error:
        yield Finding(name="store", level=Level.FAIL, found=str(error), advice="see --tracking-uri")
        return
    took = time.perf_counter() - began
    found = f"{without_password(client.tracking_uri)}: {counted(experiments, 'experiment')}, answered in {took:.1f} s"
    yield Finding(name="store", level=Level.OK, found=found)
    yield from disks(client)
    yield left_open(client, fix)


def disks(client: MlflowClient | None, file: Path | None = None) -> Iterator[Finding]:
    """Free space where a session writes: a finding per disk, which names what lies there and gives advice on the first.

    `file`: the embedded store's file, if the store does not exist yet and cannot be asked for its places.
    """
    by_device: dict[int, list[Written]] = {}
    for place in written(client, file):
        there = next(folder for folder in (place.folder, *place.folder.parents) if folder.exists())
        by_device.setdefault(there.stat().st_dev, []).append(replace(place, folder=there))
    for together in by_device.values():
        yield disk(together)


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a session writes where. `large`: it grows with the runs and is not just a few files."""

    what: str
    folder: Path
    advice: str
    large: bool = True


def written(client: MlflowClient | None, file: Path | None) -> Iterator[Written]:
    """The places on this machine that a session writes to, each once."""
    from canary_mlflow.ledger.keys import key_folder
    from canary_mlflow.tracking.stores.places import local_folder, sqlite_file

    if found := file or (sqlite_file(client.tracking_uri) if client else None):
        yield Written(what="store", folder=found.parent, advice=OLD_RUNS)
    here = client is not None and not client.tracking_uri.startswith("http")
    locations = [experiment.artifact_location for experiment in client.search_experiments()] if client and here else []
    folders = {folder for location in locations if (folder := local_folder(location))}
    for folder in sorted(folders) or [Path.cwd()]:
        yield Written(what="artifacts", folder=folder, advice=OLD_RUNS)
    yield Written(
        what="outputs", folder=Path.cwd() / "outputs", advice="remove old folders of outputs/, or set hydra.run.dir"
    )
    keys = "make room, or move the folder and set CANARY_KEYS"
    yield Written(what="keys", folder=key_folder(), advice=keys, large=False)
    temporary = Path(tempfile.gettempdir())
    yield Written(what="temporary files", folder=temporary, advice="make room, or set TMPDIR", large=False)


def disk(together: Sequence[Written]) -> Finding:
    """Free space on the disk that holds these places."""
    first, large = together[0], any(place.large for place in together)
    free = shutil.disk_usage(first.folder).free / 2**30
    room = f"{free:.1f} GiB" if free >= 1 else f"{free * 1024:.1f} MiB"
    found = f"{room} free at {first.folder} ({', '.join(dict.fromkeys(place.what for place in together))})"
    fail, warn = (FAIL_FREE, WARN_FREE) if large else (FAIL_FEW, WARN_FEW)
    if free < fail:
        need = f"{fail:g} GiB" if large else f"{fail * 1024:.0f} MiB"
        return Finding(name="disk", level=Level.FAIL, found=found, advice=f"a session may need {need}; {first.advice}")
    if free < warn:
        return Finding(name="disk", level=Level.WARN, found=found, advice=first.advice)
    return Finding(name="disk", level=Level.OK, found=found)


def left_open(client: MlflowClient, fix: bool) -> Finding:
    """Runs that say RUNNING though their process is gone."""
    from canary_mlflow.registry.sessions import leftovers

    if fix:
        return Finding(name="killed", level=Level.OK, found=f"{leftovers.close_left_open(client)} runs ended as FAILED")
    if not (found := leftovers.left_open(client)):
        return Finding(name="killed", level=Level.OK, found="no run of a killed process reads RUNNING")
    shown = listed([run.info.run_id for run in found], SHOWN)
    return Finding(name="killed", level=Level.WARN, found=f"RUNNING, and their processes are gone: {shown}", advice=FIX)
