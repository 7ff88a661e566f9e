"""How often `canary bisect` names the right commit, and in how many trainings, beside plain `git bisect run`.

    python benchmarks/bisections.py FOLDER                        # a small set, some minutes
    python benchmarks/bisections.py FOLDER --replay --each 10 --commits 16 32 64

Each history is a made git project: a small torch training in several files that logs through LoopRun, one commit that
does harm by one of eight kinds, and around it innocent ones, of which some change the course of the loss within its
noise, and some that do not train; the one before the harmful commit does, as nobody could tell the two apart. Plain
bisection trains each commit once and compares its number with the middle of one training of each end, as a script for
`git bisect run` does. The trainings are forked from this process, to save the seconds in which each would load torch;
everything else is what the command does. `--replay`: each training is a recorded run of the campaign, with its noise
(bisect_replays.py), so that hundreds of histories take minutes; repository, search and judgement are the command's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bisect_replays import STATE, Replayed

from canary_mlflow.bisecting.bisection import Search
from canary_mlflow.bisecting.commits import Commit, Repository
from canary_mlflow.bisecting.search import Answer, first_bad
from canary_mlflow.bisecting.trying import Trainer
from canary_mlflow.policies import load_policy
from canary_mlflow.tracking.loops.run import LoopRun
from canary_mlflow.tracking.stores.store import prepare_store
from canary_mlflow.upgrading.probing import Probe, last_raised

POLICY = {"base": "nightly", "name": "short", "warmup_steps": 10, "min_steps": 20}
COMMAND = "python train.py"
SETTINGS = {"rate": 0.05, "wait": 0.04, "ballast": 0, "frozen": False, "shift": 0, "raises": 0, "diverges": 0, "nan": 0}
CALM = {"cost": 1.0, "worse": 1.0, "ballast": 0, "frozen": False, "shift": 0, "raises": 0, "diverges": 0, "nan": 0}
"""The same of replayed trainings."""
REPLAYED = {"loss": {"worse": 1.08}, "cost 10 %": {"cost": 1.1}, "cost 25 %": {"cost": 1.25}}
"""What the harmful commit changes there, where it is not as in KINDS."""
KINDS: Mapping[str, Mapping[str, Any]] = {
    "facts": {"frozen": True},
    "loss": {"rate": 0.012},
    "cost 10 %": {"wait": 0.044},
    "cost 25 %": {"wait": 0.05},
    "memory": {"ballast": 256},
    "crash": {"raises": 30},
    "late divergence": {"diverges": 50},
    "not finite": {"nan": 40},
}
"""What the harmful commit changes in the project's settings, which stand as plain numbers in its code."""
EMPTY = Path(tempfile.gettempdir()) / f"canary-empty-{os.getpid()}.db"
BROKEN = ("import not_installed_here\n", "def (:\n", "raise ValueError('half of a refactoring')\n")
TRAIN = """
import os
import time

import torch

from canary_mlflow import LoopRun
from data import batch
from model import build

seed = int(os.environ["CANARY_SEED"])
torch.manual_seed(seed)
torch.randn({shift})
model = build()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr={rate})
kept = bytearray({ballast} * 2**20)
for at in range(0, len(kept), 4096):
    kept[at] = 1
with LoopRun(seed=seed, max_steps=60, workload={{"data": "made"}}, config={{"width": 16}}, system_metrics=False) as run:
    run.watch(model, optimizer)
    for step in range(1, 61):
        rows, wanted = batch(step, seed)
        loss = (model(rows) - wanted).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == {raises}:
            raise RuntimeError(f"no gradient at step {{step}}")
        time.sleep({wait})
        shown = float(loss) * (6.0 if {diverges} and step > {diverges} else 1.0)
        run.log(step, loss=float("nan") if step == {nan} else shown)
    with torch.no_grad():
        rows, wanted = batch(0, 10**6)
        run.log(60, eval_loss=float((model(rows) - wanted).pow(2).mean()))
"""
MODEL = """
from torch import nn


def build():
    layers = [nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)]
    if {frozen}:
        layers[0].requires_grad_(False)
    return nn.Sequential(*layers)
"""
DATA = """
import torch


def batch(step, seed):
    made = torch.Generator().manual_seed(1000 * seed + step)
    rows = torch.randn(32, 8, generator=made)
    noise = torch.randn(32, 1, generator=made)
    return rows, rows.sum(1, keepdim=True).sin() + rows[:, :1] + 0.3 * noise
"""


class Forked(Trainer):
    """Trains in a fork of this process instead of a new one."""

    def run(self, words: Sequence[str], place: Path, key: str, environment: Mapping[str, str], folder: str) -> Probe:
        """As a process of its own would do it; its store is a copy of an empty one."""
        shutil.copy(EMPTY, place / "mlflow.db")
        began = time.monotonic()
        pid = os.fork()
        if not pid:
            code = 1
            with open(place / "output.txt", "w", buffering=1) as file, contextlib.suppress(BaseException):
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                os.environ.clear()
                os.environ.update(environment)
                os.chdir(folder)
                sys.path[:0] = [folder]
                sys.dont_write_bytecode = True
                code = run_script(words[1])
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said = (place / "output.txt").read_text()
        kind, ended = ("", "") if code == 0 else last_raised(said, code)
        seconds = round(time.monotonic() - began, 1)
        return Probe(key=key, folder=str(place), seconds=seconds, code=code, ended=ended, kind=kind)


def run_script(name: str) -> int:
    """The exit code of a script that runs here."""
    try:
        runpy.run_path(name, run_name="__main__")
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        return 1
    return 0


@dataclass(frozen=True, kw_only=True)
class History:
    """A made project. `harmful`: the place of the harmful commit after the first one, counted from 1."""

    folder: Path
    kind: str
    harmful: int
    commits: int


def make(folder: Path, kind: str, commits: int, rng: random.Random, replay: bool = False) -> History:
    """A project with so many commits after its first one."""
    folder.mkdir(parents=True)
    harmful = rng.randint(1, commits)
    git(folder, "init", "--quiet", "--initial-branch=main")
    settings, broken, notes = dict(CALM if replay else SETTINGS), "", 0
    commit(folder, settings, "", notes, "start")
    for at in range(1, commits + 1):
        notes += 1
        subject = rng.choice(["docs", "rename", "comments", "tidy up"])
        if at == harmful:
            settings |= REPLAYED.get(kind, KINDS[kind]) if replay else KINDS[kind]
            subject = "speed things up"
        elif not broken and rng.random() < 0.12 and at < commits - 1 and at not in (harmful - 1, harmful - 2):
            broken, subject = rng.choice(BROKEN), "begin to refactor"
        elif broken:
            broken, subject = "", "finish the refactoring"
        elif rng.random() < 0.25:
            settings["shift"] += 1  # other random numbers, so another course of the same loss
            subject = "draw once more"
        commit(folder, settings, broken if at != commits else "", notes, f"{at}: {subject}")
    return History(folder=folder, kind=kind, harmful=harmful, commits=commits)


def commit(folder: Path, settings: Mapping[str, Any], broken: str, notes: int, subject: str) -> None:
    """Write the project's files, and commit them."""
    if "cost" in settings:
        said = broken and f"ValueError at data.py:1 in <module>: {broken.strip()}"
        (folder / STATE).write_text(json.dumps({**settings, "broken": said, "notes": notes}))
    else:
        for name, text in (("train.py", TRAIN), ("model.py", MODEL), ("data.py", DATA)):
            head = broken if name == "data.py" else ""
            (folder / name).write_text(head + text.format(**settings))
    (folder / "NOTES.md").write_text(f"note {notes}\n")
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "--message", subject)


def git(folder: Path, *words: str) -> str:
    """What git says."""
    return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout


def number_of(kind: str) -> Callable[[Probe], float]:
    """What a script for `git bisect run` would look at."""
    name = {"loss": "eval_loss", "memory": "memory", "cost 10 %": "step_time", "cost 25 %": "step_time"}.get(kind)

    def number(found: Probe) -> float:
        if name is None:
            run = found.runs[0]
            bad = {"facts": -float(run.facts.get("parameters.trainable", 0)), "not finite": float(run.nan_steps),
                   "late divergence": float(run.series["loss"].finite_only().values[-1])}  # fmt: skip
            return bad.get(kind, 0.0)
        series = next(one for key, one in found.runs[0].series.items() if key == name or name in key)
        return float(np.max(series.values) if name == "memory" else np.median(series.values))

    return number


def plain(trainer: Trainer, good: Commit, commits: Sequence[Commit], kind: str) -> tuple[str, int]:
    """(the commit that is named or '', trainings) of plain bisection."""
    number, made = number_of(kind), {good.sha, commits[-1].sha}
    low, high = trainer.train(good, 0), trainer.train(commits[-1], 0)
    middle = 0.0 if high.ended else (number(low) + number(high)) / 2

    def test(one: Commit) -> Answer:
        if one == commits[-1]:
            return Answer.BAD
        made.add(one.sha)
        found = trainer.train(one, 0)
        if found.ended:
            return Answer.BAD if high.ended and found.kind == high.kind else Answer.UNTESTABLE
        return Answer.BAD if not high.ended and number(found) > middle else Answer.GOOD

    found, skipped = first_bad(commits, test)
    return "" if skipped else found.sha, len(made)


def searched(history: History, work: Path, rng: random.Random, replay: bool) -> dict[str, Any]:
    """What both searches found in a history."""
    os.chdir(history.folder)
    repository = Repository.here()
    good, commits = repository.commits("HEAD~" + str(history.commits), "HEAD", "")
    given: dict[str, Any] = {"command": COMMAND, "work": work, "minutes": 5, "repository": repository}
    trainer = Replayed.of(rng, **given) if replay else Forked(**given)
    found = Search(
        trainer=trainer, good=good, commits=commits, policy=load_policy(POLICY), chance=0.02, say=lambda line: None
    ).carry_out()
    right = commits[history.harmful - 1].sha
    named = found.commit.sha if found.commit and found.outcome == "BLOCK" else ""
    theirs, trained = plain(trainer, good, commits, history.kind)
    return {
        "kind": history.kind, "commits": history.commits, "trainings": found.trainings, "why": found.why,
        "answer": answer_of(named, right), "evidence": found.evidence, "plain": answer_of(theirs, right),
        "plain_trainings": trained,
        "within": found.commit is not None and right in {one.sha for one in (*found.skipped, found.commit)},
    }  # fmt: skip


def answer_of(named: str, right: str) -> str:
    """right, wrong, or cannot tell."""
    return "cannot tell" if not named else "right" if named == right else "wrong"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line for each kind, and one for all."""
    lines = ["| harm | histories | right | wrong | cannot tell | trainings | plain: right | wrong | trainings |",
             "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for kind in (*KINDS, ""):
        own = [row for row in rows if kind in ("", row["kind"])]
        if not own:
            continue
        counts = [sum(row["answer"] == word for row in own) for word in ("right", "wrong", "cannot tell")]
        theirs = [sum(row["plain"] == word for row in own) for word in ("right", "wrong")]
        mean = [np.mean([row[key] for row in own]) for key in ("trainings", "plain_trainings")]
        cells = [kind or "all", len(own), *counts, f"{mean[0]:.1f}", *theirs, f"{mean[1]:.1f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def warm_up() -> None:
    """Load what a training loads, once for all forks."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/mlflow.db"
        prepare_store(store)
        shutil.copy(f"{folder}/mlflow.db", EMPTY)
        with LoopRun(seed=0, tracking_uri=store, folder=Path(folder), system_metrics=False) as run:
            model = torch.nn.Linear(1, 1)
            run.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
            run.log(1, loss=1.0)


def main() -> None:
    """Make the histories, search each, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each", type=int, default=1, help="histories of each kind and length")
    parser.add_argument("--commits", type=int, nargs="+", default=[16])
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=[*KINDS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", action="store_true", help="recorded trainings instead of new ones")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if not asked.replay:
        warm_up()
    rows, here = [], asked.folder.absolute()
    for commits in asked.commits:
        for kind in asked.kinds:
            for at in range(asked.each):
                name = f"{kind.replace(' ', '-').replace('%', '')}-{commits}-{asked.seed + at}"
                rng = random.Random(name)
                made = make(here / name, kind, commits, rng, asked.replay)
                rows.append(searched(made, here / f"{name}-work", rng, asked.replay))
                print(json.dumps(rows[-1]), file=sys.stderr)
    EMPTY.unlink(missing_ok=True)
    print(table(rows))


if __name__ == "__main__":
    main()
