"""The store: made once whoever comes first, refused in one line, found again by the plugin."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import forking
import pytest
from mlflow.exceptions import MlflowException

from canary_mlflow.errors import StoreError, UsageError, one_line
from canary_mlflow.tracking.experiment import CanaryExperimentProvider
from canary_mlflow.tracking.stores.store import experiment_id, prepare_store, resolve

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "name: canary_mlflow\n\nentry_points: {}\n"

FIRST = """
import sys
from canary_mlflow.tracking.experiment import CanaryExperimentProvider
from canary_mlflow.tracking.stores.store import prepare_store
provider = CanaryExperimentProvider()
assert provider.in_context()
experiment = provider.get_experiment_id()
client = prepare_store()
run = client.create_run(experiment)
client.log_metric(run.info.run_id, "loss", 1.0)
print(client.tracking_uri, experiment)
"""


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tracking URI from the environment, or left behind by mlflow.set_tracking_uri."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", None)
    monkeypatch.setenv("CANARY_TEST_STORES", "made")  # by MLflow, each of them


def start(code: str, folder: Path, python: str = "") -> subprocess.Popen[str]:
    """A forked process, or one of `python`."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [python or forking.python(), "-c", code],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("named", "variable"), [(None, ""), (None, " "), ("", "sqlite:///there.db")])
def test_a_store_that_was_meant_to_be_named_and_was_not_is_refused(
    monkeypatch: pytest.MonkeyPatch, named: str | None, variable: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", variable)
    with pytest.raises(UsageError, match=r"empty( name)?; expected the store .* or unset it for \./mlflow\.db"):
        resolve(named)


def test_three_processes_on_a_fresh_folder_make_one_store_and_one_experiment(tmp_path: Path) -> None:
    (tmp_path / "MLproject").write_text(PROJECT)
    ends = [process.communicate(timeout=240) for process in [start(FIRST, tmp_path) for _ in range(3)]]
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert [out.split() for out, _ in ends] == [[uri, "1"]] * 3, ends
    assert not any("INFO" in error for _, error in ends), "migration history on the screen"
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("SELECT count(*) FROM metrics").fetchone() == (3,)
    assert not list(tmp_path.glob(".mlflow-new-*"))


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("http://127.0.0.1:9", "nobody answers"),
        ("sqlite:////proc/nowhere/mlflow.db", "writable folder"),
        ("mlruns", "folder of files"),
        ("postgresql+nosuchdriver://me:secret@127.0.0.1:9/db", "expected a store"),
    ],
)
def test_a_store_that_cannot_be_used_is_refused_fast_and_in_one_line(uri: str, said: str) -> None:
    began = time.monotonic()
    with pytest.raises(StoreError) as refused:
        prepare_store(uri)
    assert time.monotonic() - began < 15
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)
    assert refused.value.exit_code == 4


def test_a_kind_of_store_that_does_not_exist_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="gopher:// is not a kind of store that MLflow has here") as refused:
        prepare_store("gopher://there")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "mlflow.db"
    file.write_text("my diary")
    with pytest.raises(StoreError, match="not a database"):
        prepare_store(f"sqlite:///{file}")
    assert file.read_text() == "my diary"


def test_relative_paths_and_the_default_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("sqlite:///a/b.db") == f"sqlite:///{tmp_path}/a/b.db"
    assert resolve(None) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    assert resolve(None) == "http://host:5000"


@pytest.mark.full
def test_an_experiment_asked_for_by_many_at_once_is_created_once(shared: Any) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: experiment_id(prepare_store(shared.uri), "wanted by many"), range(4)))
    assert len(found) == 1


def test_an_experiment_that_we_make_is_one_of_trainings_and_says_what_it_holds(shared: Any) -> None:
    made = shared.client.get_experiment(experiment_id(shared.client, "made by us")).tags
    assert made["mlflow.experimentKind"] == "custom_model_development"
    assert "one for each seed" in made["mlflow.note.content"]


def test_a_deleted_experiment_is_named_with_the_way_back(shared: Any) -> None:
    shared.client.delete_experiment(experiment_id(shared.client, "thrown away"))
    with pytest.raises(StoreError, match="mlflow experiments restore"):
        experiment_id(shared.client, "thrown away")


def test_the_plugin_is_silent_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not CanaryExperimentProvider().in_context()
    (tmp_path / "MLproject").write_text("name: another\n")
    assert not CanaryExperimentProvider().in_context()


def test_the_plugin_leaves_a_broken_store_to_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "mlruns")
    (tmp_path / "MLproject").write_text(PROJECT)
    assert CanaryExperimentProvider().get_experiment_id() == "0"


def test_importing_the_package_and_the_plugin_imports_neither_mlflow_nor_torch(tmp_path: Path) -> None:
    code = (
        "import sys, canary_mlflow, canary_mlflow.tracking.experiment, canary_mlflow.errors\n"
        "print([name for name in ('mlflow', 'torch', 'transformers') if name in sys.modules])"
    )
    out, error = start(code, tmp_path, sys.executable).communicate(timeout=60)
    assert out.strip() == "[]", error


def test_what_a_database_refuses_is_raised_and_not_written_on_the_screen_too(
    tmp_path: Path, shared: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """A disk that fills during a session gave a page of frames for every attempt to write."""
    file = tmp_path / "mlflow.db"
    with sqlite3.connect(shared.uri.removeprefix("sqlite:///")) as stored, sqlite3.connect(file) as copied:
        stored.backup(copied)
        copied.execute("ALTER TABLE metrics RENAME TO gone")
    client = prepare_store(f"sqlite:///{file}")
    run = client.create_run(shared.experiment).info.run_id
    capfd.readouterr()
    with pytest.raises(MlflowException) as refused:
        client.log_metric(run, "loss", 1.0)
    assert "(sqlite3.OperationalError)" in one_line(refused.value)
    assert "SQL:" not in one_line(refused.value)
    assert "Background" not in one_line(refused.value)
    assert capfd.readouterr().err == ""
