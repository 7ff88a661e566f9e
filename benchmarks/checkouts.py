"""Runs README's two commands and the tutorial in every kind of checkout, each built from nothing.

Kinds: a clone, a second one beside it, a copy without git, and a folder with blanks and umlauts. They share one home
folder, as on a developer's machine. tests/test_wheel.py does the same for a wheel outside any checkout.

    python benchmarks/checkouts.py [--only KIND] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Row:
    kind: str
    what: str
    seconds: float
    code: int
    said: str


def ran(
    words: list[str], folder: Path, environment: Mapping[str, str]
) -> tuple[float, subprocess.CompletedProcess[str]]:
    """(seconds that the command took, the ended process)."""
    start = time.monotonic()
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return time.monotonic() - start, done


def clean(own: Path) -> dict[str, str]:
    """An environment without traces of this checkout: with a separate home folder, and pip's cache."""
    keep = {name: value for name, value in os.environ.items() if name.startswith(("LANG", "LC_", "PIP_", "UV_"))}
    keep["PYENV_ROOT"] = os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))  # where python3 may come from
    cache = subprocess.run(["pip", "cache", "dir"], capture_output=True, text=True, check=False).stdout.strip()
    path = os.pathsep.join(one for one in os.environ["PATH"].split(os.pathsep) if ".venv" not in one)
    return {**keep, "PATH": path, "HOME": str(own), "PIP_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """The verdict's line of the output, or the last line."""
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("BOOTSTRAP", "PASS", "BLOCK", "INCONCLUSIVE"))]
    return (told or lines or [""])[-1][:70]


def checkout(kind: str, folder: Path, environment: Mapping[str, str]) -> list[Row]:
    """make smoke twice: a bootstrap, then a verdict."""
    rows = []
    for what in ("make smoke, from nothing", "make smoke, again"):
        seconds, done = ran(["make", "smoke"], folder, environment)
        rows.append(Row(kind, what, seconds, done.returncode, last_words(done)))
    return rows


def tutorial(kind: str, checkout: Path, folder: Path) -> Row:
    """Run docs/tutorial.md in a folder outside the checkout, with the checkout's environment."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})\nfrom pathlib import Path\n"
        f"from test_tutorial import follow\n"
        f"page = Path({str(checkout / 'docs' / 'tutorial.md')!r}).read_text()\n"
        f"missing = follow(page, Path({str(folder)!r}))\nprint(missing or 'every answer came'); sys.exit(bool(missing))"
    )
    folder.mkdir()
    seconds, done = ran([str(checkout / ".venv" / "bin" / "python"), "-c", code], folder, os.environ)
    return Row(kind, "the tutorial", seconds, done.returncode, last_words(done))


def clone(place: Path, environment: Mapping[str, str]) -> None:
    subprocess.run(["git", "clone", "-q", str(ROOT), str(place)], check=True, env=environment)


def copy(place: Path, environment: Mapping[str, str]) -> None:
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place / name, follow_symlinks=False)


KINDS: dict[str, tuple[str, Callable[[Path, Mapping[str, str]], None]]] = {
    "clone": ("first", clone),
    "second clone": ("second", clone),
    "copy without git": ("copy", copy),
    "blanks and umlauts": ("a folder of Jürgen's", clone),
}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", choices=KINDS)
    arguments.add_argument("--keep", type=Path, help="a folder for the checkouts, which is not removed")
    given = arguments.parse_args()
    place = given.keep or Path(tempfile.mkdtemp(prefix="canary-checkouts-"))
    place.mkdir(exist_ok=True)
    (place / "home").mkdir(exist_ok=True)
    environment = clean(place / "home")
    rows = []
    for kind, (name, make) in KINDS.items():
        if given.only in (None, kind):
            make(place / name, environment)
            rows += checkout(kind, place / name, environment)
            rows.append(tutorial(kind, place / name, place / f"{name}, tutorial"))
            for one in rows[-3:]:
                print(f"{one.kind:<20}{one.what:<26}{one.seconds:>5.0f} s   exit {one.code}   {one.said}", flush=True)
    if given.keep is None:
        shutil.rmtree(place)
    return int(any(one.code for one in rows))


if __name__ == "__main__":
    sys.exit(main())
