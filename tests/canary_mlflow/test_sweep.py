"""A sweep's verdicts: its jobs' runs are recorded instead of trained, all else is real."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from canary_mlflow.registry.acts.by_hand import bless
from canary_mlflow.tracking.stores.session import name_in_cell
from canary_mlflow.training.command_line import expand, parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.sweep import PARENT, cell_of, label_of, run_sweep, tags_of

SWEEP = ["--multirun", "algo=sft,dpo,ppo", "seed=0,1,2"]
SWEPT = parse(expand(SWEEP))


@pytest.fixture(scope="module")
def configs() -> list[CanaryConfig]:
    register_schemas()
    return check(SWEPT)


@pytest.mark.parametrize(
    ("slower", "ends", "code"),
    [
        ({"sft": 1.0, "dpo": 1.0}, "FINISHED", 0),
        ({"sft": 1.0, "dpo": 1.5}, "FAILED", 1),
    ],
)
def test_each_cell_with_a_champion_is_judged_and_the_worst_decides(
    recorded: Any,
    configs: list[CanaryConfig],
    capsys: pytest.CaptureFixture[str],
    slower: dict[str, float],
    ends: str,
    code: int,
) -> None:
    models = {algo: f"{recorded.model}-{algo}" for algo in ("sft", "dpo", "ppo")}
    for algo in ("sft", "dpo"):
        own = replace(recorded, model=models[algo])
        bless(own.client, own.model, own.register(own.session()), "a baseline for the test")
    recorded.seed += 100  # equal numbers would be suspect
    here = [
        replace(config, tracking=replace(config.tracking, uri=recorded.uri, experiment="recorded"))
        for config in configs
    ]
    parents = []

    def jobs(argv: Sequence[str]) -> None:
        (parent,) = [word.partition("=")[2] for word in argv if word.startswith(f"+hydra.job.env_set.{PARENT}=")]
        parents.append(parent)
        for config in here:
            algo = config.algo.name
            tags = tags_of(config, models[algo], ["algo"])
            recorded.run(parent, config.seed, slower=slower.get(algo, 1.0), tags=tags, nan_at=None, without=())

    versions = len(recorded.client.search_model_versions())
    assert run_sweep(here, SWEEP, jobs) == code
    heading, *lines = capsys.readouterr().out.splitlines()
    words = {"sft": "PASS", "dpo": "PASS" if code == 0 else "BLOCK", "ppo": "no"}
    cells = {line.split()[0]: line.split()[1] for line in lines}
    assert cells == {f"algo={algo}": word for algo, word in words.items()}
    assert heading.split()[:3] == ["cell", "verdict", "eval_loss"]
    parent = recorded.client.get_run(parents[0])
    assert parent.info.status == ends
    assert (parent.info.run_name, parent.data.tags["canary.verdict"]) == ("sweep algo=sft,dpo,ppo", words["dpo"])
    assert "algo=ppo" in parent.data.tags["mlflow.note.content"]
    assert len(recorded.client.search_model_versions()) == versions
    runs = recorded.client.search_runs(
        [parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parents[0]}' and tags.`canary.seed` = '1'"
    )
    told = {run.data.tags["canary.cell_name"]: run.data.tags.get("canary.verdict") for run in runs}
    assert told == {f"algo={algo}": None if word == "no" else word for algo, word in words.items()}


def test_a_cell_is_named_by_what_differs(configs: list[CanaryConfig]) -> None:
    line = parse(["--multirun", "fault=none,lr_high", "train.learning_rate=1e-3,2e-3", "seed=1,2", "tier=smoke"])
    assert line.swept == ("fault=none,lr_high", "train.learning_rate=1e-3,2e-3")
    cell = check(line)[-1]
    assert label_of(cell, ["fault", "train.learning_rate"]) == "fault=lr_high train.learning_rate=0.002"
    assert label_of(configs[0], ()) == "", "seeds alone make one cell"
    assert len(name_in_cell("seed 1", {"canary.cell_name": "x" * 400})) == 250, "which databases have room for"


def test_a_seed_and_a_number_of_runs_make_no_other_cell(configs: list[CanaryConfig]) -> None:
    assert len({cell_of(config) for config in configs}) == 3
    assert cell_of(replace(configs[0], repeats=5)) == cell_of(configs[0])
    assert cell_of(replace(configs[0], register=False)) != cell_of(configs[0])
