"""Checks that files are weights that can be loaded. Without torch, and by hand: safetensors' NumPy reader lacks
bfloat16."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from canary_mlflow.errors import UsageError
from canary_mlflow.files.documents import parse_json
from canary_mlflow.files.source import open_regular, read_bytes

LENGTH = 8  # bytes at a file's start that hold the length of its header
CHUNK = 1 << 24  # bytes of a tensor read at once
HEADER_LIMIT = 1_000_000  # bytes; 130 a tensor: shards of the largest models have up to 300 kB
HEADER_SETTING = "CANARY_HEADER_LIMIT"  # for larger ones: an adapter of every expert, saved in one file, has 5 MB
FORMAT_LIMIT = 100_000_000  # bytes of a header; the format's own
MOST_TENSORS = 500_000  # in all files of a version: each costs 13 µs, however small it is
INDEX_LIMIT = 64 * MOST_TENSORS  # bytes; that of a model of a trillion parameters has half of it
MOST_SIDES = 64  # of a tensor, as in torch; a product of 500,000 sides takes 9 s
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
    left = MOST_TENSORS
    for file in files:
        name = file.relative_to(place).as_posix() if place.is_dir() else file.name
        try:
            found, number = check(file, left)
        except Unfit as what:
            return f"{name}: {what}"
        except OSError as error:
            return f"{name}: {error.strerror}"
        if checked is not None:
            checked[file.relative_to(place).as_posix()] = found
        left -= number
    return missing_shard(place)


def check(file: Path, most: int) -> tuple[str, int]:
    """Read a whole file from beginning to end, and return the sha256 of what was read, and how many tensors it has.
    Raises Unfit, also for more than `most`."""
    with open_regular(file) as stream:
        read = Hashed(stream)
        there = tensors(read, file.stat().st_size)  # in byte order, without gaps
        if len(there) > most:
            raise Unfit(f"with its {len(there):,} tensors, the version has more than {MOST_TENSORS:,}")
        for tensor in there:
            if not is_finite(read, tensor):
                raise Unfit(f"tensor {tensor.name} holds a NaN or an infinity")
        return read.found.hexdigest(), len(there)


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
    if size < LENGTH or length > size - LENGTH:
        raise Unfit("its header is cut off")
    if length > (limit := header_limit()):
        raise Unfit(f"its header has {length:,} bytes, more than the {limit:,} of {HEADER_SETTING}")
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


def header_limit() -> int:
    """How many bytes of a header are read: HEADER_SETTING's, set where versions are sealed and judged. Raises
    UsageError."""
    given = os.environ.get(HEADER_SETTING) or str(HEADER_LIMIT)
    if not (given.isascii() and given.isdigit()):
        raise UsageError(f"{HEADER_SETTING}: found {given[:20]!r}; expected a number of bytes, such as {HEADER_LIMIT}")
    return min(int(given), FORMAT_LIMIT)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A header's JSON object. Raises ValueError for a duplicate key: readers differ in which one they take."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a name that is there twice")
    return found


def elements(shape: list[int]) -> int:
    """How many numbers a tensor of that shape has. Raises ValueError for an invalid shape."""
    if len(shape) > MOST_SIDES or not all(type(side) is int and 0 <= side < 2**63 for side in shape):
        raise ValueError("no shape")
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
            content = read_bytes(index, INDEX_LIMIT)
            if content.count(b",") > MOST_TENSORS:
                return f"{name}: it names more than {MOST_TENSORS:,} tensors"
            named = set(parse_json(content.decode("utf-8-sig"))["weight_map"].values())
        except (ValueError, TypeError, KeyError, AttributeError):
            return f"{name}: it is not an index of weights"
        for shard in sorted(map(str, named)):
            if not is_within(place, index.parent / shard):
                return f"{name}: {shard}, which it names, is missing"
    return ""
