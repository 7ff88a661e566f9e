"""Run a module of this package: `python …/canary_mlflow/module_runner.py canary_mlflow.training.worker …`.

`python -m` would put the working folder first on the path, where a project's own `datasets` or `trl` hides a library,
and would take whichever copy of this package the environment has. Here the place of this file says where it is.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

FILE = Path(__file__).absolute()  # not resolved: `canary upgrade` has a link to this code, away from other packages
ROOT = str(FILE.parents[1])


def module_command(module: str) -> list[str]:
    """The words that run a module of this package in a process of its own, to be followed by its arguments."""
    return [sys.executable, str(FILE), module]


def _run() -> None:
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of this file, by whatever name Python knows it
    if ROOT not in sys.path:
        sys.path.insert(0, ROOT)  # for processes that start from this one
    spec = spec_from_file_location(FILE.parent.name, FILE.with_name("__init__.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = package = module_from_spec(spec)
    spec.loader.exec_module(package)
    from runpy import run_module

    del sys.argv[0]
    run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run()
