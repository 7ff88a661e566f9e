"""Builds a folder once per machine, even if several processes ask for it at the same moment."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from canary_mlflow.tracking.stores.places import cache_dir
from canary_mlflow.training.errors import SetupError

LOCK_SECONDS = 120.0
SEAL = "seal.json"


def recipe_digest(recipe: Mapping[str, object]) -> str:
    """Return 16 hex digits that change whenever anything in the recipe changes."""
    text = json.dumps(recipe, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """Return the folder `name` in the cache, calling `build(folder)` only if no complete one is there.

    The folder is built under another name and moved into place in one rename, so nobody ever reads half of it. A folder
    whose files no longer match their digests is built again. Raises SetupError if the cache cannot be written.
    """
    place = cache_dir() / name
    if _is_whole(place):
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(str(place) + ".lock", timeout=LOCK_SECONDS):
            if not _is_whole(place):
                _build(place, build)
    except Timeout:
        raise SetupError(
            f"another process has held {place}.lock for {LOCK_SECONDS:.0f} s; expected it to finish building; "
            "end that process or set CANARY_CACHE to another folder"
        ) from None
    except OSError as error:
        raise _not_writable(error) from error
    return place


def check_buildable(name: str) -> None:
    """Raise SetupError unless the folder `name` is there, or the cache can be written to build it."""
    if _is_whole(cache_dir() / name):
        return
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache_dir()).close()
    except OSError as error:
        raise _not_writable(error) from error


def _not_writable(error: OSError) -> SetupError:
    return SetupError(
        f"the cache folder {cache_dir()} cannot be written ({error.strerror or error}); expected a writable folder; "
        "set CANARY_CACHE to one"
    )


def _build(place: Path, build: Callable[[Path], None]) -> None:
    workshop = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        build(workshop)
        (workshop / SEAL).write_text(json.dumps(_digests(workshop), indent=1))
        shutil.rmtree(place, ignore_errors=True)
        os.replace(workshop, place)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _is_whole(folder: Path) -> bool:
    try:
        sealed = json.loads((folder / SEAL).read_text())
        return bool(sealed == _digests(folder))
    except (OSError, ValueError):
        return False


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != SEAL)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
