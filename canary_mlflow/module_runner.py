"""Run a module of this project: `python …/canary_mlflow/module_runner.py training.worker …`.

`python -m training.worker` would take what the working folder has under that name, and many projects have a folder
called training. Here the place of this file says where the code is, and the working folder is on no path. Nothing of
this project is imported before that.
"""

from __future__ import annotations

import sys
from pathlib import Path

FILE = Path(__file__).absolute()  # not resolved: `canary upgrade` has links to this code, away from other packages


def module_command(module: str) -> list[str]:
    """The words that run a module of this project in a process of its own, to be followed by its arguments."""
    return [sys.executable, str(FILE), module]


def _run() -> None:
    sys.path.remove(str(FILE.parent))  # Python puts it first
    if (root := str(FILE.parents[1])) not in sys.path:
        sys.path.insert(0, root)
    from runpy import run_module

    del sys.argv[0]
    run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run()
