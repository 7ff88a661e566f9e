"""The Python that runs a checkout's code: the checkout's own `.venv`, if there is one.

MLflow has one environment for all checkouts with the same pins, so `mlflow run .` may start the Python of another
checkout, or the remains of one. This module uses only the standard library: that Python may have nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

CHOSEN = "CANARY_PYTHON_CHOSEN"  # if set, whoever started this process chose its Python, and it is kept
CORE = ("click", "mlflow", "numpy", "scipy", "yaml")
TRAINING_STACK = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "hydra")
WRONG_USE = 2


def settle(needs: Sequence[str]) -> None:
    """Restart in the checkout's own environment if this Python belongs to another; return if this one will do.

    Exits with one line and code 2 if this Python lacks a module in `needs`.
    """
    project = Path(__file__).resolve().parents[1]
    in_checkout = (project / "MLproject").is_file()
    if in_checkout and CHOSEN not in os.environ and not belongs_to(project):
        own = project / ".venv/bin/python"
        if os.access(own, os.X_OK):
            _say(f"{sys.executable} is not this checkout's Python; going on with {own}")
            os.environ[CHOSEN] = str(own)
            os.execv(own, [str(own), *sys.orig_argv[1:]])
        if other := next((place for place in installed_from() if place.is_dir()), None):
            _say(f"{sys.executable} is the Python of {other}; `make smoke` in {project} builds its own")
    if missing := lacking(needs):
        what = f"run `make smoke` in {project}" if in_checkout else "pip install 'canary-mlflow[train]'"
        _say(f"{sys.executable} lacks {', '.join(missing)}; expected an environment with what is needed; {what}")
        sys.exit(WRONG_USE)


def on_path(program: str) -> str | None:
    """Where a program is: beside this Python, as torchrun and uv are, or on the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return shutil.which(program, path=path)


def lacking(needs: Sequence[str]) -> list[str]:
    """Those of the modules that this Python does not have; looks without importing."""
    return [name for name in needs if find_spec(name) is None]


def belongs_to(project: Path) -> bool:
    """Whether this Python is the checkout's `.venv`, or has this checkout installed."""
    if Path(sys.prefix).resolve() == (project / ".venv").resolve():
        return True
    return any(place.resolve() == project for place in installed_from())


def installed_from() -> Iterator[Path]:
    """The folders that an editable install of this project points to (PEP 610), usually one."""
    for found in Distribution.discover(name="canary-mlflow"):
        recorded = json.loads(found.read_text("direct_url.json") or "{}")
        if recorded.get("dir_info", {}).get("editable"):
            yield Path(url2pathname(urlsplit(recorded["url"]).path))


def _say(line: str) -> None:
    print(f"canary: {line}", file=sys.stderr, flush=True)
