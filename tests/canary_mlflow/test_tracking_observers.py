"""Observers of a run: called for every closed row, in order, and never in the way of the training."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from canary_mlflow.tracking.delivery.recorder import Recorder
from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.ending import Target
from canary_mlflow.tracking.journal import Journal
from canary_mlflow.tracking.observers import Ending, Observer
from canary_mlflow.tracking.probes import Setting

IDLE = Setting(model=None, device="cpu", compiled=False, ranks=1, iterates=False, idle_cpu=float)


class Notes(Observer):
    """Writes down what it is told."""

    name = "notes"

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.endings: list[Ending] = []

    def row_closed(self, step: int, row: Mapping[str, float]) -> None:
        self.rows.append((step, dict(row)))

    def finish(self, ending: Ending) -> Mapping[str, str]:
        self.endings.append(ending)
        return {"canary.notes": "taken"}


class Broken(Observer):
    """Raises at every row."""

    name = "broken"

    def row_closed(self, step: int, row: Mapping[str, float]) -> None:
        raise OSError("no space left")


def journal_of(shared: Any, *observers: Observer) -> Journal:
    run_id = shared.client.create_run(shared.experiment).info.run_id
    target = Target(client=shared.client, run_id=run_id, owned=True, algo="dpo")
    journal = Journal(target, {}, observers)
    journal.begin(IDLE)
    return journal


def train(journal: Journal, steps: int) -> None:
    for step in range(1, steps + 1):
        journal.step_ended(step)
        journal.logged(step, {"loss": 1.0 / step, "rewards/margins": float(step)})


def test_an_observer_sees_each_row_once_and_the_end(shared: Any) -> None:
    notes = Notes()
    journal = journal_of(shared, notes)
    train(journal, 3)
    assert [step for step, _ in notes.rows] == [1, 2]  # the third is still open
    journal.finish("instability", "loss is NaN")
    assert notes.rows[2] == (3, {"loss": 1.0 / 3, "reward_margin": 3.0})
    assert notes.endings == [Ending(failure="instability", reason="loss is NaN", last_step=3)]
    assert not notes.endings[0].completed
    tags = shared.client.get_run(journal.target.run_id).data.tags
    assert (tags["canary.notes"], tags["canary.failure"]) == ("taken", "instability")


def test_a_row_that_was_told_stays_as_it_was(shared: Any) -> None:
    class Keeper(Notes):
        def row_closed(self, step: int, row: Mapping[str, float]) -> None:
            self.rows.append((step, row))  # type: ignore[arg-type]

    keeper = Keeper()
    journal = journal_of(shared, keeper)
    train(journal, 2)
    journal.logged(1, {"eval_loss": 3.0})  # of a step that is over
    journal.finish()
    first, _, again = keeper.rows
    assert first == (1, {"loss": 1.0, "reward_margin": 1.0})
    assert again == (1, {"loss": 1.0, "reward_margin": 1.0, "eval_loss": 3.0})


def test_one_that_raises_stops_nobody_and_is_counted_and_said(shared: Any, caplog: pytest.LogCaptureFixture) -> None:
    notes = Notes()
    journal = journal_of(shared, Broken(), notes)
    train(journal, 3)
    with caplog.at_level(logging.WARNING):
        journal.finish()
    assert len(notes.rows) == 3
    said = "row_closed: OSError: no space left (3 times)"
    assert f"broken: {said}" in caplog.text
    assert said in expanded(shared.client.get_run(journal.target.run_id).data.tags)["canary.troubles"]


def test_a_tag_set_during_a_run_is_there_before_its_end(shared: Any, tmp_path: Path) -> None:
    run_id = shared.client.create_run(shared.experiment).info.run_id
    recorder = Recorder(shared.client, run_id, tmp_path, period=60.0)
    recorder.put(1, {"loss": 1.0})
    recorder.tag({"canary.mood": "calm"})
    for _ in range(200):
        found = shared.client.get_run(run_id)
        if "canary.mood" in found.data.tags:
            break
    assert found.data.tags["canary.mood"] == "calm"
    # What was put before it is there too. Asked again: MLflow reads metrics before tags, and not at one moment.
    assert shared.client.get_run(run_id).data.metrics == {"stability/loss": 1.0}
    assert recorder.close() == 0
