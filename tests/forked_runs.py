"""Real runs in forked processes (forking), without the session around them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import forking
from mlflow import MlflowClient
from workplace import ROOT

from canary_mlflow.gates import Run
from canary_mlflow.tracking.reading.histories import read_runs
from canary_mlflow.tracking.stores.session import close_run, create_child_run, open_session
from canary_mlflow.tracking.stores.store import prepare_store
from canary_mlflow.training.command_line import parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.naming import run_params, run_tags
from canary_mlflow.training.plain import to_plain
from canary_mlflow.training.process import OwnRun, read_result

WORK = """
import pathlib, sys
from canary_mlflow.training import worker

place = pathlib.Path(sys.argv[1])
exec((place / "patch.py").read_text(), {})
sys.exit(worker.train_job(place, worker.Loaded()))
"""


class ForkedRuns:
    """Trains what a command line asks for, in a store of its own, and keeps what was trained already."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"sqlite:///{folder}/mlflow.db"
        self.runs: dict[tuple[str, ...], Run] = {}
        self.patch = ""

    @cached_property
    def client(self) -> MlflowClient:
        return prepare_store(self.uri)

    @cached_property
    def session(self) -> str:
        return open_session(self.client, "canary", "forked runs", {})

    def train(self, *words: str, patch: str = "") -> Run:
        """The run that `python -m training WORDS` makes for its first seed. `patch`: Python that its process executes
        first, which is a change of the code that no configuration tells of."""
        if (patch, *words) not in self.runs:
            self.patch = patch
            self.runs[patch, *words] = self._train(words)
        return self.runs[patch, *words]

    def _train(self, words: tuple[str, ...]) -> Run:
        register_schemas()
        config = check(parse(["tier=smoke", "hardware=cpu", *words]))[0]
        run_id = create_child_run(self.client, self.session, " ".join(words), run_tags(config), run_params(config))
        own = {"session": self.session, "seed": config.seed, "run_id": run_id, "config": to_plain(config)}
        job = OwnRun(name=" ".join(words), store=self.uri, **own)
        folder = self.folder / run_id
        folder.mkdir()
        (folder / "job.json").write_text(json.dumps(asdict(job)))
        (folder / "patch.py").write_text(self.patch)
        self._fork(folder)
        result = read_result(folder / "result.json")
        close_run(self.client, run_id, result["failure"], result["reason"])
        return read_runs(self.client, [run_id])[0]

    def _fork(self, folder: Path) -> None:
        with (self.folder / "stderr.txt").open("a") as progress:
            subprocess.run([forking.python(), "-c", WORK, folder], cwd=ROOT, stderr=progress, check=False)
