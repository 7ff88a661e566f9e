"""What `canary register` finds out about weights of somebody's own before a version is made of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tiny_trainers import save_tiny, sft

import canary_mlflow
from canary_mlflow import CanaryCallback
from canary_mlflow.cli import canary
from canary_mlflow.training.check_weights import fault_of_model, fault_of_tokenizer

SAID = "weights {}: its tokenizer knows 2 tokens, that of its runs 300; expected the folder that trainer.save_model()"


def settings(**changed: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changed))

    return change


def without_a_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["gpt_neox.layers.0.attention.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def without_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (settings(), ""),
        (settings(hidden_size=32), "16], its configuration asks for ["),
        (settings(vocab_size=10), "has the shape [300, 16], its configuration asks for [10, 16]"),
        (settings(num_hidden_layers=3), "there are no weights for gpt_neox.layers.2.attention.dense.bias and 11 more"),
        (without_a_tensor, "there are no weights for gpt_neox.layers.0.attention.dense.weight"),
        (lambda folder: (folder / "config.json").write_text("{"), "it cannot be loaded ("),
        (settings(architectures=["MyOwn"], vocab_size=10), ""),  # nobody here can load it
        (lambda folder: (folder / "config.json").unlink(), ""),
        (without_tokenizer, "its tokenizer knows 2 tokens, that of its runs 300"),
    ],
)
def test_what_cannot_be_loaded_is_named(spoil: Callable[[Path], None], says: str, tmp_path: Path) -> None:
    folder = Path(save_tiny(str(tmp_path)))
    spoil(folder)
    said = fault_of_model(folder) or (fault_of_tokenizer(folder, 300) if (folder / "config.json").exists() else "")
    assert (says in said, bool(said)) == (True, bool(says)), said


def test_no_version_is_made_of_weights_without_their_tokenizer(  # of a whole folder: tests/test_tutorial.py
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with canary_mlflow.session("mine") as session:
        trainer = sft(save_tiny(str(tmp_path / "tiny")), tmp_path, [CanaryCallback(watch=None)], max_steps=3)
        trainer.train()
    trainer.model.save_pretrained("bare")
    refused = CliRunner().invoke(canary, ["register", session.session_id, "--weights", "bare"])
    assert (refused.exit_code, SAID.format(tmp_path / "bare") in refused.stderr) == (2, True), refused.stderr
