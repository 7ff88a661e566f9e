"""uv, called with what pip was told of indexes here; its errors in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from canary_mlflow.errors import CanaryError
from canary_mlflow.interpreter import on_path
from canary_mlflow.shown import uncoloured
from canary_mlflow.tracking.signals import waiting
from canary_mlflow.upgrading import subprocess_guard

NO_SOLUTION = "No solution found when resolving dependencies"
UNBUILDABLE = "Failed to build"
FROM_PIP = {"PIP_FIND_LINKS": "UV_FIND_LINKS", "PIP_INDEX_URL": "UV_DEFAULT_INDEX", "PIP_EXTRA_INDEX_URL": "UV_INDEX"}
"""Where pip looks uv looks too, unless it was told otherwise itself."""
SECONDS = 1800
CAUSES = (
    (
        "No space left on device",
        "the disk is full; expected room for an environment (CANARY_ENVIRONMENTS) and for uv's cache (UV_CACHE_DIR)",
    ),
    ("Network connectivity is disabled", "uv is offline (UV_OFFLINE) and its cache lacks a package that is needed"),
    (
        "error sending request",
        "the package index does not answer; expected a network, or UV_OFFLINE=1 and a cache",
    ),
    ("dns error", "the package index is not found; expected a network, or UV_OFFLINE=1 and a cache"),
)


class UVFailed(CanaryError):
    """uv could not do what it was asked for; `text` is all that it said."""

    def __init__(self, text: str) -> None:
        self.text = uncoloured(text)
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        whole = " ".join(lines)  # uv breaks lines as wide as a terminal, within what is looked for too
        cause = next((said for word, said in CAUSES if word in whole), lines[0] if lines else "it said nothing")
        super().__init__(f"uv: {cause}"[:500])


class Unbuildable(UVFailed):
    """A package has no wheel for this machine, and cannot be built on it."""


def uv(*words: str) -> str:
    """Its stdout. Raises CanaryError where there is no uv, UVFailed."""
    program = located()
    try:
        with waiting():
            done = subprocess_guard.run([program, *words], environment(os.environ), SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise UVFailed(str(error)) from error
    if done.returncode:
        said = done.stderr or done.stdout
        whole = " ".join(said.split())
        known = any(word in whole for word, _ in CAUSES)
        raise (Unbuildable if UNBUILDABLE in whole and not known else UVFailed)(said)
    return done.stdout


def located() -> str:
    """Where uv is."""
    found = on_path("uv")
    if found is None:
        raise CanaryError("no uv here, which builds the environments; expected it beside Python; pip install uv")
    return found


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """uv's environment variables, with what pip was told where uv was not."""
    from_pip = {FROM_PIP[name]: given[name] for name in FROM_PIP if name in given and FROM_PIP[name] not in given}
    return {**given, **from_pip, "UV_PYTHON": sys.executable, "UV_PYTHON_DOWNLOADS": "never"}


def pip_environment(given: Mapping[str, str]) -> dict[str, str]:
    """pip's environment variables, with what uv was told: where uv fetches nothing, pip does not."""
    from_uv = {pip: given[uv].replace(",", " ") for pip, uv in FROM_PIP.items() if uv in given}
    nowhere = any(given.get(name, "").lower() in ("1", "true") for name in ("UV_OFFLINE", "UV_NO_INDEX"))
    return {**given, **from_uv, **({"PIP_NO_INDEX": "1"} if nowhere else {})}
