"""What a session is compared with, settled before anything is recorded: its data and its work."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from canaries import a_config
from mlflow import MlflowClient
from transformers import GPTNeoXConfig, GPTNeoXForSequenceClassification
from workplace import Workplace

from training.assets.tiny import tiny_model_folder
from training.config import CanaryConfig, RewardConfig
from training.devices import Device
from training.parts import prepare_inputs
from training.workload import describe

CPU = Device(kind="cpu", precision="fp32")


def work(config: CanaryConfig) -> dict[str, str]:
    return describe(config, prepare_inputs(config), CPU)


def names_of_runs(client: MlflowClient) -> list[str]:
    experiments = [item.experiment_id for item in client.search_experiments()]
    return sorted(run.info.run_name for run in client.search_runs(experiments))


def pairs(path: Path, answers: int, repeated: int = 1) -> Path:
    """Pairs with `answers` answers that differ, each `repeated` times; 50 whose two answers are equal for none."""
    rows = [{"prompt": f"Q{i}", "chosen": f"good {i}", "rejected": "bad"} for i in range(answers)] * repeated
    rows = rows or [{"prompt": f"Q{i}", "chosen": "same", "rejected": "same"} for i in range(50)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_data_that_leave_nothing_are_refused_with_nothing_recorded(workplace: Workplace) -> None:
    data = pairs(workplace.folder / "equal.jsonl", answers=0)
    done = workplace.train("algo=sft", "data=jsonl", f"data.path={data}", "repeats=1", "train.max_steps=4")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "leaves 0 training and 0 held-out rows after dropping 50 pairs that are equal" in done.stderr
    assert names_of_runs(MlflowClient(workplace.uri)) == []


def test_held_out_rows_that_are_trained_on_are_said(workplace: Workplace) -> None:
    data = pairs(workplace.folder / "rows.jsonl", answers=20, repeated=2)
    done = workplace.train("algo=sft", "data=jsonl", f"data.path={data}", "repeats=1", "train.max_steps=8")
    said = re.findall(r"(\d+) of 8 held-out rows equal training rows", done.stderr)
    assert len(said) == 2, done.stderr  # before the training, and in the report
    assert int(said[0]) > 0


def rewarded(**reward: object) -> CanaryConfig:
    config = a_config(algo="ppo")
    return replace(config, algo=replace(config.algo, reward=RewardConfig(scale=10.0, **reward)))  # type: ignore[arg-type]


def test_each_reward_is_work_of_its_own_but_for_what_its_kind_ignores() -> None:
    length = work(rewarded(kind="length", target=6))
    assert work(rewarded(kind="length", target=6, tokens=["a"], path="/nowhere")) == length
    others = [
        work(rewarded(kind="length", target=7)),
        work(rewarded(kind="token_share", target=6, tokens=["a"])),
        work(rewarded(kind="token_share", target=6, tokens=["b"])),
    ]
    assert len({json.dumps(each) for each in (length, *others)}) == 4


def test_a_reward_model_is_told_by_its_files_not_by_where_they_lie(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(tiny_model_folder(), here)
    small = GPTNeoXConfig(
        vocab_size=512, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=1
    )
    torch.manual_seed(0)
    GPTNeoXForSequenceClassification(small).save_pretrained(here)
    shutil.copytree(here, there)
    first = work(rewarded(kind="model", path=str(here)))
    assert first == work(rewarded(kind="model", path=str(there)))
    assert str(tmp_path) not in json.dumps(first)
    GPTNeoXForSequenceClassification(small).save_pretrained(there)
    changed = work(rewarded(kind="model", path=str(there)))
    assert {key for key in first if first[key] != changed[key]} == {"reward_revision"}
