"""Checks that a checkout's own code accepts the overrides with which its runs will be made."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from canary_mlflow.errors import UsageError, one_line
from canary_mlflow.files.documents import parse_yaml
from canary_mlflow.interpreter import CHOSEN
from canary_mlflow.launching.sources import Source

_SECONDS = 120
_WRONG_USE = 2  # the exit code of every command of the project


def require_overrides(source: Source, overrides: Sequence[str], whose: str) -> None:
    """Raise UsageError for overrides that the code there refuses, with its message, before anything is made.

    Only if this Python runs that code: another environment reports it in its first run.
    """
    if source.env_manager == "local":
        _compose(source, overrides, whose)


def composed(source: Source, overrides: str) -> dict[str, Any]:
    """The configuration that the code there makes from overrides, split as by a shell; empty if this Python does not
    run that code. Raises UsageError."""
    if source.env_manager != "local":
        return {}
    found = parse_yaml(_compose(source, shlex.split(overrides), "overrides"))
    return found if isinstance(found, dict) else {}


def _compose(source: Source, overrides: Sequence[str], whose: str) -> str:
    path = os.pathsep.join([str(source.folder), os.environ.get("PYTHONPATH", "")])
    try:
        found = subprocess.run(
            [sys.executable, "-m", "training", *overrides, "--cfg", "job", "--resolve"],
            cwd=source.folder,
            env={**os.environ, "PYTHONPATH": path, CHOSEN: source.env_manager},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{whose}: its overrides could not be tried: {one_line(error)}; try again") from error
    if found.returncode == _WRONG_USE:
        words = found.stderr.strip().splitlines() or ["its overrides were refused"]
        raise UsageError(f"{whose}: {words[-1].removeprefix('canary: ')}")
    return found.stdout
