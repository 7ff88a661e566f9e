"""What is kept between processes is what would be found anew, and is found anew when a file changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.remembering import records_of_packages, remembered, state_of_files

IMPORTS = """
import importlib.metadata
import inspect
import sys
from pathlib import Path
from training.sparing import spared

plainly, look, here = importlib.metadata.packages_distributions, inspect.getframeinfo, sys._getframe()
with spared():
    import transformers
    made, listed = (importlib.metadata.packages_distributions() for _ in range(2))
    seen = inspect.getframeinfo(here)
from transformers.utils.import_utils import define_import_structure as kept

models = Path(transformers.__path__[0], "models")
for asked in [(models, "models"), (str(models / "__init__.py"),), (str(models / "gpt_neox" / "__init__.py"),)]:
    assert kept(*asked) == kept(*asked) == kept.__wrapped__(*asked), asked  # made, or found by the import; remembered
assert transformers.GPTNeoXForCausalLM.__name__ == "GPTNeoXForCausalLM"
assert made == listed == plainly() and importlib.metadata.packages_distributions is plainly
assert inspect.getframeinfo is look and seen.filename == look(here).filename
print("the same")
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CANARY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_answer_is_made_once_for_each_state_and_name(cache: Path) -> None:
    made: list[str] = []

    def asked(name: str, state: str) -> object:
        return remembered(name, [state], lambda: made.append(state) or {frozenset({"torch"}): {"a": {state}}})

    first, second = {frozenset({"torch"}): {"a": {"1"}}}, {frozenset({"torch"}): {"a": {"2"}}}
    assert [asked("x", "1"), asked("x", "1"), asked("x", "2"), asked("y", "1"), asked("x", "2")] == [
        first,
        first,
        second,
        first,
        second,
    ]
    assert made == ["1", "2", "1"]


@pytest.mark.parametrize("left", [b"", b"short", b"\0" * 40], ids=["empty", "short", "another state"])
def test_a_file_that_is_not_whole_is_not_believed(cache: Path, left: bytes) -> None:
    assert remembered("x", ["1"], lambda: ["made"]) == ["made"]
    (file,) = (cache / "installed").iterdir()
    whole = file.read_bytes()
    for broken in (left, whole[:-1], whole[:32]):
        file.write_bytes(broken)
        assert remembered("x", ["1"], lambda: ["again"]) == ["again"], broken
    assert remembered("x", ["1"], lambda: ["never"]) == ["again"]


def test_without_a_cache_the_answer_is_made(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    assert remembered("x", ["1"], lambda: ["made"]) == ["made"]


def test_an_edit_in_place_changes_the_state(tmp_path: Path) -> None:
    package = tmp_path / "package" / "models"
    (package / "__pycache__").mkdir(parents=True)
    (package / "one.py").write_text("a = 1")
    states = []
    for change in ("a = 1", "a = 22", None):
        if change is None:
            (package / "two.py").write_text("")
        else:
            (package / "one.py").write_text(change)
        (package / "__pycache__" / "one.pyc").write_text(str(change))
        state_of_files.cache_clear()
        states.append(state_of_files(str(tmp_path / "package")))
    assert len(set(states)) == 3
    os.utime(package / "one.py", ns=(1, 1))
    state_of_files.cache_clear()
    assert state_of_files(str(tmp_path / "package")) not in states


def test_an_installed_package_changes_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "missing"), *sys.path])
    before = list(records_of_packages())
    (tmp_path / "mlflow.db").write_text("a session writes into its working directory, which Python looks into first")
    os.utime(tmp_path, ns=(1, 1))
    assert list(records_of_packages()) == before
    (tmp_path / "new-1.0.dist-info").mkdir()
    after = list(records_of_packages())
    assert before != after
    os.utime(tmp_path / "new-1.0.dist-info", ns=(1, 1))  # the same version, installed anew
    assert list(records_of_packages()) != after


def test_what_libraries_are_told_is_what_they_would_find() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "the same", done.stderr
