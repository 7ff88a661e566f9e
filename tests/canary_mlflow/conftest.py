"""Recorded sessions on a real SQLite store, without training: what the gate, the reports and the command read."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest
from recorded import Recorded
from unchanged_files import unchanged_files

# One store for all tests of a module, each with a model and sessions of its own. Not one for all modules: much that is
# tested looks at everything in its store, and takes longer with each test before it.


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store of its own in the working folder, as a newcomer has it."""
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)
    yield uri
    mlflow.set_tracking_uri(None)  # not what it was: MLflow would hold on to that in later tests


@pytest.fixture(scope="session")
def recorder() -> type[Recorded]:
    """For tests with a store of their own."""
    return Recorded


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The store."""
    from canary_mlflow.tracking.stores.store import prepare_store

    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = prepare_store(uri)
    experiment = client.create_experiment("recorded", artifact_location=str(folder / "mlruns"))
    return Recorded(client=client, uri=uri, experiment=experiment, model="shared")


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite store with a ledger and nothing in it, to be copied."""
    from canary_mlflow.registry.plugin import guarded_store
    from canary_mlflow.tracking.stores.store import prepare_store

    file = tmp_path_factory.mktemp("empty") / "mlflow.db"
    prepare_store(f"sqlite:///{file}")
    guarded_store(f"sqlite:///{file}", "")
    return file


@pytest.fixture(scope="module")
def usual_session(shared: Recorded) -> str:
    """A session to be a baseline of."""
    return replace(shared, seed=0).session()


@pytest.fixture
def recorded(shared: Recorded, request: pytest.FixtureRequest) -> Recorded:
    """The store, with a model that is not registered yet."""
    own = zlib.crc32(request.node.nodeid.encode())  # the same numbers, whatever ran before it
    return replace(shared, model=f"{request.function.__name__[:60]}-{own}", seed=own)


@pytest.fixture
def guarded(recorded: Recorded, usual_session: str) -> Recorded:
    """The store, with a model whose version 1 is champion."""
    from canary_mlflow.registry.acts.by_hand import bless

    bless(recorded.client, recorded.model, recorded.register(usual_session), "a baseline for the test")
    return recorded


@pytest.fixture(scope="module")
def unpublished() -> Iterator[None]:
    """`canary gate` draws no pictures and writes no page, which takes half of its time, for modules that look at what
    it decides: test_report_command.py, test_ci.py and test_journeys.py look at what it draws."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("canary_mlflow.analysis.reading.log_study", lambda client, decision, session: None)
        yield


# For the tests that train.


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a two-layer GPT-NeoX and its tokenizer."""
    from tiny_trainers import save_tiny

    return save_tiny(str(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without a store of its own."""
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Eight unchanged runs of one machine, 1 % apart, in the working folder."""
    monkeypatch.chdir(tmp_path)
    return unchanged_files(8)
