"""`canary session run`: a team's own script, a process per seed, registered and judged by one command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import forking
import psutil
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from workplace import Workplace

from canary_mlflow.commands.shared import repeated
from canary_mlflow.tracking.stores.session import child_runs

SCRIPT = """
import os
import sys
import time
from pathlib import Path

from tiny_trainers import trainer
from transformers import TrainerCallback

from canary_mlflow import CanaryCallback

seed = int(sys.argv[1]) if sys.argv[1:] else int(os.environ["CANARY_SEED"])
own = {"learning_rate": 30.0} if os.environ.get("HARM") else {}


class Mishap(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 3 and os.environ.get("FALL") == str(seed):
            raise ValueError("no rows left")
        if os.environ.get("WAIT") == str(seed):
            Path("waits").touch()
            time.sleep(2)


made = trainer("", Path("out"), [CanaryCallback(), Mishap()], seed=seed, max_steps=40, **own)
made.train()
made.save_model("model")
if os.environ.get("LATE") == str(seed):
    sys.exit(7)
"""


@pytest.fixture
def work(place: Path) -> Workplace:
    (place / "train.py").write_text(SCRIPT)
    return Workplace(folder=place)


def run(
    work: Workplace, *words: str, script: tuple[str, ...] = ("train.py",), policy: str = "files", **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command, with the script in forked processes."""
    command = ["session", "run", "mine", *words, "--policy", policy, "--", forking.python(), *script]
    return work.canary(*command, **with_tests(work), **environment)


def with_tests(work: Workplace) -> dict[str, str]:
    tests = f"{work.environment['PYTHONPATH']}{os.pathsep}{Path(__file__).resolve().parents[1]}"
    return {"MLFLOW_TRACKING_URI": work.uri, "PYTHONPATH": tests}


def session_of(work: Workplace) -> tuple[Run, list[Run]]:
    """The last session, and its runs."""
    client = MlflowClient(work.uri)
    home = client.get_experiment_by_name("canary").experiment_id
    last = client.search_runs([home], "tags.`canary.role` = 'session'", order_by=["attributes.start_time DESC"])[0]
    return last, child_runs(client, last.info.run_id)


def word_of(done: subprocess.CompletedProcess[str]) -> str:
    """The verdict's, behind what the script printed."""
    return next(line.split()[0] for line in done.stdout.splitlines() if line[:5].isupper())


def seeds(runs: list[Run]) -> list[str]:
    return [run.data.tags["canary.seed"] for run in runs]


def test_a_script_of_one_seed_becomes_a_judged_version_by_one_command(work: Workplace) -> None:
    first = run(work, "--seeds", "0", "1")
    assert (first.returncode, word_of(first)) == (0, "BOOTSTRAP"), first.stderr
    told = [line for line in first.stderr.splitlines() if line.startswith("canary: seed ")]
    assert told == [f"canary: seed {n} ({n + 1}/2): {forking.python()} train.py" for n in range(2)]
    session, runs = session_of(work)
    assert (session.info.status, seeds(runs)) == ("FINISHED", ["0", "1"])
    client = MlflowClient(work.uri)
    assert client.get_model_version_by_alias("mine", "champion").tags["canary.session_id"] == session.info.run_id
    again = run(work, "--seeds", "0,1", "--weights", "model", script=("train.py", "{seed}"))
    assert (again.returncode, word_of(again)) == (0, "PASS"), again.stdout
    assert client.get_model_version_by_alias("mine", "champion").version == 2
    assert session_of(work)[0].info.run_id != session.info.run_id
    (work.folder / "fast.yaml").write_text("base: files\nname: fast\nfail_fast: true\n")
    harm = run(work, "--seeds", "0", "1", "2", policy="fast.yaml", HARM="1")
    assert (harm.returncode, word_of(harm)) == (1, "BLOCK"), harm.stdout
    assert "loss blocks already; 1 seed not trained, no version registered" in harm.stderr
    assert seeds(session_of(work)[1]) == ["0", "1"]
    assert client.get_model_version_by_alias("mine", "champion").version == 2


def test_a_script_that_goes_over_its_seeds_by_itself_runs_once(work: Workplace) -> None:
    loop = "\nfor seed in (0, 1):\n    trainer('', Path('out'), [CanaryCallback()], seed=seed, max_steps=40).train()\n"
    (work.folder / "train.py").write_text(SCRIPT.partition("seed = int(")[0] + loop)
    done = run(work)
    assert (done.returncode, word_of(done)) == (0, "BOOTSTRAP"), done.stdout
    assert seeds(session_of(work)[1]) == ["0", "1"]


@pytest.mark.parametrize(("how", "outcome"), [("FALL", 3), ("LATE", 4)])
def test_a_seed_that_fails_ends_the_session_and_nothing_is_registered(work: Workplace, how: str, outcome: int) -> None:
    done = run(work, "--seeds", "0", "1", "2", **{how: "1"})
    assert done.returncode == outcome, done.stdout + done.stderr
    said = "1; no version was registered" if how == "FALL" else "7 after its training; its own output above says why"
    assert f"canary: seed 1: {forking.python()} train.py: it ended with code {said}" in done.stderr
    assert ("INCONCLUSIVE  mine, session" in done.stdout) == (how == "FALL")
    session, runs = session_of(work)
    assert (session.info.status, seeds(runs)) == ("FAILED", ["0", "1"])
    assert [one.info.status for one in runs] == ["FINISHED", "FAILED" if how == "FALL" else "FINISHED"]
    assert MlflowClient(work.uri).search_registered_models() == []


def test_a_script_that_leaves_its_seed_or_its_callback_out_is_one_line(work: Workplace) -> None:
    done = run(work, "--seeds", "1", "2", script=("train.py", "5"))
    assert done.returncode == 2
    assert "train.py 5: it trained with seed 5; expected 1; pass it on: {seed} in the command, or CANARY" in done.stderr
    assert seeds(session_of(work)[1]) == ["5"]
    (work.folder / "train.py").write_text("print('no callback')")
    done = run(work, "--seeds", "1", "2")
    assert done.returncode == 2
    assert "train.py: no run joined the session; expected a training with callbacks=[CanaryCallback()]" in done.stderr
    (work.folder / "train.py").write_text("raise SystemExit(9)")
    done = run(work, "--seeds", "1")
    assert (done.returncode, "it ended with code 9 before any training; its own" in done.stderr) == (4, True)
    assert session_of(work)[0].info.status == "FAILED"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seeds", "0", "x", "--", "python"), "--seeds: found 'x'; expected whole numbers, then -- and the command"),
        (("--seeds", "0", "0", "--", "python"), "--seeds: found 0 0; expected each seed once"),
        (("--seeds", "0", "1"), "the training's command: found none; expected one behind --, such as -- python train"),
        (("--", "no-such", "x"), "found 'no-such', which is no command here; expected one behind --"),
        (("--policy", "none-such", "--", "python"), "none-such"),
    ],
)
def test_wrong_use_is_one_line_and_nothing_is_recorded(place: Path, words: tuple[str, ...], said: str) -> None:
    done = Workplace(folder=place).canary("session", "run", "mine", *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert said in done.stderr
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_training_and_the_session_in_order(work: Workplace, signum: int) -> None:
    words = ("-m", "canary_mlflow.cli", "session", "run", "mine", "--seeds", "0", "1", "--policy", "files", "--", "sh")
    script = ("-c", f"{forking.python()} train.py; true")  # a shell hands no signal on
    command = work.start(*words, *script, own_group=True, WAIT="0", **with_tests(work))
    until = time.monotonic() + 120
    while not (work.folder / "waits").exists():
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < until
        time.sleep(0.1)
    below = psutil.Process(command.pid).children(recursive=True)
    if signum == signal.SIGINT:
        os.killpg(command.pid, signum)  # as a terminal does
    else:
        command.send_signal(signum)
    _, err = command.communicate(timeout=100)
    how = "interrupted" if signum == signal.SIGINT else "stopped by SIGTERM"
    assert command.returncode == 4, err
    assert f"canary: {how}; `canary session` can be run again" in err
    assert not any(one.is_running() for one in below)
    session, runs = session_of(work)
    assert (session.info.status, seeds(runs)) == ("FAILED", ["0"])
    assert (runs[0].info.status, runs[0].data.tags["canary.failure"]) == ("FAILED", "interrupted")
    assert re.search(r"session \w+ is in .*: 1 run, 1 of them broke off \(seed 0: ", err)


def test_the_words_of_the_command_stay_as_they_are() -> None:
    words = ["mine", "--seeds", "0", "1", "--", "python", "train.py", "--seeds", "2", "3"]
    own = ["mine", "--seeds", "0", "--seeds", "1"]
    assert repeated(words, {"--seeds"}) == own + words[4:]
