"""What a run saved is a model that MLflow loads anywhere, whatever was trained on whatever base."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from canaries import a_config, hub_model, local_model
from mlflow import MlflowClient
from workplace import Workplace

from training.algorithms import build
from training.config import CanaryConfig, TrainConfig
from training.devices import settle
from training.mlflow_model import policy_of, read_model, write_model
from training.parts import Parts, build_parts

COMMIT = "c0ffee" + "0" * 34
PROMPT = "Q: How do I bake bread?\nA:"


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A LoRA session through the command."""
    place = Workplace(folder=tmp_path_factory.mktemp("lora"))
    done = place.canary("run", "algo=sft", "adapter=lora", "repeats=1", "train.max_steps=8")
    assert done.returncode in (0, 1), done.stderr  # so few steps may teach nothing
    return place


def test_a_lora_version_loads_and_names_no_path_of_this_machine(
    lora: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", lora.uri)
    monkeypatch.setenv("HOME", str(lora.folder))  # the embedded base is not looked for in the cache
    version = "models:/sft-tiny-neox-preferences-smoke/1"
    pipeline = mlflow.transformers.load_model(version)
    assert type(pipeline.model).__name__ == "PeftModelForCausalLM"
    assert pipeline(PROMPT, max_new_tokens=4)[0]["generated_text"].startswith(PROMPT)
    assert isinstance(mlflow.pyfunc.load_model(version).predict([PROMPT])[0], str)

    found = MlflowClient(lora.uri).get_model_version("sft-tiny-neox-preferences-smoke", "1")
    assert naming_this_machine(Path(found.source.removeprefix("file://"))) == []


def naming_this_machine(folder: Path) -> list[str]:
    """The files of a version in which a place on this machine stands."""
    places = [str(Path.home()).encode(), str(Path.cwd()).encode(), b"/tmp/", b"/.cache/"]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path.name for path in files if any(place in path.read_bytes() for place in places)]


def saved(config: CanaryConfig, folder: Path) -> tuple[Any, Parts]:
    """Two steps of training, written as a session writes them; returns the policy that was trained."""
    train = {"learning_rate": 1e-2, "gradient_accumulation_steps": 1, "warmup_steps": 0, "max_grad_norm": 1.0}
    rest = {"weight_decay": 0.0, "lr_scheduler": "constant", "optimizer": "adamw_torch"}
    config = replace(config, train=TrainConfig(max_steps=2, batch_size=8, max_length=64, **train, **rest))
    device = settle(config.hardware)
    parts = build_parts(config, device)
    trainer = build(config, parts, device, folder / "trainer", [])
    trainer.train()
    write_model(trainer, parts, config, folder / "model", "0" * 32)
    return policy_of(trainer).eval(), parts


def logits(model: Any, tokenizer: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(**tokenizer([PROMPT], return_tensors="pt")).logits


@pytest.mark.parametrize("quantization", ["none", "nf4", "int8"])
def test_an_adapter_on_any_base_loads_on_a_machine_without_that_base(
    quantization: str, tiny_folder: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(tiny_folder, tmp_path / "base"))
    config = a_config(algo="sft", adapter="lora", quantization=quantization, model=local_model(base))
    trained, parts = saved(config, tmp_path)
    shutil.rmtree(base)

    again = read_model(config, parts.tokenizer, settle(config.hardware), tmp_path / "model").eval()
    # TRL trains an adapter on a quantized base in bfloat16, PEFT loads it in float32.
    said, rounding = logits(trained, parts.tokenizer), 0.0 if quantization == "none" else 0.01
    assert torch.allclose(logits(again, parts.tokenizer), said, rtol=0, atol=rounding)
    loaded = mlflow.transformers.load_model(str(tmp_path / "model"))
    # MLflow loads the base as it is kept: in full precision, whatever it was held in while the adapter was trained.
    near = {"none": 1e-6, "nf4": 0.2, "int8": 0.02}[quantization]
    assert torch.allclose(logits(loaded.model, loaded.tokenizer), said, rtol=0, atol=near)
    assert naming_this_machine(tmp_path / "model") == []


def test_an_adapter_on_a_hub_model_names_its_base_by_id_and_commit(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    place = tmp_path / "hub" / "models--EleutherAI--pythia-70m"
    shutil.copytree(tiny_folder, place / "snapshots" / COMMIT)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    config = a_config(algo="sft", adapter="lora", model=hub_model())
    trained, parts = saved(config, tmp_path)

    adapter = json.loads((tmp_path / "model" / "peft" / "adapter_config.json").read_text())
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == ("EleutherAI/pythia-70m", COMMIT)
    assert not (tmp_path / "model" / "model").exists()  # nobody keeps what the hub keeps
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    loaded = mlflow.transformers.load_model(str(tmp_path / "model"))
    assert torch.allclose(logits(loaded.model, loaded.tokenizer), logits(trained, parts.tokenizer), atol=1e-6)
