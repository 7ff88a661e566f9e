"""Trains a commit: the command in a checkout of it, each training kept for the next time too."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from canary_mlflow.bisecting.commits import Commit, Repository
from canary_mlflow.errors import UsageError
from canary_mlflow.gates.model.records import Run
from canary_mlflow.launching.seeds import MARK, VARIABLE
from canary_mlflow.upgrading.probing import PYTHON, Attempts, Probe, known_at

VERDICTS = (0, 1, 3)
"""Exit codes of a canary that trained, and whose runs say how they ended."""
_LINE = re.compile(r":\d+( in [^:]+)?(:.*)?$")  # of a traceback's frame: its line moves, what is said holds numbers


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training of a commit. `crash`: the exception that ended it, with its place; '' if it ended by itself."""

    commit: Commit
    seed: int
    runs: tuple[Run, ...]
    crash: str
    kind: str  # by which a crash is recognised
    seconds: float
    folder: str


@dataclass(frozen=True, kw_only=True)
class Trainer(Attempts):
    """Trains commits of a repository. `canary`: the command is a canary's, whose exit code may be a verdict's."""

    repository: Repository
    canary: bool = False
    say: Callable[[str], None] = field(default=lambda line: None)

    def known(self, commit: Commit, seed: int, turn: str = "") -> Training | None:
        """What was trained already."""
        found = known_at(self.place(commit, seed, turn))
        return None if found is None else self._told(commit, seed, found)

    def train(self, commit: Commit, seed: int, turn: str = "") -> Training:
        """Train a commit with a seed. `turn`: why once more, '' for the first time. Raises CanaryError."""
        if (known := self.known(commit, seed, turn)) is not None:
            return known
        self.say(f"training {commit}, seed {seed}")
        found = self.kept(self.place(commit, seed, turn), partial(self._attempt, commit, seed))
        return self._told(commit, seed, found)

    def place(self, commit: Commit, seed: int, turn: str) -> Path:
        """Its folder."""
        words = json.dumps([self.command, self.repository.inside, sorted(self.overrides.items()), sys.version])
        named = hashlib.sha256(f"{words} {commit.sha} {seed} {turn}".encode()).hexdigest()[:16]
        return self.work / "trainings" / named

    def _attempt(self, commit: Commit, seed: int, place: Path) -> Probe:
        checkout = self.work / "checkout"
        folder = self.repository.check_out(commit, checkout)
        words = [word.replace(MARK, str(seed)) for word in shlex.split(self.command)]
        words[0] = sys.executable if words[0] in PYTHON else words[0]
        own = [folder, folder / "src", checkout, checkout / "src"]
        path = dict.fromkeys(str(each) for each in own if each.is_dir())
        environment = {**self.environment(place, Path(sys.executable), [*path]), VARIABLE: str(seed)}
        return self.start(words, place, commit, environment, folder)

    def start(
        self, words: Sequence[str], place: Path, commit: Commit, environment: Mapping[str, str], folder: Path
    ) -> Probe:
        """The command's process."""
        return self.run(words, place, commit.sha, environment, os.fspath(folder))

    def _told(self, commit: Commit, seed: int, found: Probe) -> Training:
        runs = found.runs
        broken = next((run for run in runs if run.failure == "error"), None)
        ended = found.ended if not self.canary or found.code not in VERDICTS else ""
        crash = ended or (str(broken.raised or broken.failure_reason) if broken else "")
        if not crash and not runs:
            crash = "it recorded no run (expected CanaryCallback or LoopRun in the training)"
        kind = _LINE.sub(r"\1", crash)
        return Training(commit=commit, seed=seed, runs=runs, crash=crash, kind=kind, seconds=found.seconds,
                        folder=found.folder)  # fmt: skip


def canary_command(overrides: Sequence[str]) -> str:
    """One run of a canary of the project, by the code of the working folder. Raises UsageError for what it sets
    itself."""
    if own := [word for word in overrides if word.lstrip("+~").partition("=")[0] in ("seed", "repeats", "register")]:
        raise UsageError(f"found {own[0]!r}; a search says itself which runs are made; leave it out")
    fixed = ("repeats=1", "register=false", f"seed={MARK}")
    return shlex.join(["python", "-P", "-m", "training", *overrides, *fixed])
