"""Sweeps whose jobs submitit runs: on this machine, and by a fake `sbatch` (fake_slurm)."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fake_slurm
import forking
import psutil
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from workplace import Workplace

CELLS = ("--multirun", "algo=sft,dpo", "seed=1", "train.max_steps=4")
SECRET = "only-for-the-store"
SOON = "from submitit import Job\nJob._results_timeout_s = 1\n"  # else it waits 15 s for a lost job's last word
JOBS = {"CANARY_TEST_CONFIGS": "made"}  # for forked jobs: what is kept of Hydra's work is not theirs


@pytest.fixture
def slurm(workplace: Workplace) -> dict[str, str]:
    """The environment of a machine that submits to Slurm."""
    return {**fake_slurm.install(workplace.folder), **JOBS}


def words_for(launcher: str) -> list[str]:
    own = [f"hydra.launcher.partition={fake_slurm.PARTITION}", "hydra.launcher.timeout_min=7"]
    return [f"hydra/launcher={launcher}", *(own if launcher == "submitit_slurm" else [])]


def runs(place: Workplace, role: str) -> list[Run]:
    client = MlflowClient(place.uri)
    experiments = [one.experiment_id for one in client.search_experiments()]
    return list(client.search_runs(experiments, f"tags.`canary.role` = '{role}'"))


def losses(place: Workplace) -> dict[str, list[float]]:
    client = MlflowClient(place.uri)
    return {
        run.data.tags["canary.algo"]: [
            point.value for point in client.get_metric_history(run.info.run_id, "stability/loss")
        ]
        for run in runs(place, "run")
    }


def source(run: Run) -> tuple[str, str]:
    """What MLflow says of the code that made it."""
    return run.data.tags["mlflow.source.name"], run.data.tags.get("mlflow.source.git.commit", "")


def wait_for(what: Callable[[], Any], seconds: float = 240) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError("it did not come to pass")


def at_work_in(folder: Path) -> list[psutil.Process]:
    """Whatever process works there."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(folder):
                found.append(process)
    return found


@pytest.mark.full  # every day: a lost job and what ends a sweep, below
def test_the_launcher_changes_no_loss_no_verdict_and_no_word(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    found = {}
    launchers = ["basic", "submitit_slurm", *(["submitit_local"] if request.config.getoption("--full") else [])]
    for launcher in launchers:
        place = Workplace(folder=tmp_path / launcher)
        place.folder.mkdir()
        own = {**fake_slurm.install(place.folder), **JOBS, "MLFLOW_TRACKING_PASSWORD": SECRET}
        ended = place.train(*CELLS, *words_for(launcher), **own)
        assert ended.returncode == 0, ended.stderr
        (parent,) = runs(place, "sweep")
        children = runs(place, "run")
        assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
        assert {source(run) for run in children} == {source(parent)}
        found[launcher] = (ended.stdout, losses(place), {run.info.status for run in [parent, *children]})
        assert ("note: the store sqlite:///" in ended.stderr) == (launcher == "submitit_slurm")
        written = [path for path in place.folder.glob("outputs/**/*") if path.is_file()]
        assert not any(SECRET.encode() in path.read_bytes() for path in written)
    assert [len(values) for values in found["basic"][1].values()] == [4, 4]
    assert all(found[launcher] == found["basic"] for launcher in launchers)
    (script,) = fake_slurm.scripts(tmp_path / "submitit_slurm")
    asked = fake_slurm.options(script)
    assert (asked["partition"], asked["time"], asked["array"]) == (fake_slurm.PARTITION, "7", "0-1%2")
    assert f" {forking.python()} -u -m submitit.core._submit " in script
    assert "\n#SBATCH --no-requeue\n" in script
    assert SECRET not in script


def test_a_job_that_is_lost_is_missed_and_the_others_are_judged(workplace: Workplace, slurm: dict[str, str]) -> None:
    (workplace.folder / "soon.py").write_text(SOON)
    ended = workplace.train(
        *("--multirun", "algo=sft", "seed=1,2", "train.max_steps=4"),
        *words_for("submitit_slurm"),
        **{**slurm, fake_slurm.LOST: "41_0", "CANARY_TEST_FIRST": str(workplace.folder / "soon.py")},
    )
    assert ended.returncode == 4, ended.stderr
    assert "canary: job 41_0 reported nothing (state NODE_FAIL); its output: " in ended.stderr
    assert ended.stdout.rstrip().endswith("1 run; nothing to judge them against; 1 of 2 runs were not made"), (
        ended.stderr
    )
    assert [run.data.tags["canary.seed"] for run in runs(workplace, "run")] == ["2"]
    assert [run.info.status for run in runs(workplace, "sweep")] == ["FAILED"]


@pytest.mark.parametrize(
    ("launcher", "sent", "said"),
    [
        ("submitit_local", signal.SIGINT, "interrupted"),
        ("submitit_slurm", signal.SIGTERM, "stopped by SIGTERM"),
    ],
)
def test_what_ends_a_sweep_ends_its_jobs(
    workplace: Workplace, slurm: dict[str, str], launcher: str, sent: signal.Signals, said: str
) -> None:
    words = ("--multirun", "algo=sft", "seed=1,2", "train.max_steps=100000", *words_for(launcher))
    process = workplace.start("-m", "training", *words, python=forking.python(), **slurm)
    wait_for(lambda: len(list(workplace.folder.glob("outputs/*/*/*/*/job.json"))) == 2)  # both train
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert err.splitlines()[-1] == f"canary: {said}; runs that had not ended are recorded as FAILED"
    assert "Traceback" not in err
    assert {(run.info.status, run.data.tags["canary.failure"]) for run in runs(workplace, "run")} == {
        ("FAILED", "interrupted")
    }
    assert [run.info.status for run in runs(workplace, "sweep")] == ["FAILED"]
    wait_for(lambda: not at_work_in(workplace.folder), 45)  # a job has 40 s to end its runs
    if launcher == "submitit_slurm":
        assert fake_slurm.cancelled(workplace.folder) == {"41_0", "41_1"}


@pytest.mark.full  # every day a job is lost that had not begun
@pytest.mark.parametrize("launcher", ["submitit_local", "submitit_slurm"])
def test_a_job_that_is_killed_leaves_its_run_failed(workplace: Workplace, slurm: dict[str, str], launcher: str) -> None:
    words = ("--multirun", "algo=sft,dpo", "seed=1", "train.max_steps=100", *words_for(launcher))
    process = workplace.start("-m", "training", *words, **slurm)
    (job, *_) = wait_for(lambda: list(workplace.folder.glob("outputs/*/*/0/*/job.json")))  # the first trains
    (killed,) = [
        one.parents()[0] for one in at_work_in(workplace.folder) if str(job.parent) in " ".join(one.cmdline())
    ]  # fmt: skip
    killed.kill()
    out, err = process.communicate(timeout=240)
    assert process.returncode == 4, err
    assert err.count("reported nothing") == 1, err
    assert "Traceback" not in err
    assert [line.split()[-1] for line in out.splitlines()] == ["against", "against"]
    assert "1 of them broke off (interrupted)" in out.splitlines()[0]
    ended = {run.data.tags["canary.algo"]: run.info.status for run in runs(workplace, "run")}
    assert ended == {"sft": "FAILED", "dpo": "FINISHED"}


def test_what_slurm_does_not_take_is_one_line(workplace: Workplace, slurm: dict[str, str]) -> None:
    ended = workplace.train(*CELLS, *words_for("submitit_slurm"), "hydra.launcher.partition=nope", **slurm)
    assert ended.returncode == 4
    *_, last = ended.stderr.splitlines()
    assert "no job was submitted: sbatch: error: invalid partition specified: nope" in last
    assert "Traceback" not in ended.stderr
    assert [run.info.status for run in runs(workplace, "sweep")] == ["FAILED"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["hydra.launcher.nodes=2"], "hydra.launcher.nodes is 2, and each task would make the job's runs again"),
        (["hydra.launcher.tasks_per_node=2"], "hydra.launcher.tasks_per_node is 2"),
        (["hydra.launcher.max_num_timeout=1"], "hydra.launcher.max_num_timeout is 1; expected 0"),
        (["hydra.launcher.partitio=a"], "unknown key 'hydra.launcher.partitio'"),
        (["hydra.launcher.timeout_min=3"], "up to a minute earlier; expected at least 4"),
        (["+hydra.launcher.additional_parameters.requeue=true"], "and no run can resume; expected no such key"),
        (["hydra.mode=RUN"], "this is a session; expected --multirun"),
    ],
)
def test_what_no_job_can_be_is_refused_before_anything_is_recorded(
    workplace: Workplace, slurm: dict[str, str], words: list[str], expected: str
) -> None:
    mode = [] if "hydra.mode=RUN" in words else ["--multirun"]
    refused(workplace.train(*mode, "algo=sft", "hydra/launcher=submitit_slurm", *words, **slurm), workplace, expected)


def test_a_machine_without_slurm_is_one_line(workplace: Workplace) -> None:
    ended = workplace.train(*CELLS, "hydra/launcher=submitit_slurm", PATH=str(workplace.folder))
    refused(ended, workplace, "hydra/launcher=submitit_slurm: there is no sbatch and no srun")


def test_what_srun_starts_several_times_is_refused(workplace: Workplace) -> None:
    ended = workplace.train("algo=sft", SLURM_STEP_NUM_TASKS="4")
    refused(ended, workplace, "srun started this command as 4 tasks, and each would make the same runs")


def refused(ended: subprocess.CompletedProcess[str], place: Workplace, expected: str) -> None:
    assert ended.returncode == 2, ended.stderr
    assert expected in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not (place.folder / "mlflow.db").exists()


def test_jobs_are_asked_after_with_accounts_and_without(slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from canary_mlflow.training.slurm import GONE, Watcher

    (Path(slurm[fake_slurm.FOLDER]) / "41_0.ended").write_text("NODE_FAIL")  # and Slurm knows no job 42 any more
    found = []
    for silent in ("", "sacct", "sacct squeue"):
        for key, value in (slurm | {fake_slurm.SILENT: silent}).items():
            monkeypatch.setenv(key, value)
        said: list[str] = []
        watcher = Watcher(said.append)
        for job in ("41_0", "42"):
            watcher.register_job(job)
        found.append([(watcher.get_state(job, "force"), watcher.is_done(job, "cache")) for job in ("41_0", "42")])
        watcher.update()  # and says nothing twice
        assert [line.partition(" (")[0] for line in said] == [f"{tool} does not answer" for tool in silent.split()]
    assert found == [
        [("NODE_FAIL", True), ("UNKNOWN", False)],  # it may not be in the accounts yet
        [("NODE_FAIL", True), (GONE, True)],
        [("UNKNOWN", False), ("UNKNOWN", False)],
    ]
