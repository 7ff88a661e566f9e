"""The one line in somebody's own script: several seeds are a side, and the screen says where a run went."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
from click.testing import CliRunner
from tiny_trainers import sft

from canary_mlflow import CanaryCallback
from canary_mlflow.cli import canary
from canary_mlflow.tracking.workload import shape_of


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store of its own in the working folder, as a newcomer has it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    yield f"sqlite:///{tmp_path / 'mlflow.db'}"
    mlflow.set_tracking_uri(before)


def test_seeds_below_one_parent_are_one_side(store: str, tiny: str, tmp_path: Path, capsys: Any) -> None:
    """docs/tracking.md, Several seeds."""
    sides = []
    for name in ("before", "after"):
        with mlflow.start_run(run_name=name) as side:
            for seed in range(2):
                with mlflow.start_run(nested=True):
                    sft(tiny, tmp_path / name / str(seed), [CanaryCallback()], seed=seed).train()
        sides.append(side.info.run_id)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("canary: run ")]
    assert len(said) == 4
    assert f"is in {store}; canary report " in said[0]
    result = CliRunner().invoke(canary, ["compare", *sides, "--policy", "smoke", "--json"], catch_exceptions=False)
    found = json.loads(result.stdout)
    assert (len(found["verdict"]["baseline_runs"]), len(found["verdict"]["candidate_runs"])) == (2, 2)


def test_a_model_that_was_built_is_known_by_its_sizes() -> None:
    small, large = (SimpleNamespace(num_hidden_layers=2, hidden_size=size, vocab_size=99) for size in (64, 128))
    assert shape_of(small, small) == "SimpleNamespace num_hidden_layers 2 hidden_size 64 vocab_size 99"
    assert shape_of(large, large) != shape_of(small, small)
    assert shape_of(object(), None) == "object"
