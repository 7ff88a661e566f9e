"""Whether files are weights that can be loaded: as safetensors writes them, and broken in many ways."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_weights import CUT_OFF, NAN, safetensors

from canary_mlflow.errors import UsageError
from canary_mlflow.registry.guard import weights
from canary_mlflow.registry.guard.binding import file_digests
from canary_mlflow.registry.guard.weights import fault_of

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_is_read_as_the_library_writes_it(dtype: torch.dtype, tmp_path: Path) -> None:
    whole = {"a": torch.randn(3, 5).to(dtype), "empty": torch.zeros(0), "ids": torch.arange(4), "one": torch.ones(())}
    save_file(whole, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert fault_of(tmp_path) == ""
    whole["a"][1, 2] = torch.nan
    save_file(whole, tmp_path / "model.safetensors")
    assert fault_of(tmp_path) == "model.safetensors: tensor a holds a NaN or an infinity"


def test_an_infinity_in_the_last_part_of_a_large_tensor_is_seen(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(weights, "CHUNK", 64)
    values = np.zeros(1000, np.float32)
    (tmp_path / "w.safetensors").write_bytes(safetensors(w=values))
    assert fault_of(tmp_path) == ""
    values[-1] = -np.inf
    (tmp_path / "w.safetensors").write_bytes(safetensors(w=values))
    assert "tensor w holds" in fault_of(tmp_path)


def test_the_digest_is_of_what_was_looked_at(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors(w=np.zeros(9, np.float32), ids=np.arange(3)))
    (tmp_path / "config.json").write_text("{}")
    checked: dict[str, str] = {}
    assert fault_of(tmp_path, checked) == ""
    assert checked == {name: found for name, found in file_digests(tmp_path).items() if name != "config.json"}
    (tmp_path / "one.safetensors").write_bytes(NAN)  # by somebody who writes meanwhile
    assert file_digests(tmp_path, checked).items() >= checked.items()


@pytest.mark.parametrize("named", ["../elsewhere.safetensors", "{folder}/elsewhere.safetensors"])
def test_an_index_names_no_file_of_somebody_else(tmp_path: Path, named: str) -> None:
    (place := tmp_path / "model").mkdir()
    for file in (place / "a.safetensors", tmp_path / "elsewhere.safetensors"):
        file.write_bytes(safetensors())
    shard = named.format(folder=tmp_path)
    index = {"weight_map": {"a": "a.safetensors", "b": shard}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    assert fault_of(place) == f"model.safetensors.index.json: {shard}, which it names, is missing"


def with_header(header: Any, body: bytes = b"\0" * 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (NAN, "tensor broken holds a NaN or an infinity"),
        (CUT_OFF, "its header says"),
        (safetensors() + b"more", "its header says"),
        (b"", "its header is cut off"),
        (b"\xff" * 64, "its header is cut off"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "its header is cut off"),
        (with_header(b"{]"), "its header is not a safetensors header"),
        (with_header({"a": {"dtype": "F32"}}), "its header is not a safetensors header"),
        (with_header({"a": 1}), "its header is not a safetensors header"),
        (with_header([]), "its header is not a safetensors header"),
        (with_header({"__metadata__": {}}), "it has no tensor"),
        (
            with_header({"a": {"dtype": "f32", "shape": [2], "data_offsets": [0, 8]}}),
            "the type 'f32', which is none of",
        ),
        (with_header({"a": {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]}}), "not a safetensors header"),
        (with_header({"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}), "it has no numbers"),
        (with_header({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 8]}}), "is not where its header says"),
        (with_header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}), "is not where its header says"),
    ],
)
def test_a_file_that_nobody_can_load_is_named(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft" / "adapter_model.safetensors").write_bytes(content)
    said = fault_of(tmp_path)
    assert said.startswith("peft/adapter_model.safetensors: ")
    assert says in said


def test_without_safetensors_there_are_no_weights(tmp_path: Path) -> None:
    assert fault_of(tmp_path / "nowhere") == "no *.safetensors among its 0 files"
    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle")
    assert fault_of(tmp_path) == "no *.safetensors among its 1 files"


def test_every_shard_that_an_index_names_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(safetensors())
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"weight": "a.safetensors", "more": "b.safetensors"}}))
    assert fault_of(tmp_path) == "model.safetensors.index.json: b.safetensors, which it names, is missing"
    (tmp_path / "b.safetensors").write_bytes(safetensors())
    assert fault_of(tmp_path) == ""
    index.write_text("[]")
    assert fault_of(tmp_path) == "model.safetensors.index.json: it is not an index of weights"


def header(text: bytes, body: int = 0) -> bytes:
    return len(text).to_bytes(8, "little") + text + bytes(body)


def many(tensors: int) -> bytes:
    """A sound file of as many tensors of no numbers as fit: only one has any."""
    empty = (f'"{number:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for number in range(tensors - 1))
    return header(f'{{{",".join(empty)},"w":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}'.encode(), 1)


def test_a_large_header_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.safetensors").write_bytes(content := many(20_000))
    length = int.from_bytes(content[:8], "little")
    with monkeypatch.context() as patch:
        patch.setattr(weights.json, "loads", lambda *_, **__: pytest.fail("it was read"))
        said = fault_of(tmp_path)
    assert said == f"m.safetensors: its header has {length:,} bytes, more than the 1,000,000 of CANARY_HEADER_LIMIT"
    monkeypatch.setenv("CANARY_HEADER_LIMIT", str(length - 1))
    assert f"more than the {length - 1:,}" in fault_of(tmp_path)
    monkeypatch.setenv("CANARY_HEADER_LIMIT", str(length))
    assert fault_of(tmp_path) == ""
    for wrong in ("1 MB", "-1", "٣"):
        monkeypatch.setenv("CANARY_HEADER_LIMIT", wrong)
        with pytest.raises(UsageError, match=r"CANARY_HEADER_LIMIT: found .*; expected a number of bytes"):
            fault_of(tmp_path)


def test_shards_of_the_largest_models_have_headers_below_the_limit(tmp_path: Path) -> None:
    """As DeepSeek-V3's 163 shards name their tensors: 91,991 in all, weights and their scales."""
    names = [
        f"model.layers.{layer}.mlp.experts.{expert}.{one}_proj.{kind}"
        for layer in (59, 60) for expert in range(192) for one in ("gate", "up", "down")
        for kind in ("weight", "weight_scale_inv")
    ]  # fmt: skip
    (tmp_path / "model-00160-of-00163.safetensors").write_bytes(
        safetensors(**{name: np.zeros(2, np.float32) for name in names})
    )
    assert fault_of(tmp_path) == ""


def test_tensors_are_counted_over_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "MOST_TENSORS", 25)
    for name in "abc":
        (tmp_path / f"{name}.safetensors").write_bytes(many(10))
    assert fault_of(tmp_path) == "c.safetensors: with its 10 tensors, the version has more than 25"
    (tmp_path / "c.safetensors").unlink()
    index = {"weight_map": {str(number): "a.safetensors" for number in range(27)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert fault_of(tmp_path) == "model.safetensors.index.json: it names more than 25 tensors"


@pytest.mark.parametrize("shape", ["9," * 400_000 + "9", ",".join(["9" * 4300] * 60)], ids=["sides", "digits"])
def test_a_shape_that_would_take_long_to_multiply_is_none(tmp_path: Path, shape: str) -> None:
    text = f'{{"w":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,1]}}}}'.encode()
    (tmp_path / "m.safetensors").write_bytes(header(text, 1))
    began = time.process_time()
    assert fault_of(tmp_path) == "m.safetensors: its header is not a safetensors header"
    assert time.process_time() - began < 1
