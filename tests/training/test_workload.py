"""What a session is compared with, known before anything is recorded: its data, its work, the name of its model."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from canaries import a_config, local_model
from mlflow import MlflowClient
from transformers import GPTNeoXConfig, GPTNeoXForSequenceClassification
from workplace import Workplace

from canary_mlflow.errors import UsageError
from canary_mlflow.registry.acts.by_hand import bless
from canary_mlflow.registry.sessions.registering import register_version
from canary_mlflow.registry.versions import Weights
from canary_mlflow.tracking.stores.session import close_run, create_child_run, finish_session, open_session
from canary_mlflow.tracking.stores.store import prepare_store
from canary_mlflow.training.assets.tiny import tiny_model_folder
from canary_mlflow.training.command_line import parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.devices import Device
from canary_mlflow.training.naming import choose_model_name, default_model_name
from canary_mlflow.training.parts import prepare_inputs
from canary_mlflow.training.reward_config import RewardConfig
from canary_mlflow.training.workload import describe

CPU = Device(kind="cpu", precision="fp32")


def composed(*words: str) -> CanaryConfig:
    register_schemas()
    return check(parse([*words, "hardware=cpu"]))[0]


def work(config: CanaryConfig) -> dict[str, str]:
    return describe(config, prepare_inputs(config), CPU)


def champion(uri: str, model: str, workload: Mapping[str, str]) -> MlflowClient:
    """A champion whose only run declares this work."""
    client = prepare_store(uri)
    session = open_session(client, "canary", model, {})
    tags = {"canary.completed": "true", **{f"canary.workload.{key}": value for key, value in workload.items()}}
    run = create_child_run(client, session, "seed 0", tags, {})
    close_run(client, run)
    finish_session(client, session, "FINISHED")
    version = register_version(client, model, session, run, weights=Weights.NONE)
    bless(client, model, version, "what the test begins with")
    return client


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


def test_another_reward_ends_before_training_and_names_a_model_of_its_own(workplace: Workplace) -> None:
    model = "ppo-tiny-neox-preferences-smoke"
    client = champion(workplace.uri, model, work(composed("algo=ppo")))
    before = names_of_runs(client)
    done = workplace.train("algo=ppo", "hardware=cpu", "repeats=1", "algo.reward.scale=5", "register=false")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert f"model '{model}': its champion did other work (reward_scale 10.0, here 5.0)" in done.stderr
    assert re.search(rf"; write model_name={model}-[0-9a-f]{{8}}\n", done.stderr)
    assert names_of_runs(client) == before


def test_own_data_have_a_model_of_their_own_and_held_out_rows_that_are_trained_on_are_said(
    workplace: Workplace,
) -> None:
    data = pairs(workplace.folder / "my rows.v2.jsonl", answers=20, repeated=2)
    words = ["algo=sft", "adapter=lora", "data=jsonl", f"data.path='{data}'", "repeats=1", "train.max_steps=8"]
    done = workplace.train(*words)
    for place in (done.stderr, done.stdout):  # before the training, and in the report
        (said,) = re.findall(r"(\d+) of 8 held-out rows are training rows too", place)
        assert int(said) > 0
    client = MlflowClient(workplace.uri)
    (model,) = client.search_registered_models()
    assert re.fullmatch(r"sft-tiny-neox-my-rows-smoke-lora-[0-9a-f]{8}", model.name)


def test_the_name_to_use_is_free_and_is_taken(tmp_path: Path) -> None:
    config = a_config(algo="sft")
    usual = work(replace(config, train=replace(config.train, max_steps=10)))
    client = champion(f"sqlite:///{tmp_path}/mlflow.db", "mine", usual)
    assert choose_model_name(client, replace(config, model_name="mine"), usual) == "mine"

    other = {**usual, "max_steps": "20", "batch_size": "2"}
    expected = "its champion did other work (batch_size 8, here 2, max_steps 10, here 20)"
    with pytest.raises(UsageError, match=re.escape(expected)) as refused:
        choose_model_name(client, replace(config, model_name="mine"), other)
    assert str(refused.value).endswith("; write model_name=sft-tiny-neox-embedded-smoke")

    champion(client.tracking_uri, "sft-tiny-neox-embedded-smoke", usual)
    with pytest.raises(UsageError, match="write model_name=") as refused:
        choose_model_name(client, config, other)
    free = str(refused.value).rpartition("=")[2]
    assert re.fullmatch(r"sft-tiny-neox-embedded-smoke-[0-9a-f]{8}", free)
    champion(client.tracking_uri, free, other)
    assert choose_model_name(client, replace(config, model_name=free), other) == free
    with pytest.raises(UsageError, match="other work"):
        choose_model_name(client, replace(config, model_name=free), usual)


def test_the_default_name_tells_workloads_apart() -> None:
    digests = {"model_revision": "0123456789abcdef", "data_digest": "fedcba9876543210"}
    folder = local_model(Path("/somewhere/Müller's model"))
    names = {
        default_model_name(config, digests)
        for config in (
            a_config(),
            a_config(adapter="lora"),
            a_config(adapter="lora", quantization="nf4"),
            a_config(model=folder),
            a_config("jsonl", "/data/chats.jsonl.gz"),
            a_config("hh-rlhf", "Anthropic/hh-rlhf"),
        )
    }
    assert names == {
        "dpo-tiny-neox-embedded-smoke",
        "dpo-tiny-neox-embedded-smoke-lora",
        "dpo-tiny-neox-embedded-smoke-lora-nf4",
        "dpo-M-ller-s-model-embedded-smoke-01234567",
        "dpo-tiny-neox-chats-smoke-fedcba98",
        "dpo-tiny-neox-hh-rlhf-smoke",
    }
    assert default_model_name(composed(), digests) == "dpo-tiny-neox-preferences-smoke"  # the README's


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
