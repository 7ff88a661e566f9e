"""Preflight: what is refused before torch is loaded or anything is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from canaries import a_config, hub_model, local_model

from canary_mlflow.training import groups
from canary_mlflow.training.assets.tiny import LINEAR_LAYERS, tiny_model_folder
from canary_mlflow.training.command_line import expand, parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.models import layer_names
from canary_mlflow.training.preflight import preflight
from canary_mlflow.training.reward_config import RewardConfig

ROOT = Path(__file__).resolve().parents[2]


def test_the_default_canary_passes():
    preflight(a_config())


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (lambda path: a_config(quantization="nf4"), "use adapter=lora"),
        (lambda path: a_config("jsonl", path / "no.jsonl"), r"no\.jsonl is not a file"),
        (lambda path: a_config("hh-rlhf", path), r"has no train\.jsonl\.gz"),
        (lambda path: a_config("parquet"), r"data\.source is 'parquet'; expected one of embedded, hh-rlhf, jsonl"),
        (lambda path: a_config(model=local_model(path)), r"lacks config\.json"),
    ],
)
def test_each_part_is_checked(tmp_path, config, expected):
    with pytest.raises(SetupError, match=expected):
        preflight(config(tmp_path))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hardware": {"threads": 100_000}}, "hardware.threads is 100000; expected at most"),
        ({"hardware": {"device": "cuda"}}, "hardware.device is cuda, but .*use hardware=cpu"),
        ({"train": {"max_length": 4096}}, "train.max_length is 4096 tokens; expected at most 2048"),
        ({"adapter": {"name": "lora", "target_modules": "dense,nope"}}, "names nope; the model has dense, "),
    ],
)
def test_what_machine_and_model_have_not_is_refused(change, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    config = a_config()
    for part, values in change.items():
        config = replace(config, **{part: replace(getattr(config, part), **values)})

    with pytest.raises(SetupError, match=expected):
        preflight(config)


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        ("cpu", "algo.generation is vllm, and hardware.device is cpu; expected a GPU; use algo.generation=hf"),
        ("auto", "needs the package vllm, which is not installed; pip install vllm, or use algo.generation=hf"),
    ],
)
def test_an_engine_that_is_not_here_is_refused(hardware, expected, monkeypatch):
    monkeypatch.setattr(groups, "find_spec", lambda name: None)
    register_schemas()
    (config,) = check(parse(expand(["algo=grpo", "algo.generation=vllm", f"hardware={hardware}"])))

    with pytest.raises(SetupError, match=expected):
        preflight(config)


def test_a_launcher_may_send_the_runs_to_a_machine_with_a_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    config = a_config()

    preflight(replace(config, hardware=replace(config.hardware, device="cuda")), here=False)


def test_the_layers_of_the_embedded_model_are_those_it_is_said_to_have(tmp_path):
    folder = tiny_model_folder()

    assert layer_names(local_model(folder)) == {*LINEAR_LAYERS, "embed_in"}
    with pytest.raises(SetupError, match=r"algo\.reward\.path=.* lacks config\.json"):
        preflight(ppo_rewarded_by(tmp_path))


def ppo_rewarded_by(folder):
    config = a_config(algo="ppo")
    reward = RewardConfig(kind="model", scale=1.0, path=str(folder))
    return replace(config, algo=replace(config.algo, max_new_tokens=16, reward=reward))


def test_hub_data_that_are_out_of_reach_say_how_to_bring_them(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    with pytest.raises(SetupError) as caught:
        preflight(a_config("hh-rlhf", "Anthropic/hh-rlhf"))

    assert "`hf download Anthropic/hh-rlhf --repo-type dataset`" in str(caught.value)
    assert "data.path=FOLDER" in str(caught.value)


def test_no_check_loads_torch(tmp_path):
    """In a process of its own: this one has torch already."""
    rows = '{"prompt": "p", "chosen": "a", "rejected": "b"}\n' * 3
    (tmp_path / "rows.jsonl").write_text(rows)
    script = f"""
        import sys
        from canaries import a_config, hub_model, local_model
        from canary_mlflow.training.errors import SetupError
        from canary_mlflow.training.preflight import preflight
        from pathlib import Path

        here = Path({str(tmp_path)!r})
        preflight(a_config())
        preflight(a_config("jsonl", here / "rows.jsonl", adapter="lora", quantization="int8"))
        for refused in (
            a_config("hh-rlhf", "Anthropic/hh-rlhf"), a_config(model=hub_model()), a_config(model=local_model(here)),
        ):
            try:
                preflight(refused)
            except SetupError:
                continue
            raise SystemExit("not refused")
        heavy = {{"torch", "transformers", "datasets", "peft", "trl", "bitsandbytes", "tokenizers"}} & set(sys.modules)
        raise SystemExit(", ".join(sorted(heavy)) or 0)
    """
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, f"loaded: {done.stderr}"


def test_a_hub_model_in_the_cache_passes(tmp_path, monkeypatch):
    snapshot = tmp_path / "models--EleutherAI--pythia-70m" / "snapshots" / ("c" * 40)
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("c" * 40)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (snapshot / name).write_text('{"model_type": "gpt_neox"}' if name == "config.json" else "{}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    preflight(a_config(model=hub_model()))
