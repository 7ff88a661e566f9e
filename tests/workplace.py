"""The real commands, run in a separate folder with an embedded store."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import forking

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """A folder with an embedded store, and the project's commands in it."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
        path = os.pathsep.join(item for item in (str(ROOT), kept.get("PYTHONPATH", "")) if item)
        return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.folder}/mlflow.db"

    def start(
        self, *command: str, python: str = sys.executable, own_group: bool = False, **environment: str
    ) -> subprocess.Popen[str]:
        """A process of its own, as for what is to be sent signals, or with `python`."""
        return subprocess.Popen(
            [python, *command],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=own_group,
        )

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A forked process, until it ends (forking)."""
        process = self.start(*command, python=forking.python(), **environment)
        out, err = process.communicate(timeout=280)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def train(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "training", *words, **environment)

    def canary(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "canary_mlflow.cli", *words, **environment)
