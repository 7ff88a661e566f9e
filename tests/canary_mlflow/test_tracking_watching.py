"""The watch in a real training on a real store: it warns while the run goes on, and stops one that is lost."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from line_training import RaiseTheRate, fit
from mlflow import MlflowClient
from transformers import TrainerCallback

from canary_mlflow import CanaryCallback
from canary_mlflow.errors import StoreError, UsageError
from canary_mlflow.gates.watch import Level, WatchWarning
from canary_mlflow.policies import load_watch
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.reading.facts import IN_TAG, warnings_in, worst_of
from canary_mlflow.tracking.reading.histories import read_runs
from canary_mlflow.tracking.watching import champion_bands

STEPS, BROKEN_AT = 120, 50


class Look(TrainerCallback):
    """Reads from the store, near the end of the training, which warning came first."""

    seen = ""

    def __init__(self, uri: str) -> None:
        self.client = MlflowClient(uri)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        deadline = time.monotonic() + 20
        while state.global_step == STEPS - 5 and not self.seen and time.monotonic() < deadline:
            time.sleep(0.1)  # the warning is on its way in a thread
            experiment = self.client.get_experiment_by_name("watched").experiment_id
            running = self.client.search_runs([experiment], "attributes.status = 'RUNNING'")
            self.seen = expanded(running[0].data.tags).get("canary.watch.first", "")


def train(place: Path, *extra: TrainerCallback, healthy: bool = False, **own: Any) -> CanaryCallback:
    uri = f"sqlite:///{place}/mlflow.db"
    canary = CanaryCallback(tracking_uri=uri, experiment="watched", folder=place / "canary", **own)
    fit(place, canary, STEPS, *([] if healthy else [RaiseTheRate(BROKEN_AT)]), *extra)
    return canary


def tags_of(place: Path, canary: CanaryCallback) -> dict[str, str]:
    return expanded(MlflowClient(f"sqlite:///{place}/mlflow.db").get_run(canary.run_id).data.tags)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all runs: to make one takes longer than to train."""
    return tmp_path_factory.mktemp("watched")


class Screen(logging.Handler):
    """What is said while a run goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture(scope="module")
def screen() -> Iterator[Screen]:
    handler = Screen()
    logging.getLogger("canary_mlflow").addHandler(handler)
    yield handler
    logging.getLogger("canary_mlflow").removeHandler(handler)


@pytest.fixture(scope="module")
def warned(place: Path, screen: Screen) -> tuple[CanaryCallback, Look]:
    """A run that is lost and goes on, and what the store said of it before its end."""
    look = Look(f"sqlite:///{place}/mlflow.db")
    return train(place, look), look


@pytest.fixture(scope="module")
def healthy(place: Path) -> CanaryCallback:
    return train(place, healthy=True)


def test_a_lost_run_is_stopped_marked_and_explained(place: Path) -> None:
    canary = train(place, watch={"base": "default", "on_critical": "stop"})
    tags = tags_of(place, canary)
    stopped_at = int(tags["canary.last_step"])
    assert BROKEN_AT < stopped_at < STEPS
    assert tags["canary.watch.level"] == "stopped"
    assert tags["canary.failure"] == "instability"
    assert "the watch stopped it for what step" in tags["canary.failure_reason"] == canary.stopped
    assert int(tags["canary.watch.steps_saved"]) == STEPS - stopped_at
    assert 0 < int(tags["canary.watch.lead_steps"]) <= stopped_at - BROKEN_AT
    assert MlflowClient(f"sqlite:///{place}/mlflow.db").get_run(canary.run_id).info.status == "FAILED"


def test_every_warning_is_a_line_of_the_runs_artifact(place: Path, warned: tuple[CanaryCallback, Look]) -> None:
    canary, _ = warned
    client = MlflowClient(f"sqlite:///{place}/mlflow.db")
    lines = Path(client.download_artifacts(canary.run_id, "warnings.jsonl")).read_text().splitlines()
    tags = tags_of(place, canary)
    assert len(lines) == int(tags["canary.watch.warnings"]) > 0
    first = json.loads(lines[0])
    assert first["step"] > BROKEN_AT
    assert min(map(len, (first["seen"], first["meaning"], first["advice"]))) > 0
    assert {one.step for one in warnings_in(tags)} <= {json.loads(line)["step"] for line in lines}


def test_without_a_wish_to_stop_the_run_goes_on_to_its_end(place: Path, warned: tuple[CanaryCallback, Look]) -> None:
    canary, _ = warned
    tags = tags_of(place, canary)
    assert tags["canary.last_step"] == str(STEPS)
    assert tags["canary.watch.level"] == "critical"
    assert tags["canary.watch.critical_held"]
    assert canary.stopped == ""


def test_a_script_hears_once_that_its_lost_training_goes_on_and_how_to_end_it(
    place: Path, warned: tuple[CanaryCallback, Look], screen: Screen
) -> None:
    said = [line for line in screen.lines if "goes on" in line]
    assert len(said) == 1
    assert 'watch={"base": "default", "on_critical": "stop"} would end it' in said[0]
    screen.lines.clear()
    train(place, watch={"base": "default", "on_critical": "stop"})
    assert any(" STOP " in line for line in screen.lines)
    assert not any("goes on" in line for line in screen.lines)


def test_warnings_are_in_the_store_while_the_run_goes_on(warned: tuple[CanaryCallback, Look]) -> None:
    _, look = warned
    assert look.seen.startswith(("WARN", "CRITICAL"))


def test_a_healthy_run_is_not_warned_of(place: Path, healthy: CanaryCallback) -> None:
    tags = tags_of(place, healthy)
    assert tags["canary.watch.level"] == "healthy"
    assert tags["canary.watch.warnings"] == "0"
    assert warnings_in(tags) == ()


def test_a_run_beside_the_champions_is_compared_with_them_step_by_step(place: Path, healthy: CanaryCallback) -> None:
    good = [str(healthy.run_id), *(str(train(place, healthy=True).run_id) for _ in range(2))]
    tags = tags_of(place, train(place, champion_runs=good))
    assert "band" in {one.rule for one in warnings_in(tags)}


def test_the_champions_runs_that_are_no_measure_are_named_with_the_reason(
    place: Path, healthy: CanaryCallback, caplog: pytest.LogCaptureFixture
) -> None:
    client, mine = MlflowClient(f"sqlite:///{place}/mlflow.db"), str(healthy.run_id)
    rules = load_watch()
    assert champion_bands(client, [mine, mine], rules, {}) == {}
    assert caplog.messages == ["canary: watch: no band: it needs 3 runs of the champion, there are 1"]
    cut = client.create_run(client.get_run(mine).info.experiment_id, tags={"canary.role": "run"}).info.run_id
    client.set_terminated(cut, "FAILED")
    other = {**read_runs(client, [mine], ())[0].workload, "steps": "7"}
    assert champion_bands(client, [mine, cut, str(train(place, healthy=True).run_id)], rules, other) == {}
    said = caplog.messages[-1]
    assert "it needs 3 runs of the champion, there are 0; not used: " in said
    assert f"{mine[:8]} did other work: steps" in said
    assert "instead of 7" in said
    assert f"{cut[:8]} did not end as planned" in said


def test_no_watch_leaves_no_word(place: Path) -> None:
    tags = tags_of(place, train(place, healthy=True, watch=None))
    assert not [name for name in tags if name.startswith("canary.watch.")]


def test_a_wrong_watch_is_refused_before_training() -> None:
    with pytest.raises(UsageError, match="on_critical"):
        CanaryCallback(watch={"base": "default", "on_critical": "panic"})


def test_the_tag_keeps_the_worst_in_their_order() -> None:
    said = [warning(step, Level.WARN) for step in range(20)] + [warning(30, Level.STOP), warning(31, Level.CRITICAL)]
    kept = worst_of(said)
    assert len(kept) == IN_TAG
    assert [one.step for one in kept] == [*range(IN_TAG - 2), 30, 31]


def test_a_foreign_tag_is_one_line() -> None:
    with pytest.raises(StoreError, match=r"canary\.watch\.found"):
        warnings_in({"canary.watch.found": '[{"step": 1}]'})


def warning(step: int, level: Level) -> WatchWarning:
    return WatchWarning(step=step, stream="loss", level=level, rule="drift", seen="s", meaning="m", advice="a")
