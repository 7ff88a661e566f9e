"""Tries one set of packages: a command in its environment, and what the runs that it made tell."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from glob import iglob
from pathlib import Path

import numpy as np
from filelock import FileLock

from canary_mlflow import tags
from canary_mlflow.errors import CanaryError, UsageError, one_line
from canary_mlflow.gates.model.records import Run
from canary_mlflow.interpreter import CHOSEN, on_path
from canary_mlflow.own_cache import own_cache
from canary_mlflow.tracking.signals import waiting
from canary_mlflow.upgrading import run_comparison, subprocess_guard
from canary_mlflow.upgrading.environments import PACKAGE, build, key_of, own_code
from canary_mlflow.upgrading.pins import Pins
from canary_mlflow.upgrading.recording import FOLDER

AGAIN = "the same command goes on where it stopped"
RESULT = "result.json"
RECORDINGS, DATASETS = "recordings", "datasets"
ATTEMPT = "attempt-"
NO_ROOM = ("No space left on device", "Disk quota exceeded", "database or disk is full")
"""What a training says that fails for the disk, not for its packages."""
MISUSED = f"exit code {UsageError.exit_code}: canary: "
"""How the end of a canary begins that refuses what it was given, such as another algorithm."""
STOPPED = tuple(128 + each for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
"""Exit codes of what somebody stopped, as a machine that shuts down does: that tells nothing of packages."""
SAYS_STOPPED = ("KeyboardInterrupt", "exit code 4: canary: stopped by", "exit code 4: canary: interrupted")
PYTHON = ("python", "python3")
"""What stands for the environment's own."""
_ENDED = re.compile(r"^canary: ((\w+) at .*) ended the run of seed \d+")  # what a canary says instead of a traceback
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_RAISED = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning))(?::\s*(.*))?$")


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What one set of packages did. `ended`: '' if the command finished, else the exception with its place."""

    key: str
    folder: str
    seconds: float
    code: int
    ended: str = ""
    kind: str = ""  # of the exception

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The runs that it recorded, read when they are asked for."""
        return _runs(Path(self.folder))

    @cached_property
    def recording(self) -> run_comparison.Recording:
        """What it did besides."""
        return run_comparison.read(Path(self.folder) / RECORDINGS)

    @cached_property
    def costs(self) -> Mapping[str, float]:
        """What it cost, and what a step did in the median of each training."""
        steps = [one.values[1:] for run in self.runs if (one := run.series.get("step_cost")) is not None]
        usual = [float(np.median(values)) for values in steps if len(values) >= run_comparison.REPEATS]
        return {**self.recording.costs, **({"cost.step": sum(usual)} if usual else {})}


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """Tries one command in several ways, each once: what was tried is kept in `work`, for the next time too."""

    command: str
    work: Path
    minutes: float = 30.0
    overrides: Mapping[str, str] = field(default_factory=dict)  # environment variables of the command

    def kept(self, place: Path, attempt: Callable[[Path], Probe]) -> Probe:
        """What `attempt` finds, which is given a folder, or found before. Raises CanaryError for a disk without room,
        and if somebody stopped it: that is no finding."""
        try:
            place.mkdir(parents=True, exist_ok=True)
            with FileLock(place / "lock"):  # another process may be at it
                return known_at(place) or self._kept(place, attempt)
        except OSError as error:
            why = error.strerror or one_line(error)
            raise CanaryError(f"results in {self.work}: {why}; expected a writable folder with room") from error

    def _kept(self, place: Path, attempt: Callable[[Path], Probe]) -> Probe:
        """Each attempt has a folder of its own: what an interrupted one left running does not write into another's."""
        for earlier in place.glob(f"{ATTEMPT}*"):
            shutil.rmtree(earlier, ignore_errors=True)
        found = attempt(Path(tempfile.mkdtemp(prefix=ATTEMPT, dir=place)))
        if any(words in found.ended for words in NO_ROOM):
            raise CanaryError(f"the command with {place} found no room: {found.ended}; expected a disk with room")
        if found.code in STOPPED or found.ended.startswith(SAYS_STOPPED):
            raise CanaryError(f"the command with {place} was stopped from outside: {found.ended}; {AGAIN}")
        draft = place / f"{RESULT}.draft"
        draft.write_text(json.dumps(asdict(found)))
        draft.replace(place / RESULT)
        return found

    def run(self, words: Sequence[str], place: Path, key: str, environment: Mapping[str, str], folder: str) -> Probe:
        """The probe of a command that works in `folder`; what it says, and what it records, goes to `place`."""
        began = time.monotonic()
        try:
            with waiting():
                done = subprocess_guard.run(words, environment, 60 * self.minutes, folder)
            code, said, told = done.returncode, done.stderr, done.stdout
        except subprocess.TimeoutExpired:
            code, said, told = 124, f"TimeoutError: not finished after {self.minutes:g} minutes", ""
        except OSError as error:
            raise CanaryError(f"--command {self.command}: {one_line(error)}; expected a command") from error
        (place / "output.txt").write_text(told + said)
        shutil.rmtree(place / DATASETS, ignore_errors=True)  # nobody reads them again, and there may be gigabytes
        kind, ended = ("", "") if code == 0 else last_raised(said, code)
        seconds = round(time.monotonic() - began, 1)
        return Probe(key=key, folder=str(place), seconds=seconds, code=code, ended=ended, kind=kind)

    def environment(self, place: Path, python: Path, path: Sequence[str]) -> dict[str, str]:
        """The command's environment variables: a store, keys and caches in `place`, and `path` before its own."""
        dropped = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "PYTHONHOME", "CANARY_SESSION", "PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        more = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        return {
            **kept,
            "PATH": os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)]),
            "PYTHONPATH": os.pathsep.join([*path, *more]),
            "MLFLOW_TRACKING_URI": f"sqlite:///{place}/mlflow.db",
            CHOSEN: str(python),
            "CANARY_KEYS": str(place / "keys"),
            "CANARY_CACHE": str(place / "cache"),  # one side's would be warm: it makes and saves a canary's model
            **own_cache(place / DATASETS, os.environ),
            **self.overrides,
        }


def known_at(place: Path) -> Probe | None:
    """What was tried already."""
    path = place / RESULT
    return Probe(**json.loads(path.read_text())) if path.is_file() else None


@dataclass(frozen=True, kw_only=True)
class Prober(Attempts):
    """Tries sets of packages with one command."""

    def try_(self, pins: Pins, repeat: int = 0) -> Probe:
        """The probe of these packages. Raises CanaryError where no environment can be had."""
        if (known := self.known(pins, repeat)) is not None:
            return known
        python = build(pins)
        return self.kept(self.place(pins, repeat), partial(self._attempt, python, pins))

    def forget(self, pins: Pins) -> None:
        """Try these packages again the next time."""
        (self.place(pins) / RESULT).unlink(missing_ok=True)

    def known(self, pins: Pins, repeat: int = 0) -> Probe | None:
        """What was tried already."""
        return known_at(self.place(pins, repeat))

    @cached_property
    def code(self) -> str:
        """A digest of what trains: this project, and the files that the command names.

        What was tried with other code is tried again; modules that a script imports are not looked at.
        """
        named = [Path(word) for word in words_of(self.command) if Path(word).is_file()]
        ours = sorted(Path(file) for file in iglob(f"{PACKAGE}/**/*.py", recursive=True))
        return hashlib.sha256(b"".join(path.read_bytes() for path in (*named, *ours))).hexdigest()

    def place(self, pins: Pins, repeat: int = 0) -> Path:
        """Its folder."""
        words = json.dumps([self.command, sorted(self.overrides.items()), self.code])
        return self.work / f"{key_of({**pins, '': words})}{f'-{repeat}' if repeat else ''}"

    def _attempt(self, python: Path, pins: Pins, place: Path) -> Probe:
        words = words_of(self.command)
        words[0] = str(python) if words[0] in PYTHON else words[0]
        own = {"VIRTUAL_ENV": str(python.parent.parent), FOLDER: str(place / RECORDINGS)}
        environment = {**self.environment(place, python, [str(own_code())]), **own}
        return self.run(words, place, key_of(pins), environment, os.curdir)


def words_of(command: str, *, here: bool = False) -> list[str]:
    """A command's words. Raises UsageError for what no shell would take, a script that is not there, or, if `here`, a
    program that is not there: the environment of other packages may have it."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--command {command}: {one_line(error)}; expected a command as a shell takes it") from error
    if not words:
        raise UsageError("--command: found nothing; expected a command, such as 'python my_train.py'")
    if here and words[0] not in PYTHON and on_path(words[0]) is None:
        raise UsageError(f"--command {command}: no program {words[0]!r} here; expected one that is on the path")
    if words[0] in PYTHON and len(words) > 1 and words[1].endswith(".py") and not Path(words[1]).is_file():
        raise UsageError(f"--command {command}: {words[1]} is no file; expected a script, seen from here")
    return words


def last_raised(text: str, code: int) -> tuple[str, str]:
    """(type, `AttributeError at trl/trainer/utils.py:1638 in apply: …`) of the last traceback of a text."""
    lines = text.splitlines()
    if ended := next((found for line in reversed(lines) if (found := _ENDED.match(line))), None):
        return ended[2], ended[1]
    said = next((found for line in reversed(lines) if (found := _RAISED.match(line.strip()))), None)
    frame = next((found for line in reversed(lines) if (found := _FRAME.search(line))), None)
    kind = said[1].rpartition(".")[2] if said else ""
    if not kind:
        return "exit", f"exit code {code}" + (f": {lines[-1].strip()[:200]}" if lines else "")
    place = f" at {_relative(frame[1])}:{frame[2]} in {frame[3]}" if frame else ""
    words = f": {said[2][:200]}" if said and said[2] else ""
    return kind, f"{kind}{place}{words}"


def _relative(path: str) -> str:
    """A file's path from its library's package on; for a user's own script, its name."""
    _, there, inside = path.rpartition("site-packages/")
    return inside if there else Path(path).name


def _runs(place: Path) -> tuple[Run, ...]:
    """All runs of a store that say what they are; none where there is no store."""
    if not (place / "mlflow.db").is_file():
        return ()
    from mlflow import MlflowClient

    from canary_mlflow.tracking.reading.histories import read_runs

    client = MlflowClient(f"sqlite:///{place}/mlflow.db")
    experiments = [one.experiment_id for one in client.search_experiments()]
    found = client.search_runs(experiments, tags.where(tags.ROLE, "run"), order_by=["start_time ASC"])
    return read_runs(client, [run.info.run_id for run in found])


def canary_command(words: Sequence[str]) -> str:
    """The facts tier of a canary as a command, whose first session in a store of its own is always a bootstrap."""
    return shlex.join(["python", "-P", "-m", "canary_mlflow.training", "tier=facts", *words])
