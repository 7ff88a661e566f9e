"""`canary bisect` on made repositories: what it names, what it leaves alone, and what it goes on with."""

from __future__ import annotations

import json
import math
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import forking
import numpy as np
import psutil
import pytest
from schemas import check
from workplace import Workplace

from canary_mlflow.bisecting import bisection
from canary_mlflow.bisecting.bisection import Bisection, Search
from canary_mlflow.bisecting.commits import Commit, Repository
from canary_mlflow.bisecting.trying import Trainer, canary_command
from canary_mlflow.gates.model.records import Run, Series
from canary_mlflow.policies import load_policy
from canary_mlflow.reports.bisect import lines
from canary_mlflow.upgrading.probing import Probe

SCRIPT = """
import os
import time
from pathlib import Path

from canary_mlflow import LoopRun
from settings import RATE, NAN

seed = int(os.environ["CANARY_SEED"])
if wait := os.environ.get("WAIT"):
    Path(wait).touch()
    time.sleep(60)
with LoopRun(seed=seed, max_steps=30, system_metrics=False) as run:
    for step in range(1, 31):
        run.log(step, loss=float("nan") if step == NAN else 2 * RATE**step + 0.01 * seed)
Path("left.txt").write_text("what a training leaves")
"""
GOOD, BAD = "RATE, NAN = 0.9, 0\n", "RATE, NAN = 0.9, 20\n"
BROKEN = f"import later\n{GOOD}"  # a package that is not installed
HISTORY = {"start": GOOD, "docs": GOOD, "half": BROKEN, "whole": GOOD, "faster": BAD, "more docs": BAD, "last": BAD}


def git(folder: Path, *words: str) -> str:
    named = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    return subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def team(tmp_path: Path) -> Workplace:
    """A repository whose checkout has a change, and a file, that nobody committed."""
    folder = tmp_path / "team"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "train.py").write_text(SCRIPT)
    for at, (subject, settings) in enumerate(HISTORY.items()):
        (folder / "settings.py").write_text(settings)
        (folder / "notes.md").write_text(f"{at}\n")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", subject)
    (folder / "settings.py").write_text("RATE, NAN = 0.5, 1\n")
    (folder / "mine.txt").write_text("not committed\n")
    return Workplace(folder=folder)


def state(work: Workplace) -> tuple[str, ...]:
    """What git and the folder say of the user's tree."""
    said = (
        ("status", "--porcelain", "--ignored"),
        ("worktree", "list"),
        ("for-each-ref",),
        ("rev-parse", "HEAD"),
        ("diff",),
    )
    return tuple(git(work.folder, *words) for words in said)


def words(*more: str) -> tuple[str, ...]:
    return ("bisect", "HEAD~6", "HEAD", "--command", f"{forking.python()} train.py", "--policy", "files", *more)


def test_the_commit_is_named_and_the_checkout_stays_as_it_is(team: Workplace) -> None:
    before = state(team)
    planned = team.canary(*words("--dry-run"))
    assert planned.returncode == 0
    assert "6 commits: would make 7 trainings" in planned.stdout
    kept = team.folder / ".git" / "canary-bisect"
    assert not kept.exists()
    failed = team.canary(*words(), WAIT="/no/such/folder")  # which the next command does not go on with
    assert failed.returncode == 4
    assert f"output: {kept}/trainings/" in failed.stderr
    found = team.canary(*words("--json", "--chance", "0.3"))
    assert found.returncode == 1, found.stderr
    told = json.loads(found.stdout)
    check("bisect", told)
    assert told["commit"]["subject"] == "faster"
    assert told["commit"]["author"] == "Ann <ann@example.org>"
    assert told["last_good"]["subject"] == "whole"
    assert told["chance"] == 0.3  # of a NaN that comes now and then
    assert "1 NaN" in told["evidence"]
    assert state(team) == before
    again = team.canary(*words("--chance", "0.3"))
    assert again.returncode == 1
    assert "training " not in again.stderr  # all of it was kept
    assert again.stdout.startswith("BLOCK  ")
    changed = team.canary(*words("--path", "train.py"))
    assert changed.returncode == 2
    assert "changes it" in changed.stderr


@pytest.mark.full
def test_a_killed_search_leaves_nothing_and_goes_on(team: Workplace, tmp_path: Path) -> None:
    before, waits = state(team), tmp_path / "waits"
    process = team.start("-m", "canary_mlflow.cli", *words(), python=forking.python(), WAIT=str(waits))
    deadline = time.monotonic() + 120
    while not waits.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    other = team.canary(*words())
    assert other.returncode == 2
    assert "another canary bisect" in other.stderr
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert state(team) == before
    deadline = time.monotonic() + 60
    while any(str(team.folder) in str(one.info["cwd"]) for one in psutil.process_iter(["cwd"])):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    found = team.canary(*words("--minutes", "600"))
    assert found.returncode == 1, found.stderr
    assert "faster" in found.stdout.splitlines()[0]
    assert state(team) == before


@pytest.mark.parametrize(
    ("good", "bad", "code", "said"),
    [
        ("HEAD", "HEAD~2", 2, "is no commit before BAD"),
        ("nobody", "HEAD", 2, "nobody^{commit}: "),
        ("HEAD~4", "HEAD", 4, "GOOD"),  # it does not train
    ],
)
def test_ends_that_cannot_be_searched(team: Workplace, good: str, bad: str, code: int, said: str) -> None:
    found = team.canary("bisect", good, bad, *words()[3:])
    assert found.returncode == code, found.stderr
    assert said in found.stdout + found.stderr
    assert "Traceback" not in found.stderr


def test_a_commit_that_lacked_a_package_is_trained_again_once_it_is_there(team: Workplace, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    path = f"{team.environment['PYTHONPATH']}:{packages}"
    found = team.canary("bisect", "HEAD~5", "HEAD~4", *words()[3:], PYTHONPATH=path)
    assert found.returncode == 1  # the exception itself is what blocks
    assert "ModuleNotFoundError" in found.stdout
    metadata = packages / "later-1.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: later\nVersion: 1.0\n")
    (packages / "later.py").touch()
    found = team.canary("bisect", "HEAD~5", "HEAD~4", *words()[3:], PYTHONPATH=path)
    assert found.returncode in {0, 3}, found.stderr
    assert "not shown to be worse" in found.stdout


def test_what_a_search_sets_itself_is_refused(team: Workplace) -> None:
    assert canary_command(["tier=facts"]).startswith("python -P -m training tier=facts")
    refused = team.canary("bisect", "HEAD~2", "HEAD", "algo=sft", "seed=3")
    assert refused.returncode == 2
    assert "seed=3" in refused.stderr


@dataclass(frozen=True, kw_only=True)
class Told(Trainer):
    """Trainings whose numbers a test says: commit, seed and how often it was trained → its loss, or an exception."""

    number: Callable[[int, int, int], float | str] = field(default=lambda at, seed, times: 0.0)
    times: dict[str, int] = field(default_factory=dict)
    trained: dict[str, Probe] = field(default_factory=dict)

    def train(self, commit: Commit, seed: int, turn: str = "") -> Probe:
        key = f"{commit.sha} {seed} {turn}"
        if key not in self.trained:
            at = int(commit.sha)
            self.times[commit.sha] = self.times.get(commit.sha, 0) + 1
            number = self.number(at, seed, self.times[commit.sha])
            ended = number if isinstance(number, str) else ""
            found = Probe(key=key, folder=key, seconds=60.0, code=0, ended=ended, kind=ended)
            vars(found)["runs"] = () if isinstance(number, str) else (made(key, seed, number),)
            self.trained[key] = found
        return self.trained[key]


def made(run_id: str, seed: int, loss: float) -> Run:
    steps = np.arange(1, 61)
    told = Series(name="eval_loss", steps=steps[-1:], values=np.array([loss]))
    return Run(
        run_id=run_id,
        seed=seed,
        series={"eval_loss": told},
        last_step=60,
        learned=True,
        nan_steps=int(math.isnan(loss)),
    )


def search(tmp_path: Path, number: Callable[[int, int, int], float | str], **more: float) -> Bisection:
    commits = [Commit(sha=str(at), author="Ann", date="2026-01-01", subject=f"commit {at}") for at in range(17)]
    place = Repository(root=tmp_path, inside=".", private=tmp_path)
    return Search(
        trainer=Told(command="train", work=tmp_path, repository=place, number=number),
        good=commits[0], commits=commits[1:], policy=load_policy("files"), chance=0.02, say=lambda line: None, **more,
    ).carry_out()  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_a_noisy_loss_is_trained_again_until_it_tells(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    found = search(tmp_path, lambda at, seed, times: (1.3 if at >= 11 else 1.0) * math.exp(draw.gauss(0, 0.02)))
    assert found.commit is not None
    assert found.commit.sha == "11"
    assert found.chance == 0.02
    assert found.outcome == "BLOCK"


def test_noise_as_large_as_the_harm_names_nobody(tmp_path: Path) -> None:
    draw = random.Random(4)

    def number(at: int, seed: int, times: int) -> float:
        steady = at in (0, 16)
        return (1.5 if at >= 11 else 1.0) * math.exp(draw.gauss(0, 0.01 if steady else 0.5))

    found = search(tmp_path, number)
    assert found.outcome == "INCONCLUSIVE"
    assert "too noisy" in found.why
    assert found.skipped
    assert found.trainings < 130
    assert "one of" in next(lines(found))


def test_a_step_that_went_astray_is_found_out(tmp_path: Path) -> None:
    draw = random.Random(7)

    def number(at: int, seed: int, times: int) -> float:
        lucky = at == 12 and seed < 4  # a bad commit that looks good at first
        return (1.3 if at >= 11 and not lucky else 1.0) * math.exp(draw.gauss(0, 0.01))

    found = search(tmp_path, number)
    assert found.commit is not None
    assert found.commit.sha == "11"
    assert found.outcome == "BLOCK"


@pytest.mark.parametrize("often", [0.6, 0.95])
def test_what_comes_now_and_then_is_waited_for(tmp_path: Path, often: float) -> None:
    named = []
    for seed in range(40):
        draw = random.Random(seed)
        hang = search(tmp_path, lambda at, seed, times: "Hang in b" if at >= 6 and draw.random() < often else 1.0)  # noqa: B023
        named += [hang.commit.sha] if hang.commit else []
    assert named.count("6") >= 0.95 * len(named) > 20


def test_harm_that_not_every_seed_shows_is_looked_for_with_one_that_does(tmp_path: Path) -> None:
    def number(at: int, seed: int, times: int) -> float:
        return math.nan if at >= 6 and seed in (1, 2) else 1 + 0.4 * (at > 0 and seed == 0)

    found = search(tmp_path, number)
    assert found.commit is not None
    assert found.commit.sha == "6"


@pytest.mark.parametrize(("minutes", "left"), [(2.5, 0), (4.5, 0), (6.5, 15), (7.5, 7)])
def test_a_budget_ends_the_search_and_says_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float, left: int
) -> None:
    """Each training takes a minute: two of the ends, four more of them, then the search."""
    made = list[int]()

    def number(at: int, seed: int, times: int) -> float | str:
        made.append(at)
        return "KeyError at a.py in b" if at >= 6 else 1.0

    monkeypatch.setattr(bisection, "time", SimpleNamespace(monotonic=lambda: 60.0 * len(made)))
    found = search(tmp_path, number, minutes=minutes, began=0.0)
    assert found.outcome == "INCONCLUSIVE"
    assert f"budget of {minutes:g} minutes" in found.why
    assert len(found.skipped) == left
    assert found.trainings <= minutes


def test_a_budget_ends_in_the_middle_of_a_noisy_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends take 8 trainings or more, and a commit up to 8."""
    draw, made = random.Random(1), list[int]()

    def number(at: int, seed: int, times: int) -> float:
        made.append(at)
        return (1.3 if at >= 11 else 1.0) * math.exp(draw.gauss(0, 0.1))

    monkeypatch.setattr(bisection, "time", SimpleNamespace(monotonic=lambda: 60.0 * len(made)))
    for minutes in range(9, 40):
        made.clear()
        assert search(tmp_path, number, minutes=minutes + 0.5, began=0.0).trainings <= minutes + 1


def test_another_exception_is_skipped(tmp_path: Path) -> None:
    def number(at: int, seed: int, times: int) -> float | str:
        return "ImportError at a.py in b" if at in (3, 8, 12) else "KeyError at a.py in b" if at >= 6 else 1.0

    found = search(tmp_path, number)
    assert found.commit is not None
    assert found.commit.sha == "6"
    assert {step.commit.sha for step in found.steps if step.answer == "untestable"} <= {"3", "8", "12"}
