"""Unchanged runs as files, and the commands that read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from canary_mlflow.cli import canary


def unchanged_files(count: int) -> list[str]:
    """JSONL files of `count` runs of one machine, 1 % apart, in the working folder."""
    rng = np.random.default_rng(1)
    for number in range(count):
        times = 0.1 * np.exp(rng.normal(0, 0.01) + rng.normal(0, 0.02, 100))
        rows = ({"step": i, "step_time": t, "loss": 0.7 - 0.001 * i} for i, t in enumerate(times.tolist(), 1))
        Path(f"r{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        Path(f"r{number}.json").write_text('{"hardware": {"backend": "cuda", "device": "H200"}}')
    return [f"r{number}.jsonl" for number in range(count)]


def called(*words: str) -> tuple[int, Any]:
    result = CliRunner().invoke(canary, list(words), catch_exceptions=False)
    return result.exit_code, json.loads(result.stdout) if "--json" in words else result.output
