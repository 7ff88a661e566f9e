"""Adapters and quantization, trained for real on the tiny model."""

from __future__ import annotations

import pytest
import torch
from canaries import a_config
from peft import get_peft_model

from canary_mlflow.tracking.probes.parameters import products_of
from canary_mlflow.training import adapters, quantization
from canary_mlflow.training.config import AdapterConfig, QuantizationConfig
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.parts import build_parts


def one_step(config) -> tuple[float, float, torch.nn.Module]:
    """Loss before and after one optimizer step on one batch."""
    parts = build_parts(config)
    torch.manual_seed(0)
    model = parts.model if parts.peft_config is None else get_peft_model(parts.model, parts.peft_config)
    texts = [row["prompt"] + row["chosen"] for row in parts.train_dataset.select(range(4))]
    batch = parts.tokenizer(texts, return_tensors="pt", padding=True)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    model.eval()  # no dropout: the two losses are compared
    before = model(**batch, labels=labels).loss
    before.backward()
    optimizer.step()
    with torch.no_grad():
        after = model(**batch, labels=labels).loss
    return float(before.detach()), float(after), model


def test_full_fine_tuning_trains_every_weight():
    before, after, model = one_step(a_config())

    assert after < before
    assert all(weight.grad is not None and weight.dtype == torch.float32 for weight in model.parameters())


@pytest.mark.parametrize("kind", ["none", "nf4", "int8"])
def test_lora_learns_on_frozen_weights(kind):
    before, after, model = one_step(a_config(adapter="lora", quantization=kind))

    assert after < before
    assert all(("lora_" in name) == weight.requires_grad for name, weight in model.named_parameters())
    adapted = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name, _ in model.named_parameters() if "lora_A" in name}
    assert adapted == {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}


@pytest.mark.parametrize(("kind", "layer"), [("nf4", "Linear4bit"), ("int8", "Linear8bitLt")])
def test_quantized_layers_are_quantized(kind, layer):
    model = build_parts(a_config(adapter="lora", quantization=kind)).model

    inner = model.gpt_neox.layers[0].mlp.dense_h_to_4h
    assert type(inner).__name__ == layer
    assert inner.weight.element_size() == 1
    assert inner.weight.numel() == 64 * 256 // (2 if kind == "nf4" else 1)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_what_an_adapter_adds_is_measured_by_quantized_weights_too(kind):
    plain, quantized = (
        [
            one.size(torch.zeros(one.count))
            for path, module in model.named_modules()
            for one in products_of(path, module)
        ]
        for _, _, model in (one_step(a_config(adapter="lora", quantization=each)) for each in ("none", kind))
    )

    assert len(plain) == 8
    assert quantized == pytest.approx(plain, rel=0.05)


def test_target_modules_can_be_named():
    adapter = AdapterConfig(name="lora", r=4, alpha=8, dropout=0.0, target_modules="query_key_value, dense")

    made = adapters.peft_config(adapter, build_parts(a_config()).model)

    assert (made.r, made.lora_alpha, made.lora_dropout) == (4, 8, 0.0)
    assert made.target_modules == {"query_key_value", "dense"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"name": "dora"}, r"adapter\.name is 'dora'; expected one of full, lora"),
        ({"r": 0}, r"adapter\.r is 0; expected a rank of at least 1"),
        ({"alpha": 0}, r"adapter\.alpha is 0; expected more than 0"),
        ({"dropout": 1.0}, r"adapter\.dropout is 1\.0; expected 0 or more, below 1"),
        ({"target_modules": " ,"}, r"adapter\.target_modules is empty"),
    ],
)
def test_an_impossible_adapter_is_refused(changed, expected):
    with pytest.raises(SetupError, match=expected):
        adapters.check(AdapterConfig(**{"name": "lora", **changed}))


def test_module_names_the_model_does_not_have_are_refused():
    config = a_config(adapter="lora")
    config.adapter.target_modules = "q_proj,dense"

    with pytest.raises(SetupError, match=r"q_proj.*the model has dense, dense_4h_to_h, dense_h_to_4h, lm_head, query"):
        build_parts(config)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_quantized_weights_need_an_adapter(kind):
    with pytest.raises(SetupError, match=f"quantization={kind} with adapter=full.*use adapter=lora"):
        quantization.check(QuantizationConfig(name=kind), AdapterConfig(name="full"))


def test_a_missing_package_is_said(monkeypatch):
    monkeypatch.setattr(quantization, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match="bitsandbytes, which is not installed; pip install bitsandbytes"):
        quantization.check(QuantizationConfig(name="nf4"), AdapterConfig(name="lora"))
    monkeypatch.setattr(adapters, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match="peft, which is not installed; pip install peft"):
        adapters.check(AdapterConfig(name="lora"))


def test_an_unknown_quantization_lists_the_known():
    with pytest.raises(SetupError, match="'int3'; expected one of none, nf4, int8"):
        quantization.check(QuantizationConfig(name="int3"), AdapterConfig(name="lora"))
