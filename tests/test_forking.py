"""The forking Python ends, listens and is killed like any other, and gives way where a fork would differ."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import forking
import psutil
import pytest

TELL = "import os, sys; print(sys.argv, os.getcwd(), os.environ.get('GIVEN'), sys.stdin.read()); sys.exit(3)"
WAIT = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
FORKED = "import sys; print('torch' in sys.modules)"


def start(*words: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    place = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(
        [forking.python(), *words], cwd=folder, env=place, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def test_words_folder_environment_streams_and_exit_code_are_those_of_a_process(tmp_path: Path) -> None:
    process = start("-c", TELL, "a", "b c", folder=tmp_path, GIVEN="x")
    out, err = process.communicate("said")
    assert (process.returncode, out, err) == (3, f"['-c', 'a', 'b c'] {tmp_path} x said\n", "")


def test_an_exception_is_a_traceback_and_1(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("raise ValueError('of a module beside it')\n")
    process = start("broken.py", folder=tmp_path)
    _, err = process.communicate()
    assert (process.returncode, err.splitlines()[-1]) == (1, "ValueError: of a module beside it")


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_fork(tmp_path: Path, sent: signal.Signals) -> None:
    process = start("-c", WAIT, folder=tmp_path)
    assert process.stdout
    fork = psutil.Process(int(process.stdout.readline()))
    assert fork.pid != process.pid
    process.send_signal(sent)
    assert process.wait(30) == -sent
    assert psutil.wait_procs([fork], timeout=30)[1] == []
    process.communicate()


def test_a_signal_while_a_process_is_asked_for_ends_that_one_alone(tmp_path: Path) -> None:
    """It once came before the request, which the process that forks did not understand, and then none was forked."""
    for after in range(60):
        process = start("-c", WAIT, folder=tmp_path, FILLED="x" * 100_000)
        time.sleep(after / 2000)
        process.terminate()
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGTERM
    out, _ = start("-c", "print(1)", folder=tmp_path).communicate()
    assert out == "1\n"


@pytest.mark.parametrize(
    ("file", "environment"),
    [("sitecustomize.py", {}), ("canary_mlflow/__init__.py", {}), ("", {"HF_HUB_VERBOSITY": "error"})],
    ids=["code that Python loads at its start", "other code of ours", "another setting of a library"],
)
def test_what_a_fork_would_not_be_is_a_process(tmp_path: Path, file: str, environment: dict[str, str]) -> None:
    code = {} if not file else {"PYTHONPATH": str(tmp_path)}
    assert start("-c", FORKED, folder=tmp_path, PYTHONPATH="").communicate()[0] == "True\n"
    if file:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    assert start("-c", FORKED, folder=tmp_path, **code, **environment).communicate()[0] == "False\n"


OFFLINE = """
import sys
forked = "torch" in sys.modules
from datasets import config
from huggingface_hub import constants, is_offline_mode
print(forked, constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE, config.HF_DATASETS_OFFLINE, is_offline_mode())
"""


@pytest.mark.parametrize("said", ["1", "0", None])
def test_a_fork_asks_a_hub_or_not_as_it_is_told(
    tmp_path: Path, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    environment = {} if said is None else {"HF_HUB_OFFLINE": said}
    forked, real = (
        start("-c", OFFLINE, folder=tmp_path, **environment, **more).communicate()[0].split()
        for more in ({}, {"HF_HUB_VERBOSITY": "error"})
    )
    assert (forked[0], real[0]) == ("True", "False")
    assert forked[1:] == real[1:] == [str(said == "1")] * 4


STORE = """
import sys
from canary_mlflow.tracking.stores.store import prepare_store
prepare_store(sys.argv[1]).create_experiment("mine")
"""
SAME = ("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY 1, 2", "SELECT * FROM alembic_version")


def test_a_copied_store_is_what_mlflow_makes(tmp_path: Path) -> None:
    found = []
    for how in ("made", "copied"):
        file = tmp_path / f"{how}.db"
        process = start("-c", STORE, f"sqlite:///{file}", folder=tmp_path, CANARY_TEST_STORES=how)
        assert process.communicate()[1] == ""
        with closing(sqlite3.connect(file)) as store:
            rows = [row for query in SAME for row in store.execute(query)]
        # MLflow writes a table's constraints in any order.
        found.append([[sorted(str(value).replace(",", "").splitlines()) for value in row] for row in rows])
    assert found[0] == found[1]


CONFIGS = """
import json, pathlib, sys
from canary_mlflow.training.command_line import parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.plain import to_plain
register_schemas()
file = pathlib.Path(sys.argv[1], "adapter", "mine.yaml")
for rank in ("4", "16"):
    file.write_text(f"defaults: [full, _self_]\\nr: {rank}\\n")
    words = ["--config-dir", sys.argv[1], "adapter=mine", "algo=ppo", "train.max_steps=7", "fault=kl_zero"]
    print(json.dumps(to_plain(check(parse(words))[0])))
"""


def test_a_kept_configuration_is_what_hydra_makes_of_the_files_as_they_are_now(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    found = []
    for how in ("made", "kept"):
        out, err = start("-c", CONFIGS, str(tmp_path), folder=tmp_path, CANARY_TEST_CONFIGS=how).communicate()
        assert err == ""
        found.append([json.loads(line) for line in out.splitlines()])
    assert found[0] == found[1]
    assert [one["adapter"]["r"] for one in found[1]] == [4, 16]


def test_code_of_a_tests_own_comes_first(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text("import canary_mlflow.gates as gates\ngates.mine = 'seen'\n")
    process = start(
        "-c",
        "import canary_mlflow.gates as gates; print(gates.mine)",
        folder=tmp_path,
        CANARY_TEST_FIRST=f"{tmp_path}/first.py",
    )
    assert process.communicate() == ("seen\n", "")
