"""Weights of a few bytes: a valid safetensors file, and the ways to break one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np


def safetensors(**tensors: Any) -> bytes:
    """The bytes of a file; tensors as arrays, or as (dtype, bytes) for what numpy has no type for."""
    header: dict[str, Any] = {}
    body = b""
    for name, given in (tensors or {"weight": np.arange(4, dtype=np.float32)}).items():
        dtype, raw = given if isinstance(given, tuple) else (spelled(given.dtype), given.tobytes())
        width = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8}[dtype]
        header[name] = {
            "dtype": dtype,
            "shape": [len(raw) // width],
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def spelled(dtype: Any) -> str:
    """numpy's type in the format's words."""
    return {"f": "F", "i": "I"}[dtype.kind] + str(dtype.itemsize * 8)


NAN = safetensors(fine=np.zeros(3, np.float32), broken=np.array([1.0, np.nan], np.float32))
CUT_OFF = safetensors()[:-4]
