"""Other environments than that of the tests, with its packages and without the checkout that is installed in it.

The packages are links: a `.pth` to the whole of site-packages would bring the checkout's own entry points along.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from workplace import ROOT

from canary_mlflow.interpreter import TRAINING_STACK

PACKAGES = Path(sysconfig.get_path("purelib"))
OWN = ("canary_mlflow", "_editable_impl_canary_mlflow.py")  # what an editable install leaves there
STACK = (*TRAINING_STACK, "hydra_core")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A virtual environment without pip; another Python's pip can install into it."""

    prefix: Path

    @property
    def python(self) -> str:
        return str(self.prefix / "bin/python")

    @property
    def packages(self) -> Path:
        return next(self.prefix.glob("lib/python3*/site-packages"))

    def install(self, *what: str | Path, cwd: Path) -> None:
        """Without a network: nothing but `what` itself, built with the packages of the tests."""
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-index"),
                *("--no-deps", "--no-build-isolation", *map(str, what)),
            ],
            cwd=cwd, env=outside(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def run(self, *command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command of the environment; nothing of the checkout is on its path."""
        return subprocess.run(
            command, cwd=cwd, env={**outside(), "PATH": f"{self.prefix}/bin:{os.environ['PATH']}", **environment},
            capture_output=True, text=True, check=False, timeout=280,
        )  # fmt: skip


def outside() -> dict[str, str]:
    """This process's environment variables, without those that lead to the checkout or to a store."""
    led = ("MLFLOW_", "PYTHONPATH", "VIRTUAL_ENV", "GITHUB_", "GITLAB_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(led)}
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def make(prefix: Path, *, without: Collection[str] = ()) -> Environment:
    """A new environment with links to the packages of the tests, without those of these names."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    environment = Environment(prefix=prefix)
    link(environment.packages, without=(*OWN, *without))
    return environment


def link(folder: Path, *, only: Collection[str] = (), without: Collection[str] = ()) -> None:
    """Links in `folder` to the packages of the tests: the named ones, or all but the named ones."""
    for item in PACKAGES.iterdir():
        name = item.name.partition("-")[0] if item.suffix == ".dist-info" else item.name
        chosen = name in only if only else name not in without
        if chosen and item.suffix != ".pth" and not (folder / item.name).exists():
            (folder / item.name).symlink_to(item)


def copy_of_checkout(folder: Path) -> Path:
    """What git would take, in a folder that is not a checkout; this one may be none either."""
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(".git", *ignored))
    return folder
