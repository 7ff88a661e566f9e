"""How sessions end: stopped, broken, side by side, swept, under `mlflow run`; and bad input."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import forking
import psutil
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from packaging.requirements import Requirement
from small_disk import fill, small_disk
from workplace import ROOT, Workplace

from canary_mlflow.link_env import place_of
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.stores.store import prepare_store

FEW = ["tier.train_rows=64", "tier.eval_rows=16"]  # as many as are trained on here: to prepare more takes a while
TINY = ["algo=sft", "repeats=1", "train.max_steps=8", *FEW]


RUNS = 3
LOADS = """
import os, pathlib, sys, time
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == 'torch':
            pathlib.Path(__file__).with_name(f'loads-{os.getpid()}').touch()
            time.sleep(60)
if 'canary_mlflow.training.worker' in ' '.join(sys.orig_argv):
    sys.meta_path.insert(0, Finder)
"""


def runs(place: Workplace, role: str) -> list[Run]:
    client = MlflowClient(place.uri)
    experiments = [item.experiment_id for item in client.search_experiments()]
    return list(client.search_runs(experiments, f"tags.`canary.role` = '{role}'"))


@pytest.fixture
def eager(workplace: Workplace) -> Workplace:
    """Its runs send what they record at once: one that is waited for would train ten seconds before it is seen to."""
    (workplace.folder / "eager").mkdir()
    (workplace.folder / "eager/sitecustomize.py").write_text(
        "import os, pathlib, sys\n"
        "if 'canary_mlflow.training.worker' in ' '.join(sys.orig_argv):\n"
        "    from canary_mlflow.tracking.delivery.recorder import Recorder\n"
        "    Recorder.__init__.__kwdefaults__['period'] = 0.5\n"
        f"    pathlib.Path({str(pid_of_run(workplace))!r}).write_text(str(os.getpid()))\n"
    )
    return workplace


def begun(place: Workplace, *words: str, own_group: bool = False, forked: bool = False) -> subprocess.Popen[str]:
    """An SFT session in an eager place that would take hours."""
    session = ("-m", "training", *words, "algo=sft", "train.max_steps=100000")
    if forked:
        return place.start(*session, python=forking.python(), **first(place, "eager/sitecustomize.py"))
    path = f"{place.folder}/eager{os.pathsep}{ROOT}"
    return place.start(*session, own_group=own_group, PYTHONPATH=path)


def pid_of_run(place: Workplace) -> Path:
    """Where a run in an eager place leaves the number of its process."""
    return place.folder / "eager/pid"


def first(place: Workplace, file: str) -> dict[str, str]:
    """The environment in which each forked process runs this file first."""
    return {"CANARY_TEST_FIRST": str(place.folder / file)}


def versions(place: Workplace) -> list[str]:
    return [item.version for item in MlflowClient(place.uri).search_model_versions()]


def test_sigterm_leaves_failed_runs_with_their_metrics_and_no_version(eager: Workplace) -> None:
    process = begun(eager, "repeats=2", forked=True)
    client = wait_for_step(eager, 20)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert "SIGTERM" in err
    assert "Traceback" not in err
    (run,) = runs(eager, "run")
    assert run.info.status == "FAILED"
    assert run.data.tags["canary.failure"] == "interrupted"
    last = int(expanded(run.data.tags)["canary.last_step"])
    steps = {point.step for point in client.get_metric_history(run.info.run_id, "stability/loss")}
    assert last >= 20
    assert steps == set(range(1, last + 1))
    assert runs(eager, "session")[0].info.status == "FAILED"
    assert versions(eager) == []


@pytest.mark.parametrize(
    ("sent", "said"),
    [(signal.SIGINT, "interrupted"), pytest.param(signal.SIGHUP, "stopped by SIGHUP", marks=pytest.mark.full)],
    ids=["Ctrl-C", "closed"],
)
def test_what_a_terminal_sends_while_the_runs_load_is_one_line(
    workplace: Workplace, sent: signal.Signals, said: str
) -> None:
    (workplace.folder / "sitecustomize.py").write_text(LOADS)
    path = f"{workplace.folder}{os.pathsep}{ROOT}"
    process = workplace.start("-m", "training", "algo=sft", own_group=True, PYTHONPATH=path)
    deadline = time.monotonic() + 60
    while len(list(workplace.folder.glob("loads-*"))) < RUNS and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, sent)  # as a terminal does it: the session and its runs
    os.killpg(process.pid, sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert err.strip() == f"canary: {said}; runs that had not ended are recorded as FAILED"
    assert {run.info.status for run in runs(workplace, "session")} <= {"FAILED"}


@pytest.mark.parametrize(("sent", "said"), [("SIGINT", "interrupted"), ("SIGTERM", "stopped by SIGTERM")])
def test_a_signal_while_python_loads_is_one_line(workplace: Workplace, sent: str, said: str) -> None:
    (workplace.folder / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'omegaconf':\n"
        f"            os.kill(os.getpid(), signal.{sent})\n"
        "if 'training' in sys.orig_argv:\n"
        "    sys.meta_path.insert(0, Finder)\n"
    )
    done = workplace.train(*TINY, PYTHONPATH=f"{workplace.folder}{os.pathsep}{ROOT}")
    assert (done.returncode, done.stderr) == (4, f"canary: {said}\n")
    assert not (workplace.folder / "mlflow.db").exists()


def test_a_killed_run_is_recorded_by_its_session(eager: Workplace) -> None:
    process = begun(eager, "repeats=1", forked=True)
    wait_for_step(eager, 5)
    os.kill(int(pid_of_run(eager).read_text()), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert "SIGKILL" in err
    assert [run.info.status for run in runs(eager, "run")] == ["FAILED"]
    assert versions(eager) == []


@pytest.mark.full  # every day its runs are killed too, and whoever comes next ends both
def test_a_killed_session_is_recorded_by_its_run(eager: Workplace) -> None:
    process = begun(eager, "repeats=1")
    wait_for_step(eager, 5)
    process.kill()
    process.communicate(timeout=60)  # until its run has let go of standard error, too
    ended = {role: [run.info.status for run in runs(eager, role)] for role in ("session", "run")}
    assert ended == {"session": ["FAILED"], "run": ["FAILED"]}


@pytest.mark.full  # every day: tests/canary_mlflow/test_leftovers.py
def test_a_session_that_is_killed_with_its_runs_is_ended_by_whoever_comes_next(eager: Workplace) -> None:
    process = begun(eager, "repeats=1", own_group=True)
    wait_for_step(eager, 5)
    living = eager.canary("doctor", "--fix", MLFLOW_TRACKING_URI=eager.uri)
    assert "0 runs ended as FAILED" in living.stdout, living.stdout
    os.killpg(process.pid, signal.SIGKILL)  # as a machine's out-of-memory killer or a CI job's end may do it
    process.communicate(timeout=60)
    open_ones = [*runs(eager, "session"), *runs(eager, "run")]
    assert {run.info.status for run in open_ones} == {"RUNNING"}
    found = eager.canary("doctor", MLFLOW_TRACKING_URI=eager.uri)
    assert "RUNNING, and their processes are gone" in found.stdout
    assert all(run.info.run_id in found.stdout for run in open_ones)
    fixed = eager.canary("doctor", "--fix", MLFLOW_TRACKING_URI=eager.uri)
    assert "2 runs ended as FAILED" in fixed.stdout, fixed.stdout
    for run in [*runs(eager, "session"), *runs(eager, "run")]:
        assert (run.info.status, run.data.tags["canary.failure"]) == ("FAILED", "interrupted")
        assert f"(pid {process.pid} on " in run.data.tags["canary.failure_reason"]


@pytest.mark.full
def test_sigterm_ends_a_sweep_and_starts_no_other_job(eager: Workplace) -> None:
    process = begun(eager, "--multirun", "seed=1,2")
    wait_for_step(eager, 5)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert "canary: stopped by SIGTERM; runs that had not ended are recorded as FAILED" in err
    assert "Traceback" not in err
    assert [run.info.status for run in runs(eager, "run")] == ["FAILED"]
    assert [run.info.status for run in runs(eager, "sweep")] == ["FAILED"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("reading.log_study = lambda *_: os.kill(os.getpid(), signal.SIGTERM)", "stopped by SIGTERM"),
        ("reading.log_study = lambda *_: os.kill(os.getpid(), signal.SIGINT)", "interrupted"),
    ],
)
def test_a_signal_during_the_report_ends_with_four_and_a_second_cuts_nothing_short(
    workplace: Workplace, script: str, said: str
) -> None:
    """The report is forgiven what goes wrong in it; a signal is none of that."""
    code = (
        "import os, signal, sys, types\n"
        "from canary_mlflow.analysis import reading\n"
        "from canary_mlflow.tracking.signals import obey\n"
        "from canary_mlflow.training.errors import ended\n"
        f"{script}\n"
        "def session():\n"
        "    try:\n"
        "        reading.publish_study(None, types.SimpleNamespace(session_id='s', dry_run=False))\n"
        "        obey()\n"
        "    finally:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        print('recorded')\n"
        "    return 0\n"
        "sys.exit(ended(session))\n"
    )
    done = workplace.run("-c", code)
    assert (done.returncode, done.stdout) == (4, "recorded\n"), done.stderr
    assert done.stderr == f"canary: {said}; runs that had not ended are recorded as FAILED\n"


@pytest.mark.parametrize(
    ("error", "made", "said"),
    [
        pytest.param(
            "RuntimeError('no such shard')",
            2,
            "RuntimeError at sitecustomize.py:7 in broken ended 2 of 2 runs of seed 0; there is no champion",
            marks=pytest.mark.full,  # every day: test_launching.py, where the candidate's code raises
        ),
        pytest.param(
            "OSError('disk of the data server is gone')",
            1,
            "which is no evidence: OSError is an OSError",
            marks=pytest.mark.full,  # which exceptions are evidence: tests/canary_mlflow/test_tracking_learning.py
        ),
    ],
)
def test_an_exception_in_training_is_recorded_and_registers_nothing(
    workplace: Workplace, error: str, made: int, said: str
) -> None:
    # Somebody's own code in the training process: Python imports sitecustomize at its start.
    (workplace.folder / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'canary_mlflow.training.worker' in ' '.join(sys.orig_argv):\n"
        "    import transformers\n"
        "    step = transformers.Trainer.training_step\n"
        "    def broken(self, *args, **kwargs):\n"
        "        if self.state.global_step == 5:\n"
        f"            raise {error}\n"
        "        return step(self, *args, **kwargs)\n"
        "    transformers.Trainer.training_step = broken\n"
    )
    path = f"{workplace.folder}{os.pathsep}{ROOT}"
    done = workplace.train("algo=sft", "repeats=1", "train.max_steps=20", PYTHONPATH=path)
    assert done.returncode == 3, done.stderr
    assert said in " ".join(done.stdout.split())
    assert "Traceback" not in done.stderr
    found = runs(workplace, "run")
    assert [run.info.status for run in found] == ["FAILED"] * made
    run = found[-1]
    (session,) = runs(workplace, "session")
    assert (session.info.status, session.data.tags["canary.verdict"]) == ("FAILED", "INCONCLUSIVE")
    assert said in session.data.tags["mlflow.note.content"]
    assert expanded(run.data.tags)["canary.last_step"] == "5"
    client = MlflowClient(workplace.uri)
    assert len(client.get_metric_history(run.info.run_id, "stability/loss")) == 5
    assert "traceback.txt" in {item.path for item in client.list_artifacts(run.info.run_id)}
    assert versions(workplace) == []


@pytest.mark.full  # every day an exception of a step, and a process that dies while it loads
def test_code_that_cannot_be_imported_is_an_exception_too(workplace: Workplace) -> None:
    (workplace.folder / "sitecustomize.py").write_text(
        "import sys\nif 'canary_mlflow.training.worker' in ' '.join(sys.orig_argv):\n    sys.modules['trl'] = None\n"
    )
    done = workplace.train(*TINY, PYTHONPATH=f"{workplace.folder}{os.pathsep}{ROOT}")
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    said = r"ModuleNotFoundError at training/\S+\.py:\d+ in \S+ ended 2 of 2 runs of seed 0; there is no champion"
    assert re.search(said, " ".join(done.stdout.split())), done.stdout
    assert [run.info.status for run in runs(workplace, "run")] == ["FAILED", "FAILED"]


def test_a_run_that_dies_while_it_loads_is_one_line(workplace: Workplace) -> None:
    (workplace.folder / "dies.py").write_text(
        "import os, sys\nif 'canary_mlflow.training.worker' in ' '.join(sys.orig_argv):\n    os._exit(1)\n"
    )
    done = workplace.train(*TINY, **first(workplace, "dies.py"))
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (4, 1), done.stderr
    assert "its process ended with code 1 and reported nothing" in done.stderr
    assert [run.info.status for run in runs(workplace, "run")] == ["FAILED"]
    assert versions(workplace) == []


@pytest.mark.full  # every day: a database that refuses (test_tracking_store), a full disk (test_tracking_uploading)
def test_a_store_that_fills_ends_with_four_and_deliver_brings_the_rows(workplace: Workplace) -> None:
    with small_disk(workplace.folder / "disk", 12 * 1024) as disk:
        place = Workplace(folder=workplace.folder)
        uri = f"sqlite:///{disk}/mlflow.db"
        prepare_store(uri)
        filler = fill(disk, 300)
        done = place.train("algo=sft", "repeats=1", "train.max_steps=60", MLFLOW_TRACKING_URI=uri)
        assert done.returncode == 4, done.stderr
        assert "Traceback" not in done.stderr
        assert "then canary deliver sends the rest; no version was registered" in done.stderr
        client = MlflowClient(uri)
        assert client.search_model_versions() == []
        filler.unlink()
        brought = place.canary("deliver", MLFLOW_TRACKING_URI=uri)
        assert (brought.returncode, "values and what went with them are in run" in brought.stdout) == (0, True), brought
        (run,) = client.search_runs(["1"], "tags.`canary.role` = 'run'")
        assert (run.info.status, run.data.tags["canary.failure"]) == ("FAILED", "error")
        assert len(client.get_metric_history(run.info.run_id, "stability/loss")) == 60


@pytest.mark.full
def test_artifacts_without_room_cost_the_weights_and_no_metrics(workplace: Workplace) -> None:
    with small_disk(workplace.folder / "mlruns", 200):
        done = workplace.train(*TINY)
        assert done.returncode == 4, done.stderr
        assert "Traceback" not in done.stderr
        assert "its weights were not kept: " in done.stderr
        assert "expected an artifact store with room for it" in done.stderr
        (run,) = runs(workplace, "run")
        assert (run.info.status, expanded(run.data.tags)["canary.last_step"]) == ("FAILED", "8")
        client = MlflowClient(workplace.uri)
        assert len(client.get_metric_history(run.info.run_id, "stability/loss")) == 8
        assert "model" not in {item.path for item in client.list_artifacts(run.info.run_id)}
        assert versions(workplace) == []


@pytest.mark.full
def test_scratch_files_without_room_are_one_line_with_the_way_to_find_out(workplace: Workplace) -> None:
    with small_disk(workplace.folder / "outputs", 300):
        done = workplace.train(*TINY)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("canary: ")]
    assert done.returncode == 4, done.stderr
    assert "No space left on device" in line
    assert line.endswith("canary doctor shows which has none; no version was registered")
    assert [run.info.status for run in runs(workplace, "run")] == ["FAILED"]
    assert versions(workplace) == []


@pytest.mark.full
def test_three_sessions_at_once_on_a_fresh_folder(workplace: Workplace) -> None:
    python = forking.python()
    processes = [workplace.start("-m", "training", *TINY, "gate.bootstrap=auto", python=python) for _ in range(3)]
    for process in processes:
        _, err = process.communicate(timeout=280)
        assert process.returncode in (0, 1, 3), err  # too short a training to learn from; none may break
    assert len(versions(workplace)) == 3
    assert {run.info.status for run in runs(workplace, "run")} == {"FINISHED"}


def test_a_sweep_leaves_one_parent_with_its_children_also_when_a_job_fails(workplace: Workplace) -> None:
    done = workplace.train(
        *("--multirun", "algo=sft,ppo", "seed=1", "train.max_steps=4", *FEW),
        *("fault=nan_batch", "fault.step=1", "watch.on_critical=warn"),
    )
    # NaN weights end a PPO run at its next rollout; SFT trains on with them.
    assert done.returncode == 1, done.stderr
    cells = [line.split()[:3] for line in done.stdout.splitlines()[1:]]
    assert cells == [[f"algo={algo}", "no", "champion"] for algo in ("sft", "ppo")]
    (parent,) = runs(workplace, "sweep")
    assert (parent.info.run_name, parent.info.status) == ("sweep algo=sft,ppo", "FAILED")
    children = runs(workplace, "run")
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    ended = {(run.data.tags["canary.algo"], run.data.tags["canary.seed"]): run.info.status for run in children}
    assert ended == {("sft", "1"): "FINISHED", ("ppo", "1"): "FAILED"}
    assert {run.info.run_name for run in children} == {"algo=sft, seed 1", "algo=ppo, seed 1"}
    assert with_weights(workplace) == [], "nothing registers a sweep"


def with_weights(place: Workplace) -> list[str]:
    """The seeds of the runs whose weights are kept."""
    client = MlflowClient(place.uri)
    kept = [run for run in runs(place, "run") if client.list_artifacts(run.info.run_id, "model")]
    return [run.data.tags["canary.seed"] for run in kept]


def test_only_the_run_of_which_a_version_is_made_keeps_its_weights(workplace: Workplace) -> None:
    done = workplace.train("algo=sft", "train.max_steps=8", *FEW, "gate.top_up=true")
    assert len(runs(workplace, "run")) == 3, done.stderr  # a first version has all its runs, the later ones made apart
    assert len(versions(workplace)) == 1
    assert with_weights(workplace) == ["0"]


def test_mlflow_run_passes_the_exit_code_on(
    workplace: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ENV_ROOT", str(tmp_path / "envs"))
    linked = place_of(ROOT)  # not by link_env itself, which would note this place in the environment that tests use
    linked.parent.mkdir(parents=True)
    linked.symlink_to(forked_environment(tmp_path / "venv"))
    command = ["-m", "mlflow", "run", str(ROOT), "-P", "algo=sft", "-P", "repeats=1"]
    place = {"MLFLOW_ENV_ROOT": str(tmp_path / "envs"), "MLFLOW_TRACKING_URI": workplace.uri}
    good = workplace.run(
        *command, "-P", "overrides=train.max_steps=30 gate.min_baseline_runs=1 'model_name=my model'", **place
    )
    assert good.returncode == 0, good.stderr
    bad = workplace.run(*command, "-P", "tier=nope", **place)
    assert bad.returncode != 0
    assert "unknown tier 'nope'" in bad.stderr
    (session,) = runs(workplace, "session")
    assert session.data.tags["canary.model_name"] == "my model"
    assert runs(workplace, "run")[0].data.tags["mlflow.parentRunId"] == session.info.run_id


def forked_environment(prefix: Path) -> Path:
    """An environment for `mlflow run`, which sources its `activate`, whose Python forks (forking)."""
    active = Path(sys.prefix, "bin", "activate")
    if not active.exists():
        pytest.fail("tests must run in a virtual environment; use `make test`")
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/activate").write_text(active.read_text().replace(sys.prefix, str(prefix)))
    (prefix / "bin/python").write_text(f'#!/bin/sh\nexec {forking.python()} "$@"\n')
    (prefix / "bin/python").chmod(0o755)
    return prefix


@pytest.mark.parametrize(
    ("rows", "words", "expected"),
    [
        ('{"prompt": "a", "chosen": "b", "rejected": "c"}\n{broken\n', [], ["line 2"]),
        ('{"prompt": "a", "chosen": "b"}\n', [], ["rejected", "chosen"]),
        ("", [], ["empty", "no rows", "0 rows"]),
    ],
)
def test_bad_data_is_refused_in_one_line(
    workplace: Workplace, rows: str, words: list[str], expected: list[str]
) -> None:
    (workplace.folder / "rows.jsonl").write_text(rows)
    done = workplace.train("data=jsonl", "data.path=rows.jsonl", *words)
    refused(workplace, done, {"rows.jsonl"})
    assert any(part in done.stderr for part in expected), done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["model=local", "model.path=."],
        ["model=local", "model.path=nowhere"],
        ["data=jsonl", "data.path=nowhere.jsonl"],
        ["quantization=nf4", "adapter=full"],
        ["gate.rules.loss_of_nerve={role: gate}"],
        ["algo=nope"],
        ["train.max_steps=-5"],
        ["+train.learning_rat=1"],
        ["tracking.uri=sqlite:///:memory:"],
        ["tracking.uri=sqlite://"],
    ],
)
def test_wrong_use_ends_with_two_and_leaves_nothing(workplace: Workplace, words: list[str]) -> None:
    refused(workplace, workplace.train(*words), set())


def test_a_place_that_takes_no_folder_is_named_before_a_store_is_made(workplace: Workplace) -> None:
    done = workplace.train("hydra.run.dir=/proc/nope")
    assert done.returncode == 4, done.stderr
    assert "/proc/nope" in done.stderr
    assert "hydra.run.dir" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert list(workplace.folder.iterdir()) == []


def test_a_folder_of_keys_that_cannot_be_written_is_named_before_anything_trains(workplace: Workplace) -> None:
    done = workplace.train(*TINY, CANARY_KEYS="/proc/nope")
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (4, 1), done.stderr
    assert "/proc/nope" in done.stderr
    assert "expected a folder for keys that this account can use; set CANARY_KEYS" in done.stderr
    assert list(workplace.folder.iterdir()) == []
    words = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert [line for line in words if "canary_mlflow.training.worker" in line and str(workplace.folder) in line] == []


def test_a_release_outside_of_its_range_is_named_with_the_range(workplace: Workplace) -> None:
    info = workplace.folder / "other" / "peft-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: peft\nVersion: 0.1.0\n")
    path = f"{info.parent}{os.pathsep}{ROOT}"
    done = workplace.train(*TINY, CANARY_KEYS="/proc/nope", PYTHONPATH=path)  # so that nothing trains
    said, stopped = done.stderr.strip().splitlines()
    (range_,) = (text for text in metadata.requires("canary-mlflow") or [] if text.startswith("peft"))
    assert said.startswith(f"canary: peft 0.1.0 found, {Requirement(range_.partition(';')[0]).specifier} expected; ")
    assert "/proc/nope" in stopped


def test_a_model_with_code_of_its_own_is_refused_and_nobody_is_asked(workplace: Workplace, tiny_folder: Path) -> None:
    own = workplace.folder / "own"
    shutil.copytree(tiny_folder, own)
    config = json.loads((own / "config.json").read_text())
    code = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (own / "config.json").write_text(json.dumps({**config, "model_type": "own_kind", "auto_map": code}))
    (own / "own.py").write_text("raise SystemExit('this code must not run')\n")
    done = workplace.train("model=local", "model.path=own")
    refused(workplace, done, {"own"})
    assert "needs its own code (auto_map in its config.json)" in done.stderr


def test_a_hub_model_that_is_not_here_is_named(workplace: Workplace) -> None:
    cache = workplace.folder / "cache"
    done = workplace.train("model=pythia-70m", HF_HUB_OFFLINE="1", HF_HOME=str(cache))
    assert done.returncode == 2
    assert "EleutherAI/pythia-70m" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (workplace.folder / "mlflow.db").exists()


def refused(place: Workplace, done: subprocess.CompletedProcess[str], present: set[str]) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert {item.name for item in place.folder.iterdir()} == present


def wait_for_step(place: Workplace, step: int) -> MlflowClient:
    """Wait until a run has recorded that many optimizer steps."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        time.sleep(0.2)
        if (place.folder / "mlflow.db").exists():
            client = MlflowClient(place.uri)
            for run in runs(place, "run"):
                history = client.get_metric_history(run.info.run_id, "stability/loss")
                if len(history) >= step:
                    return client
    raise AssertionError(f"no run reached step {step}")
