"""A trainer that is built before its run's turn is the one that would be built then."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from canary_mlflow.training.building import SMALL, Ahead, build_ahead, build_run, is_small, put_in_place
from canary_mlflow.training.command_line import parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.devices import Device
from canary_mlflow.training.parts import Inputs, prepare_inputs
from canary_mlflow.training.plain import to_plain

CPU = Device(kind="cpu", precision="fp32")
WORDS = ["algo=sft", "hardware=cpu", "tier.train_rows=32", "tier.eval_rows=8", "train.max_steps=4"]


def a_run(*words: str) -> tuple[CanaryConfig, Inputs]:
    register_schemas()
    config = check(parse([*WORDS, *words]))[0]
    return config, prepare_inputs(config)


def test_whatever_was_drawn_before_the_trainer_and_what_it_draws_are_the_same(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config, inputs = a_run("seed=3")
    seen: list[Any] = []
    for before in (1, 2):
        torch.manual_seed(before)
        np.random.seed(before)
        built = build_run(config, inputs, CPU, tmp_path)
        drawn = torch.rand(2).tolist(), np.random.rand(2).tolist()
        seen.append((drawn, [value.tolist() for value in built.trainer.model.state_dict().values()]))
    assert seen[0] == seen[1]


def test_what_was_built_is_for_one_configuration(tiny_folder: Path, tmp_path: Path) -> None:
    config, inputs = a_run("seed=3")
    ahead = build_ahead(to_plain(config), config, inputs, CPU, tmp_path)
    assert ahead.take(to_plain(replace(config, seed=4))) is None
    assert ahead.take(to_plain(config)) is ahead.built is not None


def test_what_building_raises_is_kept_for_the_turn_of_its_run(tiny_folder: Path, tmp_path: Path) -> None:
    config, inputs = a_run()
    ahead = build_ahead(to_plain(config), config, replace(inputs, folder=tmp_path / "gone"), CPU, tmp_path)
    assert ahead.built is None
    assert ahead.take(to_plain(replace(config, seed=4))) is None
    with pytest.raises(type(ahead.error)):  # type: ignore[arg-type]
        ahead.take(to_plain(config))


def test_only_a_small_model_on_a_cpu_is_built_ahead(tiny_folder: Path, tmp_path: Path) -> None:
    _, inputs = a_run()
    assert is_small(inputs, CPU)
    assert not is_small(inputs, Device(kind="cuda", precision="fp32"))
    assert not is_small(inputs, Device(kind="cpu", precision="fp32", ranks=2))
    (tmp_path / "model.safetensors").touch()
    os.truncate(tmp_path / "model.safetensors", SMALL + 1)
    assert not is_small(replace(inputs, folder=tmp_path), CPU)


class Sees(TrainerCallback):
    """Notes its name at each step."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(self.name + ("!" if control.should_evaluate else ""))


def test_callbacks_see_each_step_in_order(tiny_folder: Path, tmp_path: Path) -> None:
    """Those in front of the last evaluation's before it is asked for, the others after."""
    config, inputs = a_run()
    built = build_run(config, inputs, CPU, tmp_path)
    seen: list[str] = []
    put_in_place(built.trainer, built.evaluate, [Sees("a", seen), Sees("b", seen), built.evaluate, Sees("c", seen)])
    built.trainer.train()
    assert seen == ["a", "b", "c"] * 3 + ["a", "b", "c!"]


def test_an_ahead_is_compared_by_content() -> None:
    ahead = Ahead(plain={"a": 1, "b": [2]}, error=ValueError("x"))
    with pytest.raises(ValueError, match="x"):
        ahead.take({"b": [2], "a": 1})
