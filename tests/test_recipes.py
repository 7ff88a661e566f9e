"""CONTRIBUTING.md's recipes, followed to the letter in a copy of the checkout: at most three files of the product each,
and the new thing answers to a command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from workplace import ROOT

PARTS = ("canary_mlflow", "gates", "training", "conf")


class Copy:
    """A copy of the product. `changed`: the files that a recipe has touched."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.changed = folder, set[str]()
        for part in PARTS:
            shutil.copytree(ROOT / part, folder / part, symlinks=True)  # with what is compiled
        (folder / "tried").mkdir()

    def write(self, file: str, text: str) -> None:
        """The whole of a file."""
        self.changed.add(file)
        (self.folder / file).write_text(text)

    def line(self, file: str, before: str, line: str) -> None:
        """One more line in a file, before the first that begins so."""
        lines = (self.folder / file).read_text().splitlines()
        at = next(number for number, one in enumerate(lines) if one.startswith(before))
        self.write(file, "\n".join([*lines[:at], line, *lines[at:], ""]))

    def run(self, *words: str, code: int = 0) -> str:
        """What `python WORDS` prints, with the copy's code."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder / "tried", env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout

    def canary(self, *words: str, code: int = 0) -> str:
        return self.run("-m", "canary_mlflow.cli", *words, code=code)

    def history(self, name: str, **columns: list[float]) -> str:
        """A log of 60 steps, one JSON object each."""
        rows = [{"step": at + 1, **{key: values[at] for key, values in columns.items()}} for at in range(60)]
        path = self.folder / "tried" / f"{name}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return str(path)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


FALLING = [2.0 / (1 + 0.1 * at) for at in range(60)]


def test_an_algorithm(copy: Copy) -> None:
    """It composes on a tier, with settings of its own."""
    copy.write(
        "training/algorithms/mine.py",
        "from dataclasses import dataclass\n\nfrom canary_mlflow.training.algorithms.sft import STACK, build\n"
        "from canary_mlflow.training.config import Algo\n\n__all__ = ['STACK', 'Settings', 'build']\n\n\n"
        "@dataclass\nclass Settings(Algo):\n    '''As SFT.'''\n\n    like: str = 'sft'\n    twist: int = 3\n",
    )
    copy.write("conf/algo/mine.yaml", "defaults: [_schema_mine_, _self_]\nname: mine\nlike: sft\n")
    copy.line("canary_mlflow/tracking/describing/schema.py", '    "kto": (', '    "mine": (*_ALWAYS, "loss"),')
    found = yaml.safe_load(copy.run("-m", "canary_mlflow.training", "algo=mine", "algo.twist=5", "--cfg", "job"))
    assert (found["algo"]["name"], found["algo"]["twist"]) == ("mine", 5)
    assert len(copy.changed) <= 3


def test_a_metric(copy: Copy) -> None:
    """A candidate that is worse by it is blocked by its check."""
    metric = '    _stability("surprise", "higher", "identity"),'
    copy.line("gates/model/metrics.py", '    _stability("nonfinite"', metric)
    copy.line("gates/model/metrics.py", '    "kl": {', '    "surprise": {"reduction": "tail_mean", "prior": 0.05},')
    copy.line("conf/gate/smoke.yaml", "  step_time: ", "  surprise: {margin: 0.1}")
    sides = []
    for side, level in (("baseline", 1.0), ("candidate", 3.0)):
        for seed in range(4):
            surprise = [level + 0.02 * ((7 * at + seed) % 5) for at in range(60)]
            sides += [f"--{side}", copy.history(f"{side}{seed}", loss=FALLING, surprise=surprise)]
    found = json.loads(copy.canary("judge", "--policy", "smoke", "--json", *sides, code=1))
    (check,) = [one for one in found["verdict"]["checks"] if one["metric"] == "surprise"]
    assert check["outcome"] == "BLOCK"
    assert len(copy.changed) <= 3


def test_a_fault(copy: Copy) -> None:
    copy.write(
        "conf/fault/mine.yaml",
        "defaults: [_schema_, _self_]\nname: mine\nkind: settings\ndescription: hardly any training\n"
        "settings:\n  train: {learning_rate: 0.000001}\nsignals: {sft: [learned]}\n",
    )
    found = yaml.safe_load(copy.run("-m", "canary_mlflow.training", "algo=sft", "fault=mine", "--cfg", "job"))
    assert found["fault"]["settings"] == {"train": {"learning_rate": 0.000001}}
    assert len(copy.changed) <= 3


def test_a_log_format(copy: Copy) -> None:
    copy.write(
        "canary_mlflow/files/mine.py",
        "from canary_mlflow.files.columns import Columns\nfrom canary_mlflow.files.from_columns import history_of\n"
        "from canary_mlflow.files.history import History\nfrom canary_mlflow.files.text import HistoryFile\n\n\n"
        "def read_mine(file: HistoryFile) -> History | None:\n"
        "    lines = [line.split('|') for line in file.lines()]\n"
        "    if not lines or lines[0][0] != 'mine':\n        return None\n"
        "    columns = Columns(file.path)\n"
        "    columns.add_all([{'step': int(step), 'loss': float(loss)} for _, step, loss in lines], 1)\n"
        "    return history_of(columns, 'mine', file.notes)\n",
    )
    reading = "canary_mlflow/files/reading.py"
    copy.line(reading, "from canary_mlflow.files.printed", "from canary_mlflow.files.mine import read_mine")
    copy.line(reading, '    "tensorboard": read_events', '    "mine": read_mine,')
    log = copy.folder / "tried" / "a.log"
    log.write_text("".join(f"mine|{at + 1}|{loss}\n" for at, loss in enumerate(FALLING)))
    assert "60" in copy.canary("replay", str(log))
    assert len(copy.changed) <= 3


def test_a_report(copy: Copy) -> None:
    copy.write("canary_mlflow/reports/mine.py", "def render(study):\n    return study.subject\n")
    formats = "canary_mlflow/analysis/formats.py"
    copy.line(formats, ")", '    Format(option="mine", module="mine", function="render", help="The subject alone."),')
    assert "--mine" in copy.canary("report", "--help")
    assert len(copy.changed) <= 3


def test_a_watch_rule(copy: Copy) -> None:
    copy.write(
        "gates/watch/mine.py",
        "from canary_mlflow.gates.watch.warning import Detection, Detector, Level\n\n\n"
        "class Clipped(Detector):\n    rule = 'all_clipped'\n    __slots__ = ()\n\n"
        "    def update(self, step: int, value: float) -> Detection | None:\n"
        "        return Detection(Level.CRITICAL, f'{value:g}') if value > 0.99 else None\n",
    )
    choosing = "gates/watch/choosing.py"
    copy.line(choosing, "from canary_mlflow.gates.watch.policy", "from canary_mlflow.gates.watch.mine import Clipped")
    copy.line(choosing, '    "learning_rate": ', '    "clip_fraction": lambda run: [Clipped()],')
    copy.line(
        "gates/watch/advice.py", '    ("zero_loss", "")', '    ("all_clipped", ""): ("every step is cut", "lower it"),'
    )
    log = copy.history("a", loss=FALLING, clip_fraction=[0.2] * 50 + [1.0] * 10)
    found = json.loads(copy.canary("replay", log, "--json", code=1))
    assert "all_clipped" in json.dumps(found)
    assert len(copy.changed) <= 3
