"""Environments of locked packages, in a separate cache: built once, by hard links, and reused."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

from filelock import FileLock

from canary_mlflow.errors import CanaryError, one_line
from canary_mlflow.upgrading.pins import FOLDER as OF_FOLDER
from canary_mlflow.upgrading.pins import Pins
from canary_mlflow.upgrading.uv import uv

FOLDER = "CANARY_ENVIRONMENTS"
COMPLETE = "canary-complete"
SHARED_FROM = 3  # environments, the newest
PACKAGE = Path(__file__).resolve().parents[1]


def folder() -> Path:
    """The folder for environments: CANARY_ENVIRONMENTS, else in the user's cache."""
    if given := os.environ.get(FOLDER):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "canary-mlflow" / "environments"


def key_of(pins: Pins) -> str:
    """The name of an environment of these packages for this Python."""
    text = "\n".join([sys.version, *(f"{name}=={version}" for name, version in sorted(pins.items()))])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_there(pins: Pins) -> bool:
    """Whether the environment was already built."""
    return (folder() / key_of(pins) / COMPLETE).exists()


def build(pins: Pins) -> Path:
    """The Python of an environment with exactly these packages. Raises CanaryError, with nothing half-made."""
    place = folder() / key_of(pins)
    python = place / "bin" / "python"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{place}.lock"):
            if (place / COMPLETE).exists():
                return python
            _make(place, pins)
    except OSError as error:
        raise CanaryError(f"environments in {folder()}: {one_line(error)}; expected a folder with room") from error
    return python


def _make(place: Path, pins: Pins) -> None:
    shutil.rmtree(place, ignore_errors=True)
    try:
        uv("venv", "--quiet", str(place))
        wanted = place / "canary-packages.txt"
        wanted.write_text("".join(
            f"-e {version}\n" if version.startswith(OF_FOLDER) else f"{name}=={version}\n"
            for name, version in sorted(pins.items())
        ))  # fmt: skip
        python = str(place / "bin" / "python")
        uv("pip", "install", "--quiet", "--no-deps", "--python", python, "--requirement", str(wanted))
        _share_bytecode(place)
        (place / COMPLETE).touch()
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _share_bytecode(place: Path) -> None:
    """Link bytecode that another environment has compiled: compiling torch and transformers is half of a first
    training. It must be of the same source, one file by hard links: Python looks at no more than size and second, which
    two releases unpacked in the same second may share."""
    others = [one.parent for one in place.parent.glob(f"*/{COMPLETE}") if one.parent != place]
    for other in sorted(others, key=lambda one: (one / COMPLETE).stat().st_mtime)[-SHARED_FROM:]:
        for compiled in other.glob("lib/python*/site-packages/**/__pycache__/*.pyc"):
            link = place / compiled.relative_to(other)
            source = link.parent.parent / f"{compiled.name.partition('.')[0]}.py"
            compiled_from = compiled.parent.parent / source.name
            if source.exists() and compiled_from.exists() and source.samefile(compiled_from) and not link.exists():
                link.parent.mkdir(exist_ok=True)
                os.link(compiled, link)


def own_code() -> Path:
    """A folder with only this package, for another environment's path: where it is installed, this environment's other
    packages lie beside it."""
    place = folder() / f"own-{hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:8]}"
    place.mkdir(parents=True, exist_ok=True)
    link = place / PACKAGE.name
    if not link.is_symlink():
        link.symlink_to(PACKAGE, target_is_directory=True)
    hook, inside = place / "sitecustomize.py", Path(__file__).with_name("inside.py")
    if not hook.is_symlink() or hook.readlink() != inside:
        hook.unlink(missing_ok=True)
        hook.symlink_to(inside)
    return place
