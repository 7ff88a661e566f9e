"""Imports go down the floors, never up; parsed from the source, so that lazy imports count too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"torch", "transformers", "trl", "peft", "datasets", "accelerate", "bitsandbytes"}
FORBIDDEN = {
    "gates": HEAVY | {"mlflow", "hydra", "omegaconf", "click", "training", "canary_mlflow"},
    "canary_mlflow": HEAVY | {"hydra", "omegaconf", "training"},
    "training": {"gates"},
}
# The places of the middle floor that run inside a training process alone.
IN_TRAINING = (
    "canary_mlflow/tracking/callback.py",
    "canary_mlflow/tracking/hooks.py",
    "canary_mlflow/tracking/probes/",
    "canary_mlflow/tracking/sinks/tensorboard.py",
)


def imported(path: Path) -> Iterator[str]:
    """Top-level names of everything that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (item.name.split(".")[0] for item in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def violations(package: str, path: Path, source_root: Path = ROOT) -> set[str]:
    name = path.relative_to(source_root).as_posix()
    forbidden = FORBIDDEN[package]
    if name.startswith(IN_TRAINING):
        forbidden = forbidden - {"torch", "transformers"}
    return forbidden & set(imported(path))


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_go_down(package: str) -> None:
    found = {str(path): bad for path in (ROOT / package).rglob("*.py") if (bad := violations(package, path))}
    assert not found


def test_a_lazy_import_upwards_is_seen(tmp_path: Path) -> None:
    planted = tmp_path / "gates" / "judge.py"
    planted.parent.mkdir()
    planted.write_text("def f():\n    import mlflow\n")
    assert violations("gates", planted, tmp_path) == {"mlflow"}


@pytest.mark.parametrize(
    "code",
    [
        "import canary_mlflow.cli",
        "import canary_mlflow.registry.gatekeeper",
        "import mlflow",  # loads our plugins
        "import training.__main__",  # the session's own process
    ],
)
def test_no_torch_is_loaded(code: str) -> None:
    probe = f"{code}\nimport sys; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
