"""The models: built once, found in a folder or the hub's cache, and refused in one line when they are not there."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import time
from pathlib import Path

import pytest
import torch
from canaries import a_config, local_model, tiny_model

from canary_mlflow.training.assets import cache, tiny
from canary_mlflow.training.config import ModelConfig
from canary_mlflow.training.devices import Device
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.loading import load_model, load_tokenizer
from canary_mlflow.training.models import model_folder, revision_of
from canary_mlflow.training.parts import build_parts

CPU = Device(kind="cpu", precision="fp32")


# --- embedded ---------------------------------------------------------------------------------------------------


def test_parts_depend_on_the_configuration_alone(tiny_folder):
    torch.manual_seed(1)
    first = build_parts(a_config())
    torch.manual_seed(2)
    drawn = torch.rand(1)
    torch.manual_seed(2)
    second = build_parts(a_config())

    assert torch.equal(torch.rand(1), drawn), "building draws nothing from the caller's generator"
    assert first.data == second.data
    weights = zip(first.model.state_dict().items(), second.model.state_dict().items(), strict=True)
    assert all(name == other and torch.equal(a, b) for (name, a), (other, b) in weights)


def test_the_tiny_model_is_a_small_pythia(tiny_folder):
    parts = build_parts(a_config())

    assert type(parts.model).__name__ == "GPTNeoXForCausalLM"
    assert parts.model.num_parameters() < 200_000
    assert Path(parts.model.name_or_path) == tiny_folder, "TRL loads its reference model from there"
    assert len(parts.tokenizer) == 512
    assert parts.tokenizer.pad_token_id != parts.tokenizer.eos_token_id
    assert parts.model.config.pad_token_id == parts.tokenizer.pad_token_id
    text = "Q: How do I bake bread? ça va, 你好 🙂"
    assert parts.tokenizer.decode(parts.tokenizer(text)["input_ids"]) == text


def test_a_rebuilt_model_has_the_same_weights(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CANARY_CACHE", str(tmp_path))
    torch.manual_seed(5)

    again = model_folder(tiny_model())

    assert again != tiny_folder
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (again / name).read_bytes() == (tiny_folder / name).read_bytes()


def _build_slowly(folder: str, log: str) -> None:
    def build(place: Path) -> None:
        with open(log, "a") as file:
            file.write("built\n")
        time.sleep(0.3)
        (place / "weights").write_text("whole")

    import os

    os.environ["CANARY_CACHE"] = folder
    assert (cache.build_once("thing", build) / "weights").read_text() == "whole"


def test_several_processes_at_once_build_one_folder(tmp_path):
    context = multiprocessing.get_context("fork")
    log = tmp_path / "log"
    workers = [context.Process(target=_build_slowly, args=(str(tmp_path / "c"), str(log))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)

    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert log.read_text() == "built\n"


def test_a_damaged_folder_is_built_again(tmp_path, monkeypatch):
    monkeypatch.setenv("CANARY_CACHE", str(tmp_path))
    folder = cache.build_once("thing", lambda place: (place / "weights").write_text("whole"))
    (folder / "weights").write_text("hal")

    again = cache.build_once("thing", lambda place: (place / "weights").write_text("whole"))

    assert (again / "weights").read_text() == "whole"


def test_a_failed_build_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("CANARY_CACHE", str(tmp_path))

    def fail(place: Path) -> None:
        (place / "half").write_text("half")
        raise RuntimeError("no luck")

    with pytest.raises(RuntimeError):
        cache.build_once("thing", fail)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_cache_that_is_no_folder_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CANARY_CACHE", str(tmp_path / "file" / "below"))

    with pytest.raises(SetupError, match=r"cannot be written.*set CANARY_CACHE"):
        tiny.check_tiny_model()
    with pytest.raises(SetupError, match=r"cannot be written.*set CANARY_CACHE"):
        tiny.tiny_model_folder()


def test_the_revision_is_of_the_recipe_not_of_the_versions(tiny_folder, monkeypatch):
    before = revision_of(tiny_model(), tiny_folder)

    monkeypatch.setattr(tiny, "version", lambda package: "99.0")
    assert revision_of(tiny_model(), tiny_folder) == before, "an upgrade must stay comparable"
    assert tiny._place() != tiny_folder.name, "but is built anew"
    monkeypatch.setattr(tiny, "WEIGHT_SEED", 7)
    assert revision_of(tiny_model(), tiny_folder) != before


# --- a local folder ---------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tiny_folder, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def test_a_local_folder_trains_like_the_model_it_holds(folder):
    parts = build_parts(a_config(model=local_model(folder)))

    embedded = build_parts(a_config())
    assert all(
        torch.equal(a, b)
        for a, b in zip(parts.model.state_dict().values(), embedded.model.state_dict().values(), strict=True)
    )


def test_a_local_revision_changes_with_the_weights(folder):
    before = revision_of(local_model(folder), folder)
    assert revision_of(local_model(folder), folder) == before

    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)

    assert revision_of(local_model(folder), folder) != before


@pytest.mark.parametrize(
    ("removed", "expected"),
    [
        ("config.json", "lacks config.json"),
        ("model.safetensors", r"lacks the weights \(model.safetensors\)"),
        ("tokenizer.json", "lacks the tokenizer"),
    ],
)
def test_a_folder_that_is_no_model_names_what_it_lacks(folder, removed, expected):
    (folder / removed).unlink()

    with pytest.raises(SetupError, match=expected):
        model_folder(local_model(folder))


def test_a_missing_shard_is_named(folder, refusal):
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-00001-of-00002.safetensors").touch()

    assert "lacks model-00002-of-00002.safetensors" in refusal(local_model(folder))


@pytest.mark.parametrize(
    ("content", "expected"),
    [("{not json", "is not JSON"), *((one, "has no model_type") for one in ("{}", "[]", "null"))],
)
def test_a_config_that_is_none_is_said(folder, content, expected, refusal):
    (folder / "config.json").write_text(content)

    assert expected in refusal(local_model(folder))


def test_a_path_that_is_no_folder_is_said(tmp_path, refusal):
    assert "is not a folder; expected one with config.json" in refusal(local_model(tmp_path / "nowhere"))
    assert "expected model.path=FOLDER" in refusal(ModelConfig(name="local", source="local"))


def test_an_adapter_alone_is_refused(tmp_path, refusal):
    (tmp_path / "adapter_config.json").write_text("{}")

    assert "holds an adapter only" in refusal(local_model(tmp_path))


def test_weights_that_do_not_fill_the_architecture_are_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))

    with pytest.raises(SetupError, match=r"lacks \d+ weights \(first: gpt_neox\.layers\.2"):
        load_model(a_config(), folder, load_tokenizer(folder), CPU)


def test_damaged_weights_are_refused_in_one_line(folder):
    (folder / "model.safetensors").write_bytes(b"\x00" * 100)

    with pytest.raises(SetupError, match="holds no causal language model that can be loaded") as caught:
        load_model(a_config(), folder, load_tokenizer(folder), CPU)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "keep", "expected"),
    [
        ("model.safetensors", 1000, "model.safetensors is not a whole safetensors file"),
        ("tokenizer.json", 200, "tokenizer.json is not a tokenizer"),
    ],
)
def test_a_half_copied_file_is_found_before_anything_is_loaded(folder, name, keep, expected, refusal):
    (folder / name).write_bytes((folder / name).read_bytes()[:keep])
    assert expected in refusal(local_model(folder))


def test_a_tokenizer_too_large_for_the_model_is_refused(folder):
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens(["extra"])

    with pytest.raises(SetupError, match="has 513 tokens, the model 512"):
        load_model(a_config(), folder, tokenizer, CPU)


def test_padding_falls_back_to_what_the_tokenizer_has(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["pad_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_tokenizer(folder).pad_token == "<|padding|>", "Pythia has one without saying so"

    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    text = json.dumps(tokenizer).replace("<|padding|>", "<|other|>")
    (folder / "tokenizer.json").write_text(text)
    assert load_tokenizer(folder).pad_token == "<|endoftext|>"
