"""`canary plan`: what a configuration needs is counted without its weights, and what cannot fit is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import schemas

from canary_mlflow.training import planning
from canary_mlflow.training.command_line import parse
from canary_mlflow.training.compose import check, register_schemas
from canary_mlflow.training.devices import Device
from canary_mlflow.training.footprint import footprint

QWEN_7B = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "tie_word_embeddings": False,
}  # fmt: skip
QWEN_HALF = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
    "tie_word_embeddings": True,
}  # fmt: skip
LLAMA_7B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000,
}  # fmt: skip
PARAMETERS = 7_615_616_512  # by the model's card


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, int]:
    code = planning.main([*words, "--json"])
    said, _ = capsys.readouterr()
    found = json.loads(said)
    schemas.check("plan", found)
    assert code in (0, 2)
    return dict(found)


def test_every_part_is_counted_from_the_shapes_alone(capsys: pytest.CaptureFixture[str]) -> None:
    full = planned(capsys, "algo=dpo")
    fp32 = pytest.approx(4 * full["parameters"], rel=0.001)  # and a buffer or two
    assert full["weights"] == fp32
    assert full["reference"] == fp32  # DPO keeps a frozen copy
    assert full["trained"] == full["parameters"]
    assert full["total"] == full["counted"] > sum(full[part] for part in ("weights", "reference", "gradients"))
    lora = planned(capsys, "algo=dpo", "adapter=lora")
    assert lora["trained"] * 5 < full["trained"]
    assert lora["reference"] == 0  # the model without its adapter is the reference
    assert lora["optimizer"] * 5 < full["optimizer"]


@pytest.fixture
def seven(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_7B))
    return f"model.path={tmp_path}"


@pytest.mark.full
def test_seven_billion_need_no_weight_on_disk(
    seven: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning.devices, "memory", lambda kind: 80 * 2**30)  # a card that is not here
    found = planned(capsys, "model=local", seven, "adapter=lora", "memory=saving", "train.batch_size=1")
    assert found["parameters"] - found["trained"] == PARAMETERS
    assert [planning.counted(number) for number in (165_600, PARAMETERS)] == ["165,600", "7.62 billion"]
    assert found["weights"] == pytest.approx(2 * PARAMETERS + 4 * found["trained"], rel=0.001)  # bf16, LoRA in fp32


def test_what_cannot_fit_is_refused_with_keys_that_take_less(
    seven: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning.devices, "memory", lambda kind: 24 * 2**30)
    assert planning.main(["model=local", seven]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("canary: algo=dpo model=local adapter=full needs 143.9 GiB")
    assert "and this machine has 24.0 GiB" in said[0]
    assert "memory=saving, adapter=lora" in said[0]


LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
}  # fmt: skip
NO_MODEL = {
    "null": (None, "has no model_type"),
    "no causal one": ({"model_type": "t5"}, "holds no causal language model that can be loaded"),
    "unknown": ({**LLAMA, "model_type": "unheard-of"}, "holds no causal language model that can be loaded"),
    "a text for a number": ({**LLAMA, "hidden_size": "64"}, "expected int, got str"),
    "a vocabulary of no model": ({**LLAMA, "vocab_size": 10**9}, "vocab_size is 1,000,000,000; expected at most"),
    "its own code": ({**LLAMA, "model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}, "needs its own code"),
    "quantized": (
        {**LLAMA, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        "its files hold weights quantized to nf4, which take no gradient; expected adapter=lora",
    ),
    "quantized otherwise": (
        {**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4}},
        "its files hold weights in gptq, which canary plan cannot count",
    ),
}


@pytest.mark.parametrize("name", NO_MODEL)
def test_a_model_that_cannot_be_trained_is_refused_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written, expected = NO_MODEL[name]
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert planning.main(["algo=sft", "model=local", f"model.path={tmp_path}"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert expected in said


def test_no_plan_is_made_of_what_could_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert planning.main(["algo=sft", "hardware=auto", "parallel=fsdp2", "hardware.ranks=2"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "parallel=fsdp2" in said


def test_weights_that_are_stored_quantized_count_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("algo=sft", "adapter=lora", "model=local", f"model.path={tmp_path}")
    weights = []
    for how in ({}, {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}):
        (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **how}))
        weights.append(planned(capsys, *words)["weights"])
    in_linear_layers = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128)
    assert weights[0] - weights[1] == 3 * in_linear_layers  # a byte each in place of four


def test_all_experts_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **own, "model_type": "qwen3_moe"}))
    found = planned(capsys, "algo=sft", "model=local", f"model.path={tmp_path}")
    assert found["weights"] == pytest.approx(4 * found["parameters"], rel=0.001)
    assert found["parameters"] > 2 * 8 * 3 * 64 * 32
    assert found["activations"] > 0


ON_H200 = [  # MiB that torch's allocator gave out at most on an H200: benchmarks/memory_on_card.py, 2026-11-26
    ("dpo", QWEN_HALF, (), 12440),
    pytest.param("sft", QWEN_HALF, (), 10410, marks=pytest.mark.full),
    pytest.param("sft", LLAMA_7B, ("adapter=lora",), 28694, marks=pytest.mark.full),
]


@pytest.mark.parametrize(("algo", "shape", "words", "measured"), ON_H200)
def test_a_gpus_operators_are_counted(
    algo: str, shape: dict[str, Any], words: tuple[str, ...], measured: int, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**shape, "torch_dtype": "bfloat16", "pad_token_id": 1}))
    register_schemas()
    (config,) = check(parse([f"algo={algo}", "model=local", f"model.path={tmp_path}", *words]))
    found = footprint(config, tmp_path, Device(kind="cuda", precision="bf16"))
    assert found.total / planning.MIB == pytest.approx(measured, rel=0.03)
