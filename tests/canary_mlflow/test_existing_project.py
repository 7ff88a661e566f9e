"""A team's own MLflow project with the one line in it: what is theirs stays as it was, and ours is little to see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient
from tiny_trainers import Line, arguments, sft, trainer
from transformers import Trainer

from canary_mlflow import CanaryCallback
from canary_mlflow.gates.model.records import Run
from canary_mlflow.registry.guard.binding import run_digest
from canary_mlflow.tracking.describing.compact import LONGEST_TAG, compact, expanded
from canary_mlflow.tracking.reading.database import read_facts, read_runs_from
from canary_mlflow.tracking.reading.histories import read_runs
from canary_mlflow.tracking.stores.read_only import engine
from canary_mlflow.tracking.stores.session import log_params, log_tags

STEPS, EVERY = 8, 4
MOST = 25  # tags of ours on a run


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny: str) -> Iterator[tuple[MlflowClient, str, str]]:
    """A store with two runs of one script that reports to MLflow itself: without our callback, and with it."""
    place, found = tmp_path_factory.mktemp("project"), []
    uri = f"sqlite:///{place / 'mlflow.db'}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlflow.tracking.fluent._active_experiment_id", None)
        patch.setenv("MLFLOW_EXPERIMENT_ID", "0")  # to be put back: set_experiment sets both
        mlflow.set_tracking_uri(uri)
        mlflow.create_experiment("theirs", str(place / "artifacts"))
        mlflow.set_experiment("theirs")
        for callbacks in ([], [CanaryCallback()]):
            with mlflow.start_run() as run:
                made = sft(tiny, place, callbacks, max_steps=STEPS, logging_steps=EVERY, report_to="mlflow")
                made.train()
                made.evaluate()
            found.append(run.info.run_id)
        yield MlflowClient(uri), found[0], found[1]
        mlflow.set_tracking_uri(None)


def test_the_teams_own_metrics_and_params_are_what_they_were(project: tuple[MlflowClient, str, str]) -> None:
    client, alone, watched = project
    before, after = client.get_run(alone).data, client.get_run(watched).data
    ours = ("perf/", "stability/", "quality/", "trl/", "system/")
    assert {key for key in after.metrics if not key.startswith(ours)} == set(before.metrics)
    for key in ("loss", "grad_norm", "learning_rate", "mean_token_accuracy"):
        then, now = (client.get_metric_history(run, key) for run in (alone, watched))
        assert [one.step for one in now] == [one.step for one in then] == [EVERY, STEPS], key
        assert [one.value for one in now] == pytest.approx([one.value for one in then], rel=1e-3), key
    assert len(client.get_metric_history(watched, "stability/loss")) == STEPS
    set_by_us = ("logging_dir", "run_name", "logging_nan_inf_filter")
    changed = {key for key in before.params if before.params[key] != after.params.get(key)}
    assert changed <= set(set_by_us)
    assert {key for key in after.params if not key.startswith("cfg/")} == set(before.params)


def test_a_param_is_what_somebody_set_and_a_tag_what_one_filters_by(project: tuple[MlflowClient, str, str]) -> None:
    client, _, watched = project
    stored = client.get_run(watched).data
    ours = {key: value for key, value in stored.params.items() if key.startswith("cfg/")}
    assert (ours["cfg/learning_rate"], ours["cfg/max_steps"]) == ("0.003", str(STEPS))
    assert "None" not in ours.values()
    assert not {"cfg/adam_beta1", "cfg/weight_decay", "cfg/logging_nan_inf_filter"} & ours.keys()
    tags = [key for key in stored.tags if key.startswith("canary.")]
    assert len(ours) <= 25
    assert len(tags) <= MOST, tags
    assert {"canary.algo", "canary.seed", "canary.completed", "canary.finite", "canary.watch.level"} <= set(tags)


def test_runs_of_before_read_the_same(project: tuple[MlflowClient, str, str]) -> None:
    """Their tags stood alone, and every setting was a param."""
    client, _, watched = project
    stored = client.get_run(watched)
    said = {key: value for key, value in expanded(stored.data.tags).items() if not key.startswith("canary.more.")}
    told = {key: value for key, value in said.items() if key.startswith("cfg/")}
    old = client.create_run(stored.info.experiment_id).info.run_id
    log_tags(client, old, {key: value for key, value in said.items() if key not in told})
    log_params(client, old, {**stored.data.params, **told})
    run, before = read_runs(client, [watched, old], ())
    assert (run.configuration["adam_beta1"], run.last_step, bool(run.facts)) == ("0.9", STEPS, True)
    assert same(run, before) == same(before, before)
    for one, other in zip(read_runs_from(client.tracking_uri, [watched, old]), (run, before), strict=True):
        assert same(one, other) == same(other, other)
    with engine(client.tracking_uri).connect() as connection:
        (facts,) = read_facts(connection, [watched], params=("cfg/adam_beta1",)).values()
    assert (facts.params, facts.tags["canary.env.torch"]) == ({"cfg/adam_beta1": "0.9"}, run.environment["torch"])


def same(run: Run, of: Run) -> str:
    """The digest of a run as if it were another, without series."""
    return run_digest(replace(run, run_id=of.run_id, series={}))


def test_what_is_recorded_together_is_part_of_the_runs_digest(project: tuple[MlflowClient, str, str]) -> None:
    client, _, watched = project
    tags = {key: value for key, value in client.get_run(watched).data.tags.items() if key.startswith("canary.more.")}
    (run,) = read_runs(client, [watched], ())
    client.set_tag(watched, "canary.env.host", "elsewhere")  # beside what the run recorded itself
    assert run_digest(*read_runs(client, [watched], ())) == run_digest(run)
    client.delete_tag(watched, "canary.env.host")
    parts = set()
    for key, text in tags.items():
        if key == "canary.more.watch":  # but for one value only people's
            continue
        client.delete_tag(watched, key)
        now = run_digest(*read_runs(client, [watched], ()))
        parts.add(tuple(a == b for a, b in zip(now.split("."), run_digest(run).split("."), strict=True)))
        client.set_tag(watched, key, text)
    assert (False, False, True) in parts  # hardware and environment
    assert (False, True, True) in parts  # facts
    assert (True, True, False) in parts  # settings
    assert run_digest(*read_runs(client, [watched], ())) == run_digest(run)


def test_long_parts_go_on_in_the_next_tag_and_shrink_again() -> None:
    long = {f"canary.env.key{at:02}": "x" * 1000 for at in range(20)}
    stored = compact("about", {**long, "canary.role": "run"})
    assert (stored["canary.role"], len(stored)) == ("run", 4)
    assert max(map(len, stored.values())) <= LONGEST_TAG
    assert expanded(stored).items() >= long.items()
    again = {**stored, **compact("about", {"canary.env.key19": "new"})}
    assert expanded(again)["canary.env.key19"] == "new"
    odd = {
        "canary.more.about": "no JSON",
        "canary.more.found": "[" * 7000,
        "canary.more.x.²": json.dumps({"note": "1"}),
    }
    assert expanded(odd).items() - odd.items() == {("canary.note", "1")}


def test_no_run_takes_back_what_a_person_says_of_it() -> None:
    """Marked by hand as no standard, whatever its training wrote before."""
    wrote = {"canary.more.z": json.dumps({"not_promotable": "", "failure": "", "learned": "true"})}
    said = expanded({**wrote, "canary.not_promotable": "a profiler", "canary.failure": "oom"})
    assert (said["canary.not_promotable"], said["canary.failure"]) == ("a profiler", "oom")
    assert said["canary.learned"] == "true"


def test_no_run_fails_for_a_trainers_name(shared: Any, tiny: str, tmp_path: Path) -> None:
    """It takes TRL's arguments, is not made from TRL's trainer, and logs the loss alone."""
    from trl import SFTConfig

    class TheirOwnTrainer(Trainer):
        """A team's own loop."""

    args = arguments(SFTConfig, tmp_path, remove_unused_columns=False, gradient_checkpointing=False)
    data = trainer("", tmp_path, []).train_dataset
    canary = CanaryCallback(tracking_uri=shared.uri)
    TheirOwnTrainer(model=Line(), args=args, train_dataset=data, callbacks=[canary]).train()
    stored = shared.client.get_run(canary.run_id)
    assert (stored.data.tags["canary.completed"], stored.data.tags["canary.failure"]) == ("true", "")
