"""Run a module of this project: `python …/canary_mlflow/module_runner.py training.worker …`.

`python -m training.worker` would take what the working folder, or a folder of PYTHONPATH, has under that name, and many
projects have a folder called training. Here the place of this file says where the code is, and the working folder is on
no path. Nothing of this project is imported before that.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

FILE = Path(__file__).absolute()  # not resolved: `canary upgrade` has links to this code, away from other packages
ROOT = str(FILE.parents[1])
OWN = ("canary_mlflow", "gates", "training")  # its top-level packages


class _Beside:
    """Finds this project's packages beside this one, and leaves the order of all others to sys.path."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [ROOT], target) if name in OWN else None


def module_command(module: str) -> list[str]:
    """The words that run a module of this project in a process of its own, to be followed by its arguments."""
    return [sys.executable, str(FILE), module]


def _run() -> None:
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of this file, by whatever name Python knows it
    if ROOT not in sys.path:
        sys.path.insert(0, ROOT)
    sys.meta_path.insert(0, _Beside)
    from runpy import run_module

    del sys.argv[0]
    run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run()
