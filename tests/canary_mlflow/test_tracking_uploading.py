"""Weights reach an artifact store whole, or not at all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import forking
import pytest
from mlflow import MlflowClient
from small_disk import small_disk

from canary_mlflow.errors import StoreError
from canary_mlflow.tracking.delivery.uploading import upload


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "trained"
    (folder / "model").mkdir(parents=True)
    (folder / "MLmodel").write_text("flavors: {}\n")
    (folder / "model" / "model.safetensors").write_bytes(os.urandom(300_000))
    return folder


def run_on(shared: Any, place: Path) -> str:
    experiment = shared.client.create_experiment(place.as_posix(), artifact_location=str(place))
    return str(shared.client.create_run(experiment).info.run_id)


def files_below(place: Path) -> list[str]:
    return sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())


def test_every_file_keeps_its_place(shared: Any, tmp_path: Path, weights: Path) -> None:
    run_id = run_on(shared, tmp_path / "kept")
    upload(shared.client, run_id, weights, "model")
    assert files_below(tmp_path / "kept" / run_id / "artifacts") == ["model/MLmodel", "model/model/model.safetensors"]


def test_scratch_is_not_written_twice_and_other_peoples_files_are_copied(
    shared: Any, tmp_path: Path, weights: Path
) -> None:
    file = weights / "model" / "model.safetensors"
    kept = tmp_path / "kept"
    theirs, ours = run_on(shared, kept / "theirs"), run_on(shared, kept / "ours")
    upload(shared.client, theirs, weights, "model")
    assert file.stat().st_nlink == 1
    upload(shared.client, ours, weights, "model", scratch=True)
    assert (kept / "ours" / ours / "artifacts" / "model" / "model" / "model.safetensors").samefile(file)


def test_scratch_on_another_disk_is_copied(shared: Any, tmp_path: Path, weights: Path) -> None:
    with small_disk(tmp_path / "roomy", 1000) as disk:
        run_id = run_on(shared, disk)
        upload(shared.client, run_id, weights, "model", scratch=True)
        assert files_below(disk / run_id / "artifacts") == ["model/MLmodel", "model/model/model.safetensors"]


def test_a_full_store_keeps_nothing_of_them_and_says_what_to_do(shared: Any, tmp_path: Path, weights: Path) -> None:
    with small_disk(tmp_path / "small", 200) as disk:
        run_id = run_on(shared, disk)
        with pytest.raises(StoreError, match=r"No space left on device; expected an artifact store with room") as said:
            upload(shared.client, run_id, weights, "model")
        assert "\n" not in str(said.value)
        assert files_below(disk) == []


def test_what_was_there_before_is_not_taken_back(shared: Any, tmp_path: Path, weights: Path) -> None:
    with small_disk(tmp_path / "small", 200) as disk:
        run_id = run_on(shared, disk)
        shared.client.log_text(run_id, "mine", "model/notes.txt")
        with pytest.raises(StoreError):
            upload(shared.client, run_id, weights, "model")
        assert "notes.txt" in {Path(name).name for name in files_below(disk)}


CUT_OFF = """
import os, shutil, sys
from pathlib import Path
from mlflow import MlflowClient
from canary_mlflow.tracking.delivery.uploading import upload

def copy(source, target, length=0):  # as a process that is killed half-way leaves it
    target.write(source.read()[:1000]); target.flush(); os._exit(9)

shutil.copyfileobj = copy
upload(MlflowClient(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), "model")
"""


def test_half_a_file_never_has_its_name(shared: Any, tmp_path: Path, weights: Path) -> None:
    run_id = run_on(shared, tmp_path / "kept")
    done = subprocess.run([forking.python(), "-c", CUT_OFF, shared.uri, run_id, str(weights)], check=False)
    assert done.returncode == 9
    assert MlflowClient(shared.uri).list_artifacts(run_id, "model") == []
