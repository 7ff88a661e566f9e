"""`canary check-reward`: bad reward models told apart from a good one on the embedded data, all of them folders. How
many of each kind are told apart: benchmarks/reward_models.py."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import forking
import numpy as np
import pytest
import reward_folders
from scipy.stats import beta
from tiny_trainers import save_tiny
from workplace import ROOT

from canary_mlflow.errors import UsageError
from canary_mlflow.training.datasets import embedded
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.reward_checks import CheckResult, Loaded, check, interval, load, pairs_of_data, untrained
from canary_mlflow.training.reward_sources import reward_folder


def checked(folder: str, *words: str) -> tuple[int, dict[str, Any]]:
    """What the command says of a folder: its exit code, and its JSON, with the findings by name in their place."""
    command = [forking.python(), "-m", "canary_mlflow.cli", "check-reward", folder, *words, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout or "{}")
    return done.returncode, {**found, "share": found.get("accuracy"), **{one["name"]: one for one in found["findings"]}}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> str:
    return reward_folders.trained(tmp_path_factory.mktemp("good"))


def test_a_good_model_is_usable_and_its_order_has_an_interval(good: str) -> None:
    code, found = checked(good, "--data", "preferences")
    assert (code, found["usable"]) == (0, True), found
    assert 0.7 < found["low"] < found["share"] < found["high"]
    assert found["pairs"] > 200  # of 256, each once


# `head`: half of all random heads on a trained model order its pairs rightly
BAD: dict[str, tuple[Callable[[str, Path], str], str, str]] = {
    "untrained": (lambda good, place: reward_folders.untrained(place, 11), "trained",
                  "its head is not trained for this"),
    "head": (lambda good, place: reward_folders.changed(good, place, reward_folders.drawn(1001)), "trained",
              "its head is not trained for this"),
    "reversed": (lambda good, place: reward_folders.changed(good, place, lambda head: head.neg_()), "accuracy",
                 "as if the preferences were reversed"),
    "constant": (lambda good, place: reward_folders.changed(good, place, lambda head: head.zero_()), "accuracy",
                 "every text has the same score"),
    "length": (lambda good, place: reward_folders.by_length(place), "trained", "its head is not trained for this"),
    "padding": (lambda good, place: reward_folders.reads_padding(good, place), "padding", "so padding is read"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_models_are_told_apart(good: str, tmp_path: Path, kind: str) -> None:
    make, name, words = BAD[kind]
    code, found = checked(make(good, tmp_path / kind), "--data", "preferences")
    assert (code, found["usable"]) == (1, False), found
    assert found[name]["fine"] is False
    assert words in found[name]["said"]


def test_pairs_of_ones_own_are_read_from_a_file(good: str, tmp_path: Path) -> None:
    rows = [embedded.make_row(number) for number in range(40)]
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps({"prompt": row.prompt, "chosen": row.rejected, "rejected": row.chosen}) + "\n"
                            for row in rows))  # fmt: skip
    code, found = checked(good, "--data", str(data))
    assert (code, found["pairs"]) == (1, 40)
    assert "as if the preferences were reversed" in found["accuracy"]["said"]


def test_the_interval_is_clopper_and_pearsons() -> None:
    assert interval(0.75, 80) == pytest.approx((beta.ppf(0.025, 60, 21), beta.ppf(0.975, 61, 20)))
    assert interval(1.0, 5)[0] < 0.5 < interval(1.0, 6)[0]
    assert interval(0.0, 5)[0] == 0.0


def test_too_few_pairs_to_tell_any_model_from_chance_decide_nothing(good: str, tmp_path: Path) -> None:
    row = embedded.make_row(0)
    pair = {"prompt": row.prompt, "chosen": row.chosen, "rejected": row.rejected}
    (tmp_path / "one.jsonl").write_text(f"{json.dumps(pair)}\n" * 20)
    code, found = checked(good, "--data", str(tmp_path / "one.jsonl"))
    assert (code, found["outcome"], found["usable"]) == (3, "INCONCLUSIVE", False)
    assert found["accuracy"]["fine"] is None
    assert found["accuracy"]["said"].endswith("too few to tell any model from chance")


def test_random_heads_seldom_seem_trained_whatever_model_they_are_on() -> None:
    draw = np.random.default_rng(1)
    seems = 0
    for _ in range(100):
        shared = draw.normal(size=16) * draw.exponential(size=16) ** 2  # what all pairs differ in alike
        better = draw.normal(size=(40, 16)) + shared
        seems += untrained(draw.normal(size=16), better, np.zeros_like(better)) < 0.05
    assert seems <= 12
    assert untrained(shared, better, np.zeros_like(better)) < 0.05


def test_files_tell_of_a_random_head_and_of_no_pad_token(tmp_path: Path) -> None:
    folder = Path(save_tiny(str(tmp_path)))
    config = json.loads((folder / "config.json").read_text()) | {"num_labels": 1}
    del config["pad_token_id"]
    (folder / "config.json").write_text(json.dumps(config))
    said = {one.name: one for one in load("tiny", folder).findings}
    assert said["head"].fine is False
    assert "which are random" in said["head"].said
    assert said["padding"].fine is False


def test_an_adapter_alone_is_no_model_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(SetupError, match="holds an adapter only; expected a whole model; merge it first"):
        reward_folder(str(tmp_path))


def test_data_that_are_no_pairs_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"prompt": "a"}\n')
    with pytest.raises(UsageError, match="expected preferences, or a JSONL file with prompt, chosen and rejected"):
        pairs_of_data(str(tmp_path / "data.jsonl"), 8)
    (tmp_path / "data.jsonl").write_text('{"chosen": "a", "rejected": "b"}\n')
    assert pairs_of_data(str(tmp_path / "data.jsonl"), 8) == (["a"], ["b"])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "a", "chosen": "b"}, "line 2: no rejected; expected preferences"),
        ({"chosen": "b", "rejected": None}, "line 2: rejected is null"),
        ({"chosen": "b", "rejected": 5}, "line 2: rejected is a number"),
        ({"chosen": [{"role": "assistant", "content": "b"}], "rejected": "c"}, "line 2: chosen is a list"),
        ({"prompt": "a", "chosen": "b", "rejected": " "}, "line 2: rejected is empty"),
        (["b", "c"], "line 2: a list"),
    ],
)
def test_what_is_no_text_is_not_scored_as_one(tmp_path: Path, row: object, words: str) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(f'{{"chosen": "a", "rejected": "b"}}\n{json.dumps(row)}\n')
    with pytest.raises(UsageError, match=words):
        pairs_of_data(str(data), 8)


class Scored:
    """A classifier's scores of texts."""

    def __init__(self, of: Callable[[str], float]) -> None:
        self.of = of

    def loaded(self, most: int = 99) -> Loaded:
        def score(texts: Sequence[str]) -> tuple[np.ndarray, None]:
            return np.array([self.of(text) for text in texts]), None

        padding = CheckResult(name="padding", fine=True, said="")
        return Loaded(score=score, tokens=lambda texts: [[ord(one) for one in text[:most]] for text in texts],
                      head=None, findings=(padding,))  # type: ignore[arg-type]  # fmt: skip


PAIRS = ([f"text {at} is good {'!' * (at % 9)}" for at in range(40)],
         [f"text {at} is bad {'?' * (at % 7)}" for at in range(40)])  # fmt: skip


def test_scores_that_are_no_numbers_block_and_pairs_that_are_cut_alike_tell_nothing() -> None:
    broken = check("m", Scored(lambda text: math.nan).loaded(), *PAIRS)
    assert (broken.outcome, broken.findings[-1].said) == ("BLOCK", "80 of 80 scores are NaN or infinite")
    cut = check("m", Scored(lambda text: float(sum(map(ord, text[:7])))).loaded(most=7), *PAIRS)
    assert cut.outcome == "INCONCLUSIVE", cut
    assert "the same 7 tokens or fewer, whole or cut: nothing to rank" in str(cut.findings)


def test_the_command_ends_with_1_for_a_model_without_a_head(tmp_path: Path) -> None:
    folder = save_tiny(str(tmp_path))
    command = [forking.python(), "-m", "canary_mlflow.cli", "check-reward", folder, "--rows", "16", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["usable"] is False
    assert "BLOCK  " in done.stderr
    nowhere = subprocess.run([*command[:4], "./nowhere"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (nowhere.returncode, nowhere.stderr.count("\n")) == (2, 1)


def trained(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One run that nobody registers, in a store of its own."""
    own = ("repeats=1", "register=false", "tracking.uri=sqlite:///mlflow.db", "hardware=cpu")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [forking.python(), "-m", "training", *words, *own], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_a_bad_reward_model_ends_a_session_before_anything_is_recorded(tmp_path: Path) -> None:
    folder = save_tiny(str(tmp_path / "random"))
    done = trained(tmp_path, "algo=grpo", "algo.reward.kind=model", f"algo.reward.path={folder}")
    assert done.returncode == 2, done.stderr
    (said,) = done.stderr.strip().splitlines()
    assert f"reward model {folder}: 2 labels; expected 1" in said
    assert "algo.reward.precheck=false trains all the same" in said
    assert not list(tmp_path.rglob("*.db"))


@pytest.mark.full
def test_a_reward_model_that_a_canary_made_is_tried_and_trained_with(tmp_path: Path) -> None:
    assert trained(tmp_path, "algo=reward").returncode in (0, 3)
    (weights,) = tmp_path.rglob("artifacts/**/model.safetensors")
    words = ("algo=ppo", "algo.reward.kind=model", f"algo.reward.path={weights.parent}", "train.max_steps=2")
    done = trained(tmp_path, *words)
    assert "pairs ranked correctly" in done.stderr
    assert "seed 0" in done.stdout + done.stderr
    sweep = trained(tmp_path, "--multirun", *words, "seed=1,2")
    assert sweep.stderr.count("pairs ranked correctly") == 1  # once for all jobs
    unasked = trained(tmp_path, *words, "algo.reward.precheck=false")
    assert "pairs ranked correctly" not in unasked.stderr
