"""Trains a commit: the command in a checkout of it, each training kept for the next time too."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from canary_mlflow.bisecting.commits import Commit, Repository
from canary_mlflow.launching.seeds import MARK, VARIABLE
from canary_mlflow.upgrading.environments import key_of
from canary_mlflow.upgrading.pins import installed
from canary_mlflow.upgrading.probing import PYTHON, Attempts, Probe

VERDICTS = (0, 1, 3)  # exit codes of a canary that trained, and whose runs say how they ended
NO_RUN = "it recorded no run; expected CanaryCallback or LoopRun in the training"
_LINE = re.compile(r":\d+( in [^:]+)?(:.*)?$")  # of a traceback's frame: its line moves, what is said holds numbers


@dataclass(frozen=True, kw_only=True)
class Trainer(Attempts):
    """Trains commits of a repository. `canary`: the command is a canary's, whose exit code may be a verdict's."""

    repository: Repository
    canary: bool = False
    say: Callable[[str], None] = field(default=lambda line: None)

    def train(self, commit: Commit, seed: int, turn: str = "") -> Probe:
        """A commit with a seed; `turn`: why once more, '' for the first time. Its `kind` is that by which another crash
        is known to be the same. Raises CanaryError."""
        return self._told(self.kept(self.place(commit, seed, turn), partial(self._attempt, commit, seed)))

    @cached_property
    def packages(self) -> tuple[str, str]:
        """A digest of Python and its packages, and where else modules are found: with others, a failure may be gone."""
        return key_of(installed()), os.environ.get("PYTHONPATH", "")

    def place(self, commit: Commit, seed: int, turn: str = "") -> Path:
        """Its folder."""
        words = json.dumps([self.command, self.repository.inside, self.packages, commit.sha, seed, turn])
        return self.work / "trainings" / hashlib.sha256(words.encode()).hexdigest()[:16]

    def _attempt(self, commit: Commit, seed: int, place: Path) -> Probe:
        self.say(f"training {commit}, seed {seed}")
        checkout = self.work / "checkout"
        folder = self.repository.check_out(commit, checkout)
        words = [word.replace(MARK, str(seed)) for word in shlex.split(self.command)]
        words[0] = sys.executable if words[0] in PYTHON else words[0]
        path = [str(each) for each in (folder, folder / "src", checkout, checkout / "src") if each.is_dir()]
        environment = {**self.environment(place, Path(sys.executable), path), VARIABLE: str(seed)}
        return self.run(words, place, commit.sha, environment, os.fspath(folder))

    def _told(self, found: Probe) -> Probe:
        broken = next((run for run in found.runs if run.failure == "error"), None)
        ended = "" if self.canary and found.code in VERDICTS else found.ended
        ended = ended or (str(broken.raised or broken.failure_reason) if broken else "" if found.runs else NO_RUN)
        return replace(found, ended=ended, kind=_LINE.sub(r"\1", ended))


def canary_command(overrides: Sequence[str]) -> str:
    """One run of a canary of the project, by the code of the working folder."""
    return shlex.join(["python", "-P", "-m", "training", *overrides, "repeats=1", "register=false", f"seed={MARK}"])
