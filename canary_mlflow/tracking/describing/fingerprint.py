"""What a run ran on: versions, host, source commit, and the class of hardware. Loads no torch."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from canary_mlflow.tracking.describing import gpus

UNKNOWN = "unknown"
COMMITS = 50  # last commits that a run records
SHORT = 12  # characters of each
TITLE = 72  # characters of the newest one's title

# Packages whose version may change numbers or speed.
PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "tokenizers",
    "safetensors",
    "bitsandbytes",
    "deepspeed",
    "flash-attn",
    "liger-kernel",
    "triton",
    "vllm",
    "numpy",
    "mlflow",
    "canary-mlflow",
)


def environment(folder: Path | None = None) -> dict[str, str]:
    """What may differ between two runs and a report should list: versions, host, driver, commit of `folder`.

    Keys are those of the tags `canary.env.<key>`; packages that are not installed are left out.
    """
    facts = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node() or UNKNOWN,
        "cpu": cpu_model(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS", "unset"),
        **packages(),
        **git(folder or Path()),
    }
    found = gpu_facts()
    return facts | {key: found[key] for key in ("driver", "gpu", "gpu_memory", "gpu_mode") if key in found}


def hardware(backend: str, *, device: str | None = None, count: int | None = None) -> dict[str, str]:
    """The class of hardware on which timings and memory depend; runs of different classes are not compared.

    `backend` is cpu or cuda. Keys are those of the tags `canary.hardware.<key>`: backend, device, count (GPUs used,
    or usable CPU cores).
    """
    if backend == "cpu":
        return {"backend": backend, "device": device or cpu_model(), "count": str(count or usable_cores())}
    found = gpu_facts()
    return {
        "backend": backend,
        "device": device or found.get("gpu", UNKNOWN),
        "count": str(count or found.get("gpu_count", UNKNOWN)),
    }


@cache
def packages() -> dict[str, str]:
    """The installed versions of PACKAGES."""
    found = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name.replace("-", "_")] = version(name)
    return found


def git(folder: Path) -> dict[str, str]:
    """Commit and dirtiness of the checkout that holds `folder`; unknown without a checkout or without git.

    If it is dirty, `git_diff` has the digest of its changes, by which the same code can be recognised. `git_log` has
    the last commits, newest first, by which a report counts the commits between two runs; `git_title` what the newest
    says of itself.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {"git_commit": UNKNOWN, "git_dirty": UNKNOWN}
    # Untracked files do not count: a run's own outputs would make the next run dirty.
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    found = {"git_commit": commit, "git_dirty": UNKNOWN if changes is None else str(bool(changes)).lower()}
    if changes and (diff := _git(folder, "diff", "HEAD")) is not None:
        found["git_diff"] = hashlib.sha256(diff.encode(errors="surrogateescape")).hexdigest()[:16]
    if log := _git(folder, "log", "--first-parent", f"--max-count={COMMITS}", "--format=%H %s"):
        lines = log.splitlines()
        found["git_log"] = " ".join(line[:SHORT] for line in lines)
        found["git_title"] = lines[0].partition(" ")[2][:TITLE]
    return found


def script() -> dict[str, str]:
    """`train.py` and a digest of its text, of the script that this process runs: what Git does not know of one that
    nobody committed, or that lies outside a checkout. {} for a module (`python -m`), a notebook or a prompt."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None:
        return {}
    try:
        return {"script": f"{Path(file).name} {hashlib.sha256(Path(file).read_bytes()).hexdigest()[:SHORT]}"}
    except OSError:
        return {}


def _git(folder: Path, *command: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *command],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@cache
def cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.lower().startswith(("model name", "hardware", "cpu model")):
                return line.partition(":")[2].strip() or UNKNOWN
    return platform.processor() or platform.machine() or UNKNOWN


def usable_cores() -> int:
    """Cores this process may run on, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def gpu_facts() -> dict[str, str]:
    """Driver, name, memory (MiB) and unusual mode of the first GPU that CUDA shows this process, and how many it shows;
    empty without a GPU, driver or nvidia-ml-py."""
    with gpus.driver() as nvml:
        if nvml is None:
            return {}
        try:
            names = gpus.visible(nvml)
            if not names:
                return {}
            device = gpus.handle(nvml, names[0])
            return {
                "driver": gpus.text(nvml.nvmlSystemGetDriverVersion()),
                "gpu": gpus.text(nvml.nvmlDeviceGetName(device)),
                "gpu_count": str(len(names)),
                "gpu_memory": str(nvml.nvmlDeviceGetMemoryInfo(device).total // 2**20),
                **({"gpu_mode": mode} if (mode := gpus.mode(nvml, device)) else {}),
            }
        except nvml.NVMLError:
            return {}
