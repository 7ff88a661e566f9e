"""Sweeps and sessions on a real Slurm of one node (slurm_cluster): the same numbers, and jobs that are cancelled, lost,
out of time or started again. It keeps no accounts, so what submitit asks of `sacct` is asked of `squeue`.

What needs no Slurm is in test_submitted_sweeps.py.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm_cluster
from mlflow import MlflowClient
from mlflow.entities import Run
from slurm_cluster import CORES, PARTITION, Slurm
from workplace import Workplace

pytestmark = [
    pytest.mark.full,  # a cluster, and sweeps on it; test_submitted_sweeps.py guards the parts every day
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(slurm_cluster.lacking()), reason=slurm_cluster.lacking()),
]
LONG = "train.max_steps=100000"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm_cluster.cluster() as found:
        yield found


def sweep(*words: str) -> list[str]:
    launcher = ("hydra/launcher=submitit_slurm", f"hydra.launcher.partition={PARTITION}")
    return ["-m", "training", "--multirun", *launcher, "algo=sft", "hardware=cpu", *words]


def ended(process: subprocess.Popen[str], seconds: float = 240) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=seconds)
    assert "Traceback" not in err
    assert "submitit WARNING" not in out + err
    return process.returncode, out, err


def runs(place: Workplace, role: str = "run") -> list[Run]:
    client = MlflowClient(place.uri)
    experiments = [one.experiment_id for one in client.search_experiments()]
    return list(client.search_runs(experiments, f"tags.`canary.role` = '{role}'", order_by=["start_time"]))


def losses(place: Workplace) -> dict[str, list[float]]:
    client = MlflowClient(place.uri)
    return {
        run.data.tags["canary.seed"]: [
            point.value for point in client.get_metric_history(run.info.run_id, "stability/loss")
        ]
        for run in runs(place)
    }


def until(true: Callable[[], Any], seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.2)
    raise AssertionError("it did not come to pass")


def trains(place: Workplace, jobs: int = 1) -> None:
    """Wait until as many jobs train."""
    until(
        lambda: (
            (place.folder / "mlflow.db").exists()
            and sum("stability/loss" in run.data.metrics for run in runs(place)) >= jobs
        )
    )


def failures(place: Workplace) -> list[tuple[str, str]]:
    return [(run.info.status, run.data.tags.get("canary.failure", "")) for run in runs(place)]


def test_a_sweep_has_the_losses_and_the_table_of_one_without_slurm(cluster: Slurm, tmp_path: Path) -> None:
    found = []
    for name, words in (("here", sweep()[:3]), ("slurm", sweep())):
        place = Workplace(folder=tmp_path / name)
        place.folder.mkdir()
        asked = [*words, "algo=sft", "hardware=cpu", "seed=1,2", "train.max_steps=4"]
        code, out, err = ended(place.start(*asked, **cluster.environment))
        assert code == 0, err
        found.append((out, losses(place)))
    assert found[0] == found[1]
    assert [len(values) for values in found[0][1].values()] == [4, 4]
    assert "canary: sacct does not answer (Slurm accounting storage is disabled); asking squeue" in err
    assert cluster.jobs() == []


def test_a_job_that_is_cancelled_is_named_and_the_others_are_judged(cluster: Slurm, workplace: Workplace) -> None:
    process = workplace.start(*sweep("seed=1,2", "train.max_steps=150"), **cluster.environment)
    until(lambda: cluster.jobs())
    first = cluster.jobs()[0]
    trains(workplace)
    cluster.ask("scancel", first)
    code, out, err = ended(process)
    assert code == 4, err
    assert f"canary: job {first} broke off (stopped by SIGTERM; runs that had not ended are recorded as FAILED)" in err
    assert "2 runs, 1 of them broke off (interrupted); nothing to judge them against" in out
    assert sorted(failures(workplace)) == [("FAILED", "interrupted"), ("FINISHED", "")]


def test_a_job_of_a_lost_node_is_not_started_again(cluster: Slurm, workplace: Workplace) -> None:
    words = sweep("seed=1", LONG)
    process = workplace.start(*words, **cluster.environment)
    trains(workplace)
    (job,) = cluster.jobs()
    cluster.lose_node()
    try:
        code, out, err = ended(process)
    finally:
        cluster.return_node()
    assert code == 4, err
    assert f"canary: job {job} reported nothing (state NODE_FAIL); its output: " in err
    assert "1 of them broke off (interrupted)" in out
    assert failures(workplace) == [("FAILED", "interrupted")]
    assert cluster.jobs() == []


def test_a_job_whose_time_is_up_says_so(cluster: Slurm, workplace: Workplace) -> None:
    words = sweep("seed=1", LONG, "hydra.launcher.timeout_min=2", "hydra.launcher.signal_delay_s=50")
    code, _, err = ended(workplace.start(*words, **cluster.environment))
    assert code == 4, err
    assert "broke off (stopped by SIGUSR2, sent because its time is up; runs that had not ended are recorded" in err
    assert failures(workplace) == [("FAILED", "interrupted")]


def test_jobs_that_cannot_begin_say_what_they_wait_for(cluster: Slurm, workplace: Workplace) -> None:
    words = sweep("seed=1", "hydra.launcher.timeout_min=90")  # the partition allows 60
    process = workplace.start(*words, **cluster.environment)
    assert process.stderr
    said = iter(process.stderr.readline, "")
    assert any("what squeue says they wait for: PartitionTimeLimit" in line for line in said)
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 4
    assert err.splitlines()[-1] == "canary: interrupted; runs that had not ended are recorded as FAILED"
    assert cluster.jobs() == []
    assert runs(workplace) == []


@pytest.mark.skipif(CORES < 2, reason="an allocation and a job of the sweep need a core each")
def test_a_job_can_submit_a_sweep(cluster: Slurm, workplace: Workplace) -> None:
    """From an allocation, and as an element of a job array: those variables are not the new jobs' own."""
    words = sweep("seed=1", "train.max_steps=4")
    element = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    allocated = ("--quiet", "--ntasks=1", sys.executable, *words)
    code, _, err = ended(workplace.start(*allocated, python="salloc", **cluster.environment, **element))
    assert code == 0, err
    assert failures(workplace) == [("FINISHED", "")]


def test_tasks_of_one_command_do_not_make_the_same_runs(cluster: Slurm, workplace: Workplace) -> None:
    copies = ("--ntasks=2", "--overcommit", sys.executable, "-m", "training", "algo=sft", "hardware=cpu")
    process = workplace.start(*copies, python="srun", **cluster.environment)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert err.count("canary: srun started this command as 2 tasks, and each would make the same runs") == 2
    assert not (workplace.folder / "mlflow.db").exists()


def test_a_job_sees_its_own_cores(cluster: Slurm, workplace: Workplace) -> None:
    code, out, err = ended(workplace.start(*sweep("seed=1", "hardware.ranks=2"), **cluster.environment))
    assert code == 4, out
    assert "broke off (hardware.ranks is 2 with 1 threads each; expected at most 1 in all" in err
    assert runs(workplace) == []


def test_a_batch_script_that_slurm_starts_again_begins_anew(cluster: Slurm, workplace: Workplace) -> None:
    """A session in the user's own job: what its first start began is recorded as broken off, and is no evidence."""
    script = workplace.folder / "session.sh"
    words = "algo=sft hardware=cpu repeats=1 train.max_steps=300 model_name=m"
    script.write_text(f"#!/bin/sh\nsrun {sys.executable} -m training {words}\n")
    asked = ("--wait", "--output=said", "--open-mode=append", str(script))
    process = workplace.start(*asked, python="sbatch", **cluster.environment)
    trains(workplace)
    (job,) = cluster.jobs()
    cluster.ask("scontrol", "requeue", job)
    until(lambda: cluster.ask("squeue", "--noheader", "--format=%T").strip() == "PENDING")
    until(lambda: failures(workplace) == [("FAILED", "interrupted")])  # while nothing runs: it has said so itself
    cluster.ask("scontrol", "update", f"jobid={job}", "starttime=now")  # it would wait for two minutes
    process.communicate(timeout=240)
    assert process.returncode == 3  # one run, and no champion yet
    assert failures(workplace) == [("FAILED", "interrupted"), ("FINISHED", "")]
    assert len(runs(workplace, "session")) == 2
    assert "1 candidate run, policy smoke" in (workplace.folder / "said").read_text()
