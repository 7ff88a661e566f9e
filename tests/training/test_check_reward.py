"""`canary check-reward`: bad reward models told apart from a good one on the embedded data."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import forking
import numpy as np
import pytest
from tiny_trainers import save_tiny
from workplace import ROOT

from canary_mlflow.errors import UsageError
from training.assets import sentences
from training.check_reward import lines, pairs_of_data
from training.reward_checks import Finding, Loaded, RewardCheck, check, load

FINE = tuple(Finding(name=name, fine=True, said="") for name in ("labels", "head", "finite", "padding"))
RUDE = tuple(filter(None, (*sentences.RUDE_OPENINGS, *sentences.RUDE_ENDINGS)))


def quality(text: str) -> float:
    """A noisy judge of the embedded data: answers that are rude lose."""
    return -float(any(words in text for words in RUDE)) + (hash_of(text) % 100) / 150


def hash_of(text: str) -> int:
    return sum(ord(letter) * (at + 7) for at, letter in enumerate(text))


JUDGES: dict[str, Callable[[str], float]] = {
    "good": quality,
    "random": lambda text: float(np.sin(hash_of(text))),
    "reversed": lambda text: -quality(text),
    "constant": lambda text: 0.25,
    "length": lambda text: float(len(text)),
}


def judged(name: str) -> RewardCheck:
    def score(texts: Sequence[str]) -> list[float]:
        return [JUDGES[name](text) for text in texts]

    return check(name, Loaded(score=score, findings=FINE), *pairs_of_data("preferences", 256))


def test_a_good_model_is_told_from_bad_ones() -> None:
    found = {name: judged(name) for name in JUDGES}
    assert [name for name in found if found[name].usable] == ["good"]
    assert found["good"].low > 0.5
    against = {name: " ".join(one.said for one in found[name].findings if one.fine is False) for name in found}
    assert "no better than chance" in against["random"]
    assert "as if the preferences were reversed" in against["reversed"]
    assert against["constant"] == "every text has the same score"
    assert "it scores the length and nothing else" in against["length"]


def test_a_score_that_reads_its_padding_is_found() -> None:
    def score(texts: Sequence[str]) -> list[float]:
        return [quality(text) + 0.5 * (max(map(len, texts)) > len(text)) for text in texts]

    found = check("pads", Loaded(score=score, findings=FINE), *pairs_of_data("preferences", 64))
    assert "a different score alone than in a batch" in " ".join(lines(found))
    assert not found.usable


def test_files_tell_of_a_random_head_and_of_no_pad_token(tmp_path: Path) -> None:
    folder = Path(save_tiny(str(tmp_path)))
    config = json.loads((folder / "config.json").read_text()) | {"num_labels": 1}
    del config["pad_token_id"]
    (folder / "config.json").write_text(json.dumps(config))
    said = {one.name: one for one in load("tiny", folder).findings}
    assert said["head"].fine is False
    assert "which are random" in said["head"].said
    assert said["padding"].fine is False


def test_data_that_are_no_pairs_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"prompt": "a"}\n')
    with pytest.raises(UsageError, match="expected preferences, or a JSONL file with prompt, chosen and rejected"):
        pairs_of_data(str(tmp_path / "data.jsonl"), 8)
    (tmp_path / "data.jsonl").write_text('{"chosen": "a", "rejected": "b"}\n')
    assert pairs_of_data(str(tmp_path / "data.jsonl"), 8) == (["a"], ["b"])


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
