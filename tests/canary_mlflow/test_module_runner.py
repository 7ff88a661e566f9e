"""Running a module of this package: its code is found wherever it lies, and whatever others call their folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from canary_mlflow import module_runner


def package(folder: Path, said: str) -> None:
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "told.py").write_text(f"import sys\nprint({said!r}, *sys.argv[1:])")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    package(tmp_path / "a checkout/canary_mlflow", "ours")
    shutil.copy(module_runner.__file__, tmp_path / "a checkout/canary_mlflow")
    package(tmp_path / "project/canary_mlflow", "theirs")
    return tmp_path / "a checkout"


def linked(code: Path) -> Path:
    (code.parent / "link").symlink_to(code)
    return code.parent / "link"


def by_a_link(code: Path) -> Path:
    """As `canary upgrade` has them."""
    place = code.parent / "links"
    place.mkdir()
    (place / "canary_mlflow").symlink_to(code / "canary_mlflow")
    return place


@pytest.mark.parametrize("options", [[], ["-P"]], ids=["", "safe path"])
@pytest.mark.parametrize("place", [Path, linked, by_a_link])
def test_our_own_code_runs(code: Path, place, options: list[str]) -> None:
    runner = place(code) / "canary_mlflow/module_runner.py"
    done = subprocess.run(
        [sys.executable, *options, str(runner), "canary_mlflow.told", "--seed", "7"],
        cwd=code.parent / "project", env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("ours --seed 7\n", "")
