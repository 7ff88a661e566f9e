"""A session ends when its verdict is certain, in its first steps or after a run, and is judged rightly then."""

from __future__ import annotations

import re

import pytest
from mlflow import MlflowClient
from workplace import Workplace

from canary_mlflow.tracking.describing.compact import expanded
from canary_mlflow.tracking.stores.session import child_runs

FEW = ["train.max_steps=40", "tier.train_rows=320", "tier.eval_rows=16", "gate.fail_fast=true"]
MODEL = "dpo-tiny-neox-preferences-smoke"


def sessions(work: Workplace) -> list[str]:
    client = MlflowClient(work.uri)
    homes = [one.experiment_id for one in client.search_experiments()]
    found = client.search_runs(homes, "tags.`canary.role` = 'session'", order_by=["attributes.start_time DESC"])
    return [run.info.run_id for run in found]


def ended_at(work: Workplace, session: str) -> list[int]:
    return [int(expanded(run.data.tags)["canary.last_step"]) for run in child_runs(MlflowClient(work.uri), session)]


def test_certain_harm_ends_a_session_and_nothing_takes_it_up(workplace: Workplace) -> None:
    began = workplace.train("algo=dpo", "repeats=2", *FEW)
    assert began.returncode == 0, began.stderr
    harmed = workplace.train("algo=dpo", "repeats=3", "fault=wrong_reference", *FEW)
    assert harmed.returncode == 1, harmed.stderr
    assert harmed.stdout.startswith("BLOCK")
    saved = re.search(r"ended at step (\d+) of 40; not made: seeds 1, 2; saved: (\d+) steps", harmed.stderr)
    assert saved is not None, harmed.stderr
    assert saved.groups() == ("4", "116")
    session = sessions(workplace)[0]
    assert ended_at(workplace, session) == [4]
    client = MlflowClient(workplace.uri)
    assert [str(one.version) for one in client.search_model_versions()] == ["1"]

    # What shows only at the end of a run: its other seeds are not made, and no version is.
    late = workplace.train(
        "algo=dpo", "repeats=3", "fault=no_learning", *FEW, "gate.top_up=true", "watch.on_critical=warn"
    )
    assert late.returncode == 1, late.stderr
    assert ended_at(workplace, sessions(workplace)[0]) == [40]
    assert "not made: seeds 1, 2; saved: 80 steps" in late.stderr
    assert [str(one.version) for one in client.search_model_versions()] == ["1"]
    assert str(client.get_model_version_by_alias(MODEL, "champion").version) == "1"
    audited = workplace.canary("audit", "verify", "--tracking-uri", workplace.uri)
    assert audited.returncode == 0, audited.stdout + audited.stderr


@pytest.mark.full
def test_what_may_pass_goes_on(workplace: Workplace) -> None:
    assert workplace.train("algo=dpo", "repeats=2", *FEW).returncode == 0
    same = workplace.train("algo=dpo", "repeats=3", *FEW)
    assert same.returncode in (0, 3), same.stderr
    assert ended_at(workplace, sessions(workplace)[0]) == [40, 40, 40]
