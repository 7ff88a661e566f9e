"""`canary upgrade` is stopped and taken up again, with packages and an index of the test's own, through the real uv."""

from __future__ import annotations

import io
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import forking
import pytest
from mlflow.entities import Metric
from small_disk import fill, small_disk
from workplace import Workplace

from canary_mlflow.errors import CanaryError
from canary_mlflow.tracking.describing.fact_tags import to_tags
from canary_mlflow.tracking.stores.store import prepare_store
from canary_mlflow.upgrading import subprocess_guard
from canary_mlflow.upgrading.probing import Prober

TRAIN = """
import os, pathlib, shutil, sys, time
import cab, ware
key, log = f"{cab.VERSION}-{ware.VERSION}", pathlib.Path("log")
with log.open("a") as file:
    print("began", key, os.getpid(), file=file)
if log.read_text().count(key) == 1 and key in os.environ["WAITS"]:
    time.sleep(60)
shutil.copy("store.db", os.environ["MLFLOW_TRACKING_URI"].removeprefix("sqlite:///"))
with log.open("a") as file:
    print("ended", key, file=file)
if ware.VERSION >= "3":
    raise AttributeError("gone")
"""
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells all that a command started")


def wheel(index: Path, name: str, version: str) -> None:
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(index / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)


def unbuildable(index: Path, name: str, version: str) -> None:
    """A source release whose setup.py fails."""
    top = f"{name}-{version}"
    with tarfile.open(index / f"{top}.tar.gz", "w:gz") as archive:
        for path, text in (
            ("PKG-INFO", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
            ("setup.py", "raise SystemExit('not here')\n"),
        ):
            entry = tarfile.TarInfo(f"{top}/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


def store_with_one_run(folder: Path) -> None:
    client = prepare_store(f"sqlite:///{folder}/store.db")
    facts = to_tags({"training": {"precision": "fp32"}})
    run = client.create_run(client.create_experiment("canary"), tags={"canary.role": "run", **facts})
    client.log_batch(run.info.run_id, metrics=[Metric("loss", 1.0, 0, 1)])
    client.set_terminated(run.info.run_id)


def uv_of_a_real_python(folder: Path) -> Path:
    """A folder with a uv that makes no environments of the Python that forks (forking)."""
    place = folder / "bin"
    place.mkdir()
    program, python = (Path(sys.prefix, "bin", name) for name in ("uv", "python"))
    (place / "uv").write_text(f'#!/bin/sh\nUV_PYTHON={python} exec {program} "$@"\n')
    (place / "uv").chmod(0o755)
    return place


def until(holds: Callable[[], bool]) -> None:
    last = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < last
        time.sleep(0.02)


def gone(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.full  # more seconds than a daily run has
@linux
def test_a_bisection_that_was_stopped_twice_goes_on_and_makes_nothing_twice(workplace: Workplace) -> None:
    """cab is the likelier culprit by its name, ware is it since release 3, and its release 2 cannot be built."""
    folder = workplace.folder
    (index := folder / "index").mkdir()
    for name, version in (("cab", "1"), ("cab", "2"), ("ware", "1"), ("ware", "3")):
        wheel(index, name, version)
    unbuildable(index, "ware", "2")
    store_with_one_run(folder)
    (folder / "train.py").write_text(TRAIN)
    (folder / "at_hand.txt").write_text("cab==1\nware==1\n")
    words = ("-m", "canary_mlflow.cli", "upgrade", "--from", "at_hand.txt", "--to", "cab==2", "--to", "ware==3",
             "--command", "sh -c 'python train.py; exit $?'")  # fmt: skip
    environment = {
        "CANARY_ENVIRONMENTS": str(folder / "environments"), "UV_FIND_LINKS": str(index), "UV_NO_INDEX": "1",
        "WAITS": "2-1 1-3", "PATH": f"{uv_of_a_real_python(folder)}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    log = folder / "log"

    def stopped(key: str, signum: int) -> tuple[int, str]:
        """Its exit code and what it said, when this signal came during that training."""
        process = workplace.start(*words, python=forking.python(), **environment)
        until(lambda: log.exists() and key in log.read_text())
        training = next(line.split()[2] for line in log.read_text().splitlines() if key in line)
        process.send_signal(signum)
        _, said = process.communicate(timeout=120)
        until(lambda: gone(training))
        return process.returncode, said

    code, said = stopped("2-1", signal.SIGTERM)
    assert (code, said.splitlines()[-1]) == (
        4, "canary: stopped by SIGTERM; the same command goes on where it stopped",
    )  # fmt: skip
    code, said = stopped("1-3", signal.SIGKILL)
    assert (code, "if it is stopped, the same command goes on" in said) == (-signal.SIGKILL, True)
    done = workplace.start(*words, python=forking.python(), **environment)
    out, said = done.communicate(timeout=120)
    assert done.returncode == 1, said
    assert "ware 1 → 3 explains it (2 between could not be tried)" in out
    assert "5 trainings" in out  # what blocks is tried once more
    ended = Counter(line.split()[1] for line in log.read_text().splitlines() if line.startswith("ended"))
    assert ended == {"1-1": 1, "2-3": 2, "2-1": 1, "1-3": 1}
    assert len(list((folder / "environments").glob("*/canary-complete"))) == 4


@pytest.mark.parametrize("full", ["environments", "results", "temporary"])
def test_a_full_disk_is_one_line_and_is_gone_on_from(workplace: Workplace, full: str) -> None:
    folder = workplace.folder
    (index := folder / "index").mkdir()
    (folder / "temporary").mkdir()
    for version in ("1", "2"):
        wheel(index, "cab", version)
        wheel(index, "ware", version)
    store_with_one_run(folder)
    (folder / "train.py").write_text(TRAIN)
    (folder / "at_hand.txt").write_text("cab==1\nware==1\n")
    with small_disk(folder / full, 20 * 1024) as disk:
        path = f"{uv_of_a_real_python(folder)}{os.pathsep}{os.environ['PATH']}"
        environment = {
            "CANARY_ENVIRONMENTS": str(folder / "environments"), "UV_FIND_LINKS": str(index), "UV_NO_INDEX": "1",
            "TMPDIR": str(folder / "temporary"), "WAITS": "", "PATH": path,
        }  # fmt: skip
        words = (
            "upgrade",
            "--from",
            "at_hand.txt",
            "--to",
            "cab==2",
            "--command",
            "python train.py",
            "--work",
            "results",
        )
        filler = fill(disk, 4)
        ended = workplace.canary(*words, **environment)
        assert ended.returncode == 4, ended.stdout
        *_, line = ended.stderr.splitlines()
        assert line.startswith("canary: ")
        assert "expected" in line
        assert "room" in line
        assert "Traceback" not in ended.stderr
        assert not [*disk.rglob("canary-complete"), *disk.rglob("result.json*")]

        filler.unlink()
        again = workplace.canary(*words, **environment)
        assert again.returncode == 0, again.stderr
        assert "2 trainings" in again.stdout
        kept = workplace.canary(*words, **environment)
        assert kept.returncode == 0, kept.stderr
        assert "(2 kept from before); 0 environments built in 0.0 minutes, 0 reused" in kept.stdout


@linux
def test_nothing_that_a_command_started_outlives_it(tmp_path: Path) -> None:
    def left() -> list[str]:
        said = tmp_path / "pids"
        return [pid for pid in said.read_text().split() if not gone(pid)]

    leaves = f"sh -c 'echo $$ >> {tmp_path}/pids; exec sleep 60' & setsid {{}}sleep 60 & echo $! >> {tmp_path}/pids"
    done = subprocess_guard.run(["sh", "-c", f"{leaves.format('')}; sleep 0.1; kill -9 $$"], os.environ, 30)
    assert (done.returncode, left()) == (128 + signal.SIGKILL, [])
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess_guard.run(["sh", "-c", f"{leaves.format('')}; wait"], os.environ, 0.3)
    assert left() == []
    with pytest.raises(OSError, match="No such file"):
        subprocess_guard.run(["nowhere-at-all"], os.environ, 30)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_was_stopped_from_outside_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    monkeypatch.setattr("canary_mlflow.upgrading.probing.build", lambda made: Path(sys.executable))
    monkeypatch.setenv("CANARY_ENVIRONMENTS", str(tmp_path / "none"))
    stops = shlex.join(["python", "-S", "-c", f"import os; os.kill(os.getpid(), {how.value})"])
    prober = Prober(command=stops, work=tmp_path / "work")
    with pytest.raises(CanaryError, match=r"was stopped from outside: .*; the same command goes on"):
        prober.try_({"trl": "1"})
    assert prober.known({"trl": "1"}) is None
