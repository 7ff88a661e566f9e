"""A member of a zip, unpacked up to a limit, also where it is packed with zstd, which Python before 3.14 lacks."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any, BinaryIO

from canary_mlflow.files.source import MAX_WHOLE, TooMuch, size

ZSTD = 93
_LOCAL = struct.Struct("<26xHH")  # a member's own header: the lengths of its name and of what else is there


def member(box: zipfile.ZipFile, raw: BinaryIO, name: str) -> bytes:
    """The bytes of a member. Raises KeyError, TooMuch, BadZipFile, and NotImplementedError without zstandard."""
    info = box.getinfo(name)
    try:
        with box.open(info) as packed:
            found = packed.read(MAX_WHOLE + 1)
    except NotImplementedError:
        if info.compress_type != ZSTD:
            raise
        found = _zstd(raw, info)
    if len(found) > MAX_WHOLE:
        raise TooMuch(f"holds more than {size(MAX_WHOLE)}; expected at most that")
    return found


def _zstd(raw: BinaryIO, info: zipfile.ZipInfo) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise NotImplementedError from None
    raw.seek(info.header_offset)
    raw.seek(sum(_LOCAL.unpack(raw.read(_LOCAL.size))), io.SEEK_CUR)
    if info.compress_size > MAX_WHOLE:
        raise TooMuch(f"holds more than {size(MAX_WHOLE)}; expected at most that")
    try:
        reader: Any = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(raw.read(info.compress_size)))
        return bytes(reader.read(MAX_WHOLE + 1))
    except (zstandard.ZstdError, MemoryError) as error:
        raise zipfile.BadZipFile(str(error)) from None
