"""What has to be measured on a GPU, in the order of its worth: one command that may be cut off at any moment.

    python benchmarks/on_card.py [--minutes 9] [--only PART …] [--file FILE] [--wheels FOLDER] [--place FOLDER]
    python benchmarks/on_card.py --rehearse   # the same on a CPU: tiny sizes, a driver that is made up
    python benchmarks/on_card.py --list       # the parts, their minutes, and how much of each the file has

A part is a list of units: a training, a session, a judgement. A unit that ended is a line of JSON in the file: card,
driver, versions, commit, figures; a verdict with its reasons. One that the file has for this class of card is skipped,
and none is begun for which too few minutes are left. This process loads the libraries once, and forks for each unit
before anything has touched the card, so that each training has a process and a CUDA context of its own; with
bitsandbytes, which only `kinds` needs, each unit loads them.

`--wheels`: install these first, into their own folder, for a machine that reaches no index. `--place`: where models
are made and stores kept; deleted at the end if it is not given. `make docs` makes tables of the file for
docs/measured/gpu.md.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests")]

FILE = ROOT / "benchmarks" / "on-card.jsonl"
PACKAGES = ("torch", "transformers", "trl", "accelerate", "peft", "bitsandbytes", "mlflow")
GRACE = 3.0  # times a unit's own minutes, after which it is ended
REHEARSED = "rehearsal, no card: "  # before the made-up card's name

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """`make` returns its figures, in a process of its own (`forks`) or in this one, which only starts commands then.
    `minutes`: what it takes on a card, with room."""

    part: str
    name: str
    minutes: float
    make: Callable[[], Record]
    forks: bool = True


class Book:
    """The file of what was measured. A line that was cut off in writing is left out."""

    def __init__(self, file: Path, card: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.file, self.card = file, card
        self.lines: list[Record] = []
        for line in file.read_text().splitlines() if file.exists() else ():
            with suppress(ValueError):
                self.lines.append(json.loads(line))

    def of(self, part: str, card: str = "") -> dict[str, Record]:
        """Name → record of a part's units on this class of card; those that broke off are not measured."""
        kept = [one for one in self.lines if (one["part"], one["card"]) == (part, card or self.card)]
        return {one["unit"]: one for one in kept if not one.get("broke")}

    def add(self, unit: Unit, facts: Record, figures: Record) -> None:
        """Write it at once, so that nothing is lost if this is the last."""
        record = {"part": unit.part, "unit": unit.name, **facts, **figures}
        self.lines.append(record)
        begins = "" if not self.file.exists() or self.file.read_bytes()[-1:] in (b"", b"\n") else "\n"
        with self.file.open("a") as stream:
            stream.write(begins + json.dumps(record, separators=(",", ":")) + "\n")
            stream.flush()
            os.fsync(stream.fileno())


def facts_of(rehearse: bool) -> Record:
    """What stands in every line: the class of the card, its driver, the packages, the commit."""
    from canary_mlflow.tracking.describing import gpus

    with gpus.driver() as nvml:
        if nvml is None:
            raise SystemExit("no driver offers a GPU; expected one; `--rehearse` needs none")
        card = gpus.text(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0)))
        driver = gpus.text(nvml.nvmlSystemGetDriverVersion())
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "card": f"{REHEARSED if rehearse else ''}{card}",
        "driver": driver,
        "python": ".".join(map(str, sys.version_info[:3])),
        "packages": {name: found for name in PACKAGES if (found := _installed(name))},
        "commit": asked.stdout.strip() or os.environ.get("CANARY_COMMIT", ""),
        "date": time.strftime("%Y-%m-%d"),
    }


def _installed(name: str) -> str:
    with suppress(PackageNotFoundError):
        return version(name)
    return ""


def measured(unit: Unit, folder: Path) -> Record:
    """The unit's figures, with its seconds; `broke` with the last line where it failed or took too long."""
    began = time.monotonic()
    figures = _forked(unit, folder) if unit.forks else _here(unit)
    return {**figures, "seconds": round(time.monotonic() - began, 1)}


def _here(unit: Unit) -> Record:
    try:
        return unit.make()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever breaks, the next unit is measured
        return {"broke": _last_line(error)}


def _forked(unit: Unit, folder: Path) -> Record:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _child(unit, folder / "output.txt", write)
    os.close(write)
    told, deadline = b"", time.monotonic() + 60 * GRACE * unit.minutes
    with os.fdopen(read, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if not (some := pipe.read(1 << 16)):
                break
            told += some
        else:
            os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    with suppress(ValueError):
        return dict(json.loads(told))
    return {"broke": f"its process ended with {os.waitstatus_to_exitcode(status)}"}


def _child(unit: Unit, output: Path, write: int) -> None:
    """Never returns: what the parent would do at its end is not this process's."""
    with output.open("ab") as stream:
        for own in (1, 2):
            os.dup2(stream.fileno(), own)
    try:
        figures = unit.make()
    except BaseException as error:  # noqa: BLE001 - SystemExit too
        traceback.print_exc()
        figures = {"broke": _last_line(error)}
    with os.fdopen(write, "wb") as pipe:
        pipe.write(json.dumps(figures).encode())
    os._exit(0)


def _last_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[-1][:300]


def run(units: Iterator[Unit], book: Book, facts: Record, folder: Path, minutes: float) -> None:
    """Measure what the book does not have and for which there is time."""
    last, had = (
        time.monotonic() + 60 * minutes,
        {part: set(book.of(part)) for part in {one["part"] for one in book.lines}},
    )
    for unit in units:
        if unit.name in had.get(unit.part, ()):
            continue
        if time.monotonic() + 60 * unit.minutes > last:
            print(f"{unit.part:10s} {unit.name:24s} left: {unit.minutes:g} minutes are not left", flush=True)
            continue
        figures = measured(unit, folder)
        book.add(unit, facts, figures)
        said = figures.get("broke") or figures.get("said", "")
        print(f"{unit.part:10s} {unit.name:24s} {figures['seconds']:6.1f} s  {said}", flush=True)


def listed(units: Iterator[Unit], book: Book) -> None:
    """Print the parts with their minutes."""
    parts: dict[str, list[Unit]] = {}
    for unit in units:
        parts.setdefault(unit.part, []).append(unit)
    for part, some in parts.items():
        done = book.of(part)
        left = [unit for unit in some if unit.name not in done]
        minutes = sum(one.minutes for one in left)
        print(f"{part:10s} {len(some) - len(left):3d} of {len(some):3d} units, {minutes:5.1f} minutes left")


def with_wheels(wheels: Path, site: Path) -> None:
    """Install them and begin again with them. Does not return."""
    install = ["install", "-q", "--no-index", "--no-deps", "--no-compile", "--upgrade", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", *install, *map(str, wheels.glob("*.whl"))], check=True)
    at = sys.argv.index("--wheels")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    os.execv(sys.executable, [sys.executable, *sys.argv[:at], *sys.argv[at + 2 :]])


def main() -> None:
    import card_desk
    import card_parts

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="begin nothing that takes longer than what is left")
    parser.add_argument("--only", nargs="+", choices=card_parts.PARTS, metavar="PART", default=list(card_parts.PARTS))
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--place", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    if asked.wheels:
        with_wheels(asked.wheels, Path(tempfile.mkdtemp(prefix="canary-site-")))
    if asked.rehearse:
        card_desk.make_up_a_driver()
    facts = facts_of(asked.rehearse)
    book = Book(asked.file, facts["card"])
    with tempfile.TemporaryDirectory(prefix="canary-card-") as own:
        folder = (asked.place or Path(own)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        desk = card_desk.Desk(folder=folder, size=card_desk.TINY if asked.rehearse else card_desk.FULL, book=book)
        units = (unit for part in asked.only for unit in card_parts.PARTS[part](desk))
        if asked.list:
            return listed(units, book)
        began = time.monotonic()
        if card_desk.loads_early(asked.rehearse):
            card_desk.load()
            print(f"{facts['card']}: libraries loaded in {time.monotonic() - began:.1f} s", flush=True)
        run(units, book, facts, folder, asked.minutes - (time.monotonic() - began) / 60)
    return None


if __name__ == "__main__":
    main()
