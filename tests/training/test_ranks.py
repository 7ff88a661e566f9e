"""Several processes train one run: what is refused, who says how it ended, and whole sessions of two ranks (gloo)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from canaries import a_config
from fake_gpu import Driver
from mlflow import MlflowClient
from mlflow.entities import Run
from workplace import Workplace

from canary_mlflow.errors import UsageError
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.describing.failures import Raised
from canary_mlflow.training import devices, peers, process, ranks
from canary_mlflow.training.arguments import between_ranks, evaluation_rows
from canary_mlflow.training.command_line import parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.config import CanaryConfig, FaultConfig, ParallelConfig
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.naming import run_params
from canary_mlflow.training.preflight import _check_ranks
from canary_mlflow.training.process import RESULT, read_result

HARDWARE = a_config().hardware


TWO_RANKS = replace(a_config(), hardware=replace(HARDWARE, ranks=2))
SHARDED = ParallelConfig(name="fsdp2")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (replace(a_config(), hardware=replace(HARDWARE, ranks=0)), "hardware.ranks is 0; expected a whole number from"),
        (replace(a_config(), hardware=replace(HARDWARE, ranks="two")), "hardware.ranks is two"),
        (replace(a_config(), hardware=replace(HARDWARE, ranks=3)), "tier.eval_rows is 16 and hardware.ranks is 3"),
        (replace(a_config(train_rows=6), hardware=replace(HARDWARE, ranks=2)), "tier.train_rows is 6; expected at"),
        (replace(TWO_RANKS, parallel=SHARDED), "parallel is fsdp2, with hardware.device=cpu"),
        (replace(TWO_RANKS, parallel=SHARDED, algo=a_config(algo="ppo").algo), "parallel is fsdp2, with algo=ppo"),
    ],
)
def test_what_ranks_cannot_do_is_refused_before_anything_is_loaded(config: CanaryConfig, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        _check_ranks(config)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_variants_and_ranks_are_refused_from_the_command_line() -> None:
    register_schemas()
    with pytest.raises(UsageError, match=r"variants train in one process; expected hardware\.ranks=1 there"):
        check(parse(["hardware.ranks=2", "tier=facts"]))


def test_beside_a_profiler_and_on_a_cluster_a_run_has_one_rank() -> None:
    _check_ranks(TWO_RANKS)
    launcher = replace(TWO_RANKS.launcher, name="ray")
    for other in (replace(TWO_RANKS, profile=True), replace(TWO_RANKS, launcher=launcher)):
        with pytest.raises(UsageError, match=r"expected hardware\.ranks=1 there"):
            _check_ranks(other)


def test_one_process_is_told_what_it_was_told_before_there_were_ranks() -> None:
    one, two = (replace(config, fault=FaultConfig(name="none")) for config in (a_config(), TWO_RANKS))
    assert set(run_params(two).items()) - set(run_params(one).items()) == {("cfg/hardware.ranks", "2")}
    assert not [key for key in run_params(one) if "ranks" in key or "parallel" in key]
    assert run_params(replace(two, parallel=SHARDED))["cfg/parallel.name"] == "fsdp2"


def test_ranks_of_whatever_started_the_session_are_not_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = ["WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PET_NNODES"]
    for name in (*foreign, peers.COUNT):
        monkeypatch.setenv(name, "4")
    kept = process._environment(1)
    assert not {*foreign, peers.COUNT} & kept.keys()
    assert kept["PATH"] == os.environ["PATH"]
    monkeypatch.delenv(peers.COUNT)
    assert (peers.world(), peers.rank(), peers.leads()) == (1, 0, True)


def test_a_rank_ends_when_its_launcher_is_gone() -> None:
    rank = "import time, training.peers as p; p.stay_with_launcher(); print('here', flush=True); time.sleep(60)"
    launcher = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {rank!r}])"],
        env={**os.environ, peers.COUNT: "2"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout
    launcher.stdout.readline()
    (child,) = psutil.Process(launcher.pid).children()
    launcher.kill()
    launcher.wait()
    psutil.wait_procs([child], timeout=20)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, made up, that torch could use."""
    monkeypatch.setitem(sys.modules, "pynvml", Driver("H100", "H100"))
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(devices, "_no_gpu", lambda: "")


@pytest.mark.usefixtures("cards")
def test_each_rank_has_a_gpu_and_auto_takes_all_in_sight() -> None:
    free = replace(HARDWARE, device="auto")
    assert devices.ranks({"device": "auto", "ranks": "auto"}) == 2
    assert devices.ranks({"device": "cpu", "ranks": "auto"}) == devices.ranks({"device": "auto"}) == 1
    assert devices.environment({"device": "auto", "ranks": 2}) == {}
    assert devices.environment({"device": "auto", "ranks": 1}) == {"CUDA_VISIBLE_DEVICES": "GPU-aa11"}
    devices.check(replace(free, ranks=2), "fsdp2")
    with pytest.raises(SetupError, match=r"hardware\.ranks is 3; expected at most 2, the visible GPUs"):
        devices.check(replace(free, ranks=3))
    with pytest.raises(SetupError, match="splits a model over ranks, and there is 1"):
        devices.check(free, "fsdp2")


def test_a_machine_without_gpus_has_cores_and_no_sharding() -> None:
    devices.check(replace(HARDWARE, ranks=2))
    cores = len(os.sched_getaffinity(0))
    with pytest.raises(SetupError, match=f"expected at most {cores} in all, the cores that this process may use"):
        devices.check(replace(HARDWARE, ranks=cores + 1))
    with pytest.raises(SetupError, match="parallel=fsdp2 needs GPUs"):
        devices.check(replace(HARDWARE, device="auto", ranks=2), "fsdp2")


def test_no_held_out_row_counts_twice() -> None:
    config = a_config(eval_rows=20)  # batches of 8
    assert evaluation_rows(config, 2) == 5
    assert between_ranks(config, devices.Device(kind="cpu", precision="fp32")) == {}
    two = devices.Device(kind="cuda", precision="bf16", ranks=2)
    assert between_ranks(config, two)["ddp_backend"] == "nccl"
    sharded = replace(config, parallel=ParallelConfig(name="fsdp2", settings={"version": 2}))
    assert between_ranks(sharded, two)["fsdp_config"] == {"version": 2}


GLOO = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1")


@pytest.fixture
def second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """The folder of a run of two ranks whose second has left a message, or is gone."""
    monkeypatch.setenv(peers.COUNT, "2")
    monkeypatch.setattr(peers, "PATIENCE", 0.3)
    before = signal.getsignal(signal.SIGTERM)

    def of(end: peers.End | None, pid: int) -> Path:
        (tmp_path / "rank-1.pid").write_text(str(pid))
        if end is not None:
            monkeypatch.setenv("RANK", "1")
            peers.leave(tmp_path, end)
        monkeypatch.setenv("RANK", "0")
        return tmp_path

    yield of
    signal.signal(signal.SIGTERM, before)


def test_the_first_rank_says_what_ended_the_other(second: Callable[..., Path]) -> None:
    raised = Raised(kind="MemoryError", place="reward.py:3 in score", outside="")
    folder = second(peers.End(failure="oom", reason="MemoryError", raised=raised), os.getpid())
    found = peers.first_failure(folder, GLOO)
    assert isinstance(found, peers.PeerFailed)
    assert (found.end.failure, found.end.raised) == ("oom", raised)
    own = ValueError("of its own")
    assert peers.first_failure(folder, own) is own


def test_a_rank_that_is_gone_is_lost_and_one_that_was_stopped_too_is_not(second: Callable[..., Path]) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert isinstance(peers.first_failure(second(None, gone.pid), GLOO), peers.RankLost)
    assert peers.first_failure(second(None, os.getpid()), GLOO) is GLOO  # it lives: nothing is known
    stopped = peers.first_failure(second(peers.End(failure="interrupted", secondary=True), gone.pid), GLOO)
    assert isinstance(stopped, peers.PeerFailed)
    assert stopped.end.failure == "interrupted"
    lost = peers.End(failure="error", secondary=True)  # the ranks lost each other
    assert peers.first_failure(second(lost, gone.pid), GLOO) is GLOO


def test_the_launcher_names_the_rank_that_was_killed_where_the_run_left_no_word(tmp_path: Path) -> None:
    failures = {0: SimpleNamespace(exitcode=1, timestamp=1), 1: SimpleNamespace(exitcode=-9, timestamp=2)}
    error = SimpleNamespace(failures=failures)
    ranks._bury(tmp_path, error, 2)
    found = read_result(tmp_path / RESULT)
    assert (found["failure"], found["raised"]) == ("error", None)
    assert found["reason"].startswith("rank 1 of 2: its process was killed by SIGKILL")
    (tmp_path / RESULT).write_text(json.dumps({"failure": "oom"}))
    ranks._bury(tmp_path, error, 2)
    assert json.loads((tmp_path / RESULT).read_text()) == {"failure": "oom"}


TWO = ["hardware=cpu", "hardware.ranks=2", "repeats=1", "tier.eval_rows=16"]
STEPS = 6
ENDED = (1, 3)  # one run is no baseline, and so few steps may teach nothing: both are the gate's to say


def runs(place: Workplace, role: str = "run") -> list[Run]:
    client = MlflowClient(place.uri)
    experiments = [item.experiment_id for item in client.search_experiments()]
    return list(client.search_runs(experiments, f"tags.`canary.role` = '{role}'", order_by=["start_time"]))


def series(place: Workplace, run: Run) -> dict[str, list[float]]:
    client = MlflowClient(place.uri)
    names = [name for name in run.data.metrics if name.startswith(("stability/", "eval/")) and "time" not in name]
    return {name: [point.value for point in client.get_metric_history(run.info.run_id, name)] for name in names}


@pytest.mark.full
@pytest.mark.parametrize("algo", ["sft", "dpo", "kto", "reward", "ppo", "grpo", "rloo"])
def test_two_ranks_train_every_algorithm_and_the_same_again(algo: str, workplace: Workplace) -> None:
    for _ in range(2):
        done = workplace.train(f"algo={algo}", *TWO, f"train.max_steps={STEPS}")
        assert done.returncode in ENDED, done.stderr
        assert "Traceback" not in done.stderr
        assert f"{algo}-tiny-neox-preferences-smoke-2-ranks version" in done.stdout
    one, two = runs(workplace)
    for run in (one, two):
        assert run.info.status == "FINISHED"
        assert expanded(run.data.tags)["canary.workload.ranks"] == "2"
        assert not expanded(run.data.tags)["canary.troubles"]
    assert series(workplace, one) == series(workplace, two)
    versions = MlflowClient(workplace.uri).search_model_versions()
    assert len(versions) == 2


@pytest.mark.full
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_session_with_one_line_and_the_next_one_trains(
    victim: int, workplace: Workplace
) -> None:
    process = workplace.start("-m", "training", "algo=sft", *TWO, "train.max_steps=100000")
    folder = wait_for(workplace, process)
    time.sleep(3)
    pids = of_ranks(folder)
    os.kill(pids[victim], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert not any(map(psutil.pid_exists, pids))
    assert process.returncode == 4, err
    assert "Traceback" not in err
    said = err.rpartition("canary: ")[2]  # behind the bar of a rank that was killed while it drew it
    assert f"rank {victim} of 2: its process was killed by SIGKILL" in said
    assert said.count("\n") == 1
    (run,) = runs(workplace)
    assert run.info.status == "FAILED"
    assert run.data.tags["canary.failure"] == "error"
    assert "killed by SIGKILL" in run.data.tags["canary.failure_reason"]
    assert runs(workplace, "session")[0].info.status == "FAILED"
    assert workplace.train("algo=sft", *TWO, "train.max_steps=4").returncode == 3


@pytest.mark.full
def test_a_stopped_session_leaves_no_rank_behind(workplace: Workplace) -> None:
    process = workplace.start("-m", "training", "algo=sft", *TWO, "train.max_steps=100000")
    folder = wait_for(workplace, process)
    pids = of_ranks(folder)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 4, err
    assert "Traceback" not in err
    assert not any(map(psutil.pid_exists, pids))
    (run,) = runs(workplace)
    assert (run.info.status, run.data.tags["canary.failure"]) == ("FAILED", "interrupted")


@pytest.mark.full
def test_two_ranks_train_what_one_trains_on_a_batch_of_twice_the_size(workplace: Workplace) -> None:
    for words in (["hardware.ranks=2", "train.batch_size=4"], ["hardware.ranks=1", "train.batch_size=8"]):
        done = workplace.train("algo=sft", *TWO, *words, f"train.max_steps={STEPS}", "hardware.precision=fp32")
        assert done.returncode == 3, done.stderr
    two, one = (series(workplace, run)["stability/loss"] for run in runs(workplace))
    assert two == pytest.approx(one, rel=1e-4)


@pytest.mark.full
def test_sides_of_other_ranks_are_not_compared(workplace: Workplace) -> None:
    words = ["algo=sft", "hardware=cpu", "tier.eval_rows=16", f"train.max_steps={STEPS}", "repeats=1"]
    assert workplace.train(*words, "model_name=mine").returncode == 3
    assert workplace.canary("bless", "mine", "1", "--reason", "the first").returncode == 0
    done = workplace.train(*words, "model_name=mine", "hardware.ranks=2")
    assert done.returncode == 2
    assert "its champion did other work (ranks absent, here 2)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_the_second_ranks_exception_is_the_runs(workplace: Workplace) -> None:
    paid = workplace.folder / "paid.py"
    paid.write_text(
        "from torch import distributed\n\ndef reward(prompts, completions, **columns):\n"
        "    if distributed.is_initialized() and distributed.get_rank() == 1:\n"
        "        raise KeyError('no such answer')\n"
        "    return [float(len(one)) for one in completions]\n"
    )
    done = workplace.train(
        "algo=grpo", *TWO, "train.max_steps=3", "algo.reward.kind=function", "algo.reward.path=paid:reward"
    )
    run, _ = runs(workplace)  # what an exception ended is tried once more
    assert run.info.status == "FAILED"
    assert "no such answer" in run.data.tags["canary.failure_reason"], (done.stderr, run.data.tags)
    assert run.data.tags["canary.exception"] == "KeyError"


def of_ranks(folder: Path) -> list[int]:
    return [int((folder / f"rank-{rank}.pid").read_text()) for rank in (0, 1)]


def wait_for(place: Workplace, process: subprocess.Popen[str]) -> Path:
    """The scratch folder of a run whose training has begun."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        found = list(place.folder.glob("outputs/*/*/seed-0/turn"))
        if found:
            return found[0].parent
        time.sleep(0.1)
    raise AssertionError(f"it did not begin: {process.returncode}")
