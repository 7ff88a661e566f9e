"""What a run saved is a model that MLflow loads anywhere, whatever was trained on whatever base."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from canaries import a_config, hub_model, local_model
from mlflow import MlflowClient
from safetensors.torch import load_file, save_file
from workplace import Workplace

from canary_mlflow.ledger.chain import Kind
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.training.algorithms import build
from canary_mlflow.training.building import EvaluateAtEnd, repeat_evaluation
from canary_mlflow.training.config import CanaryConfig, TrainConfig
from canary_mlflow.training.devices import settle
from canary_mlflow.training.memory import rounding
from canary_mlflow.training.mlflow_model import policy_of, read_model, write_model
from canary_mlflow.training.parts import Parts, build_parts

COMMIT = "c0ffee" + "0" * 34
PROMPT = "Q: How do I bake bread?\nA:"


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A LoRA session through the command."""
    place = Workplace(folder=tmp_path_factory.mktemp("lora"))
    done = place.canary("run", "algo=sft", "adapter=lora", "repeats=1", "train.max_steps=8")
    assert done.returncode in (1, 3), done.stderr  # so few steps may teach nothing
    return place


def test_a_lora_version_loads_and_names_no_path_of_this_machine(
    lora: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", lora.uri)
    monkeypatch.setenv("HOME", str(lora.folder))  # the embedded base is not looked for in the cache
    version = "models:/sft-tiny-neox-preferences-smoke-lora/1"
    pipeline = mlflow.transformers.load_model(version)
    assert type(pipeline.model).__name__ == "PeftModelForCausalLM"
    assert pipeline(PROMPT, max_new_tokens=4)[0]["generated_text"].startswith(PROMPT)
    assert isinstance(mlflow.pyfunc.load_model(version).predict([PROMPT])[0], str)

    found = MlflowClient(lora.uri).get_model_version("sft-tiny-neox-preferences-smoke-lora", "1")
    assert naming_this_machine(Path(found.source.removeprefix("file://"))) == []


def test_the_session_sealed_what_it_saved_and_evaluated_again(lora: Workplace) -> None:
    begun, ended, seal = registry_of(MlflowClient(lora.uri)).rows("sft-tiny-neox-preferences-smoke-lora")[:3]
    assert (begun.kind, begun.word, ended.word) == (Kind.SESSION, "begun", "ended")
    assert begun.facts["seeds"] == [one["seed"] for one in ended.facts["runs"].values()]
    assert list(ended.facts["weights"].values()) == [seal.facts["artifact"]]
    facts = seal.facts
    assert (seal.kind, facts["weights"], facts["fault"]) == (Kind.SEAL, "files", "")
    assert facts["files"].keys() >= {"MLmodel", "model/model.safetensors", "peft/adapter_model.safetensors"}
    assert facts["evaluation"]["recorded"]["eval_loss"] > 0
    assert facts["evaluation"]["different"] == []


@pytest.mark.full  # every day on recorded runs: tests/canary_mlflow/test_seal.py
def test_a_session_may_keep_its_weights_to_itself(lora: Workplace) -> None:
    short = ("algo=sft", "repeats=1", "gate.min_baseline_runs=1", "train.max_steps=40")
    done = lora.canary("run", *short, "tracking.weights=none", "model_name=evidence")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "evidence only: no weights to load" in said
    assert "Load it as" not in said
    assert "Version 1 became champion. It is evidence only: there are no weights to load." in said


def naming_this_machine(folder: Path) -> list[str]:
    """The files of a version in which a place on this machine stands."""
    places = [str(Path.home()), str(Path.cwd()), "/tmp/", f"{tempfile.gettempdir()}/", "/.cache/"]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path.name for path in files if any(place.encode() in path.read_bytes() for place in places)]


def trained_and_saved(config: CanaryConfig, folder: Path) -> tuple[Any, Parts, CanaryConfig]:
    """Two steps of training, evaluated and written as a session does it; the trainer, and what it was made of."""
    train = {"learning_rate": 1e-2, "gradient_accumulation_steps": 1, "warmup_steps": 0, "max_grad_norm": 1.0}
    rest = {"weight_decay": 0.0, "lr_scheduler": "constant", "optimizer": "adamw_torch"}
    config = replace(config, train=TrainConfig(max_steps=2, batch_size=8, max_length=64, **train, **rest))
    device = settle(config.hardware)
    parts = build_parts(config, device)
    trainer = build(config, parts, device, folder / "trainer", [EvaluateAtEnd()])
    trainer.train()
    write_model(trainer, parts, config, folder / "model", "0" * 32)
    return trainer, parts, config


def saved(config: CanaryConfig, folder: Path) -> tuple[Any, Parts]:
    """The policy alone."""
    trainer, parts, _ = trained_and_saved(config, folder)
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


@pytest.mark.parametrize(
    ("algo", "adapter", "quantization", "precision"),
    [("sft", "full", "none", "fp32"), ("dpo", "full", "none", "bf16"), ("dpo", "lora", "nf4", "fp32")],
)
def test_what_was_saved_evaluates_as_what_was_trained(
    algo: str, adapter: str, quantization: str, precision: str, tmp_path: Path
) -> None:
    config = a_config(algo=algo, adapter=adapter, quantization=quantization)
    config.hardware.precision = precision
    trainer, parts, config = trained_and_saved(config, tmp_path)
    device, place = settle(config.hardware), tmp_path / "model"
    with torch.no_grad():
        for weight in policy_of(trainer).parameters():
            if weight.requires_grad:
                weight.fill_(torch.nan)  # nothing of the trained model may remain
    found = repeat_evaluation(
        trainer, lambda: read_model(config, parts.tokenizer, device, place), rounding(config, device)
    )
    assert found["recorded"].keys() >= {"eval_loss"}
    assert found["different"] == []
    assert quantization != "none" or found["repeated"] == found["recorded"]


def test_other_weights_than_the_trained_ones_are_seen_and_broken_ones_are_said(tmp_path: Path) -> None:
    trainer, parts, config = trained_and_saved(a_config(algo="sft"), tmp_path)
    device, place = settle(config.hardware), tmp_path / "model"
    file = place / "model" / "model.safetensors"
    weights = load_file(file)
    weights["embed_out.weight"] += 0.01 * torch.randn_like(weights["embed_out.weight"])
    save_file(weights, file, metadata={"format": "pt"})

    found = repeat_evaluation(trainer, lambda: read_model(config, parts.tokenizer, device, place), "fp32")
    assert "eval_loss" in found["different"]
    file.write_bytes(file.read_bytes()[:-100])
    broken = repeat_evaluation(trainer, lambda: read_model(config, parts.tokenizer, device, place), "fp32")
    assert "SetupError: " in broken["failure"]
    (place / "components/tokenizer/tokenizer.json").unlink()
    broken = repeat_evaluation(trainer, lambda: read_model(config, parts.tokenizer, device, place), "fp32")
    assert "tokenizer" in broken["failure"]
