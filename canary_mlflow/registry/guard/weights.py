"""Checks that files are weights that can be loaded. Without torch, and by hand: safetensors' NumPy reader lacks
bfloat16."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from canary_mlflow.files.documents import read_json
from canary_mlflow.files.source import open_regular

LENGTH = 8  # bytes at a file's start that hold the length of its header
CHUNK = 1 << 24  # bytes of a tensor read at once
HEADER_LIMIT = 100_000_000  # bytes; the format's own
INDEX = ".safetensors.index.json"
# Type → its width in bytes.
WIDTHS = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
# Type → the integer type to read it as, and the exponent bits, which are all 1 in NaN and infinities.
EXPONENTS = {
    "F64": ("<u8", 0x7FF0_0000_0000_0000), "F32": ("<u4", 0x7F80_0000), "C64": ("<u4", 0x7F80_0000),
    "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80), "F8_E5M2": ("u1", 0x7C), "F8_E4M3": ("u1", 0x7F),
    "F8_E8M0": ("u1", 0xFF),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """Where a tensor is in its file. `start` and `end`: byte offsets from the file's beginning."""

    name: str
    dtype: str
    start: int
    end: int


class Unfit(Exception):
    """What is wrong with one file."""


def is_weights(name: str) -> bool:
    """Whether a file's name says that it must be weights."""
    return name.endswith(".safetensors")


def fault_of(place: Path, checked: dict[str, str] | None = None) -> str:
    """What keeps the weights under a folder from being loaded, naming the file; "" if nothing does.

    There must be safetensors files with at least one tensor: complete, finite, and all that an index names. `checked`
    receives the digest of each sound file, over the bytes that were checked.
    """
    files = sorted(place.rglob("*.safetensors")) if place.is_dir() else [place][: place.is_file()]
    if not files:
        return f"no *.safetensors among its {sum(found.is_file() for found in place.rglob('*'))} files"
    for file in files:
        name = file.relative_to(place).as_posix() if place.is_dir() else file.name
        try:
            found = check(file)
        except Unfit as what:
            return f"{name}: {what}"
        except OSError as error:
            return f"{name}: {error.strerror}"
        if checked is not None:
            checked[file.relative_to(place).as_posix()] = found
    return missing_shard(place)


def check(file: Path) -> str:
    """Read a whole file from beginning to end, and return the sha256 of what was read. Raises Unfit."""
    with open_regular(file) as stream:
        read = Hashed(stream)
        for tensor in tensors(read, file.stat().st_size):  # in byte order, without gaps
            if not is_finite(read, tensor):
                raise Unfit(f"tensor {tensor.name} holds a NaN or an infinity")
        return read.found.hexdigest()


class Hashed:
    """A stream, and the sha256 of what was read from it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.found = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """The next bytes. Raises Unfit if there are fewer."""
        content: bytes = self._stream.read(size)
        self.found.update(content)
        if len(content) < size:
            raise Unfit("its header is cut off" if size == LENGTH else "it became shorter while it was read")
        return content


def tensors(stream: Any, size: int) -> list[Tensor]:
    """The tensors that the header of a file names, which must fill the file. Raises Unfit."""
    length = int.from_bytes(stream.read(LENGTH), "little")
    if size < LENGTH or length > min(size - 8, HEADER_LIMIT):
        raise Unfit("its header is cut off")
    try:
        header = json.loads(stream.read(length), object_pairs_hook=unique)
        found = [
            Tensor(name=name, dtype=one["dtype"], start=8 + length + one["data_offsets"][0],
                   end=8 + length + one["data_offsets"][1])
            for name, one in header.items() if name != "__metadata__"
        ]  # fmt: skip
        found.sort(key=lambda tensor: tensor.start)
        expected = {name: elements(one["shape"]) for name, one in header.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise Unfit("its header is not a safetensors header") from error
    if not any(expected.values()):
        raise Unfit("it has no numbers" if found else "it has no tensor")
    place = 8 + length
    for tensor in found:
        if tensor.dtype not in WIDTHS:
            raise Unfit(f"tensor {tensor.name} has the type {str(tensor.dtype)[:20]!r}, which is none of safetensors'")
        if tensor.start != place or tensor.end - tensor.start != WIDTHS[tensor.dtype] * expected[tensor.name]:
            raise Unfit(f"tensor {tensor.name} is not where its header says")
        place = tensor.end
    if place != size:
        raise Unfit(f"it has {size} bytes, its header says {place}")
    return found


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A header's JSON object. Raises ValueError for a duplicate key: readers differ in which one they take."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a name that is there twice")
    return found


def elements(shape: list[int]) -> int:
    """How many numbers a tensor of that shape has. Raises ValueError for an invalid shape."""
    if not all(type(side) is int and side >= 0 for side in shape):
        raise ValueError(f"a shape of {shape}")
    return math.prod(shape)


def is_finite(stream: Any, tensor: Tensor) -> bool:
    """Whether no number in the tensor is NaN or infinite; reads it to its end if so."""
    kind, mask = EXPONENTS.get(tensor.dtype, ("u1", 0))
    bits = np.dtype(kind).type(mask)
    return not any(mask and bool(((chunk & bits) == bits).any()) for chunk in chunks(stream, tensor, kind))


def chunks(stream: Any, tensor: Tensor, kind: str) -> Iterator[np.ndarray[Any, Any]]:
    """The tensor's numbers, read next from the stream, a part at a time."""
    for start in range(tensor.start, tensor.end, CHUNK):
        yield np.frombuffer(stream.read(min(CHUNK, tensor.end - start)), dtype=kind)


def is_within(place: Path, file: Path) -> bool:
    """Whether a file exists and lies in the folder: an index may name any file on the machine."""
    return file.resolve().is_relative_to(place.resolve()) and file.is_file()


def missing_shard(place: Path) -> str:
    """The first file that an index names but that does not exist; '' if there is none."""
    for index in sorted(place.rglob(f"*{INDEX}")):
        name = index.relative_to(place).as_posix()
        try:
            named = set(read_json(index, HEADER_LIMIT)["weight_map"].values())
        except (ValueError, TypeError, KeyError, AttributeError):
            return f"{name}: it is not an index of weights"
        for shard in sorted(map(str, named)):
            if not is_within(place, index.parent / shard):
                return f"{name}: {shard}, which it names, is missing"
    return ""
