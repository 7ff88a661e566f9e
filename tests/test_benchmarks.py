"""Benchmarks are seldom run: what they take from this project has to be there."""

from __future__ import annotations

import ast
import gzip
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import forking
import pytest

ROOT = Path(__file__).resolve().parents[1]
PLACES = (ROOT, ROOT / "benchmarks", ROOT / "tests")  # where a benchmark finds what is ours, in this order


def source_of(module: str) -> Path | None:
    """The file or the folder of a module of ours; None for anybody else's."""
    for place in PLACES:
        path = place.joinpath(*module.split("."))
        file = path.with_suffix(".py")
        if (path / "__init__.py").exists() or (path.is_dir() and not file.exists()):
            return path
        if file.exists():  # beside what is left of a package of this name
            return file
    return None


@cache
def names_of(path: Path) -> frozenset[str]:
    """What can be imported from it: what its code binds outside of functions and classes, and a package's modules."""
    code = path / "__init__.py" if path.is_dir() else path
    inside = {file.stem for file in path.iterdir()} if path.is_dir() else set()
    return frozenset(inside | set(bound(ast.parse(code.read_text()) if code.exists() else ast.Pass())))


def bound(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
        return
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((item.asname or item.name).split(".")[0] for item in node.names)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from bound(child)


def missing(script: Path) -> Iterator[str]:
    """Names of ours that it takes from where they are not: imports, in functions too, and attributes of modules."""
    nodes = list(ast.walk(ast.parse(script.read_text())))
    modules: dict[str, Path] = {}
    for node in nodes:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        inside = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for item in node.names:
            home, _, name = f"{inside}{item.name}".rpartition(".")
            source = source_of(home or name)
            if source and home and name not in names_of(source):
                yield f"{script.name}:{node.lineno}: {home} has no {name}"
            if module := source_of(f"{inside}{item.name}"):
                modules[item.asname or item.name] = module
    for name in {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}:
        modules.pop(name, None)  # there it is something else
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module and node.attr not in names_of(module):
                yield f"{script.name}:{node.lineno}: {node.value.id} has no {node.attr}"


def test_what_benchmarks_import_is_there() -> None:
    assert [name for script in sorted((ROOT / "benchmarks").glob("*.py")) for name in missing(script)] == []


def test_a_name_that_is_not_there_is_seen(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from canary_mlflow.gates import gone\nimport canary_mlflow.lost\ndef f():\n    from gate_freeze import AWAY\n"
        "    from canary_mlflow.gates.stats import power\n    power.OLD = 1\n"
    )
    whole = "canary_mlflow"
    found = [f"1: {whole}.gates has no gone", f"2: {whole} has no lost"]
    found += ["4: gate_freeze has no AWAY", "6: power has no OLD"]
    assert list(missing(script)) == [f"script.py:{line}" for line in found]


def test_what_the_ablation_switches_off_is_there() -> None:
    code = "import gate_ablation as it; [getattr(*p[:2]) for places in it.SWITCHES.values() for p in places]"
    subprocess.run([forking.python(), "-c", code], cwd=ROOT / "benchmarks", check=True)


def test_the_picture_of_the_judges_is_drawn_from_the_page_that_has_their_tables(tmp_path: Path) -> None:
    picture = tmp_path / "judges.svg"
    subprocess.run([forking.python(), "gate_pictures.py", "--write", picture], cwd=ROOT / "benchmarks", check=True)
    assert picture.read_bytes() == (ROOT / "docs" / "measured" / "gate-judges.svg").read_bytes()


def test_cases_are_held_against_what_is_right(tmp_path: Path) -> None:
    """One group of inputs, of which one is answered rightly and another is not what the table expects."""
    group = tmp_path / "nan-in-spaced-lines"
    group.mkdir()
    logs = ROOT / "tests" / "data" / "logs"
    for copy, log in (("step-loss-grad", "nan-0"), ("jt-nan0", "0"), ("jt-a0", "0")):
        (group / f"{copy}.log").write_bytes((logs / f"spaced-{log}.log").read_bytes())
    words = [forking.python(), "cases.py", tmp_path, "--only", group.name]
    done = subprocess.run(words, cwd=ROOT / "benchmarks", check=True, capture_output=True, text=True)
    found = [line.split()[0] for line in done.stdout.splitlines() if "canary replay" in line]
    assert found == ["right", "wrong", "right"]
    assert json.loads(done.stdout.splitlines()[-1])["right"] == 2


def test_what_is_measured_on_a_card_is_rehearsed(tmp_path: Path) -> None:
    """Every unit, with tiny sizes; what the file has is not measured again, and a line that was cut off is nothing."""
    file = tmp_path / "on-card.jsonl"
    file.write_text('{"part":"unchanged","unit":"sft-0","car')
    words = [forking.python(), "on_card.py", "--rehearse", "--file", file]
    done = subprocess.run(
        [*words, "--minutes", "30"], cwd=ROOT / "benchmarks", check=True, capture_output=True, text=True
    )
    _, *lines = map(json.loads, file.read_text().splitlines()[1:])
    assert [line for line in lines if "broke" in line] == [], done.stdout
    judged = {line["part"] for line in lines if {"outcomes", "shares", "sessions", "outcome"} & line.keys()}
    assert judged == {"unchanged", "slower", "policies", "card"}
    assert {line["verdict"]["outcome"] for line in lines if line["part"] == "tiny"} <= {"PASS", "INCONCLUSIVE"}
    assert all(line["card"].startswith("rehearsal, no card") and line["packages"]["torch"] for line in lines)
    left = subprocess.run([*words, "--list"], cwd=ROOT / "benchmarks", check=True, capture_output=True, text=True)
    assert re.findall(r"(\S+) minutes left", left.stdout) == ["0.0"] * len(set(line["part"] for line in lines))
    assert "No card has been at hand" in tables_of(file)


def test_a_session_finds_the_packages_that_its_benchmark_was_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that reaches no index they lie in a folder of their own."""
    monkeypatch.setenv("PYTHONPATH", "/of/wheels")
    code = "import pathlib, sessions; print(sessions.python_path(pathlib.Path('/first')))"
    done = subprocess.run([forking.python(), "-c", code], cwd=ROOT / "benchmarks", capture_output=True, text=True)
    assert done.stdout.split() == ["/first:/of/wheels"]


def tables_of(file: Path) -> str:
    """The tables of docs/measured/gpu.md from that file."""
    code = f"import card_tables, pathlib; print(card_tables.section(pathlib.Path({str(file)!r})))"
    done = subprocess.run(
        [forking.python(), "-c", code], cwd=ROOT / "benchmarks", check=True, capture_output=True, text=True
    )
    return done.stdout


def test_the_manifest_has_each_file_of_data_with_its_rows() -> None:
    folder = ROOT / "benchmarks" / "data"
    listed = dict(re.findall(r"^\| (\S+\.\S+) \| (\d+)", (folder / "README.md").read_text(), re.MULTILINE))
    files = [path for path in folder.iterdir() if path.name != "README.md"]
    texts = {
        path.name: gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes() for path in files
    }
    sets = {name: len(json.loads(text)) for name, text in texts.items() if name.endswith(".json.gz")}
    assert {name: text.count(b"\n") for name, text in texts.items()} | sets == {
        n: int(rows) for n, rows in listed.items()
    }
