"""Imports go down the floors, never up; parsed from the source, so that lazy imports count too."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"torch", "transformers", "trl", "peft", "datasets", "accelerate", "bitsandbytes"}
FORBIDDEN = {
    "gates": HEAVY | {"mlflow", "hydra", "omegaconf", "click", "training", "canary_mlflow"},
    "canary_mlflow": HEAVY | {"hydra", "omegaconf", "training"},
    "training": {"gates"},
}
# Inside gates/: which folders each folder may use. What lies beside judge.py is the roof and may use all of them.
INSIDE_GATES = {
    "model": set[str](),
    "stats": {"model"},
    "evidence": {"model", "stats"},
    "evals": {"model", "stats"},
    "facts": {"model"},
    "hard": {"model"},
    "watch": {"model"},
}
# The places of the middle floor that run inside a training process alone.
IN_TRAINING = (
    "canary_mlflow/tracking/callback.py",
    "canary_mlflow/tracking/loops/",
    "canary_mlflow/tracking/probes/",
    "canary_mlflow/tracking/sinks.py",
)


def imported(path: Path) -> Iterator[str]:
    """Floors and top-level names of everything that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (floor(item.name) for item in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from (floor(f"{node.module}.{item.name}") for item in node.names)


def floor(module: str) -> str:
    """`gates` of `canary_mlflow.gates.judge`; the top-level name of any other module."""
    first, second, *_ = (*module.split("."), "")
    return second if first == "canary_mlflow" and second in FORBIDDEN else first


def violations(package: str, path: Path, source_root: Path = ROOT) -> set[str]:
    name = path.relative_to(source_root).as_posix()
    forbidden = FORBIDDEN[package]
    if name.startswith(IN_TRAINING):
        forbidden = forbidden - {"torch", "transformers"}
    if name == "canary_mlflow/tracking/loops/accelerate.py":  # whose tracker it is
        forbidden = forbidden - {"accelerate"}
    return forbidden & set(imported(path))


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_go_down(package: str) -> None:
    found = {str(path): bad for path in (ROOT / package).rglob("*.py") if (bad := violations(package, path))}
    assert not found


def inside_gates(path: Path) -> set[str]:
    """The parts of gates/ that a file imports: folders, or modules beside judge.py."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and floor(node.module) == "gates":
            parts = node.module.split(".")[2:]
            found |= {parts[0]} if parts else {item.name for item in node.names}
        elif isinstance(node, ast.Import):
            found |= {item.name.split(".")[2] for item in node.names if floor(item.name) == "gates"}
    return found


def test_every_folder_of_gates_has_its_floor() -> None:
    assert {path.parent.name for path in (ROOT / "gates").glob("*/__init__.py")} == set(INSIDE_GATES)


@pytest.mark.parametrize("folder", INSIDE_GATES)
def test_imports_inside_gates_go_down(folder: str) -> None:
    allowed = INSIDE_GATES[folder] | {folder}
    files = (ROOT / "gates" / folder).glob("*.py")
    assert not {path.name: bad for path in files if (bad := inside_gates(path) - allowed)}


def test_an_import_upwards_inside_gates_is_seen(tmp_path: Path) -> None:
    planted = tmp_path / "metrics.py"
    planted.write_text(
        "def f():\n    from canary_mlflow.gates.judge import judge\n    from canary_mlflow.gates import notes\n"
    )
    assert inside_gates(planted) == {"judge", "notes"}


def test_a_lazy_import_upwards_is_seen(tmp_path: Path) -> None:
    planted = tmp_path / "gates" / "judge.py"
    planted.parent.mkdir()
    planted.write_text("def f():\n    import mlflow\n")
    assert violations("gates", planted, tmp_path) == {"mlflow"}


def module_of(path: Path, root: Path) -> str:
    """Its name; a package's is that of its __init__.py."""
    parts = path.relative_to(root).with_suffix("").parts
    parts = parts if parts[0] == "canary_mlflow" else ("canary_mlflow", *parts)  # through its link
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def import_graph(root: Path, types: bool = True) -> dict[str, set[str]]:
    """Module → the modules that it imports, anywhere in it. `types`: with what only type checkers import."""
    files = {module_of(path, root): path for package in FORBIDDEN for path in (root / package).rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        found = set()
        for node in ast.walk(parsed(path, types)):
            if isinstance(node, ast.Import):
                found |= {item.name for item in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                inner = [f"{node.module}.{item.name}" for item in node.names]
                found |= {name if name in files else node.module for name in inner}
        graph[name] = found & set(files) - {name}
    return graph


def parsed(path: Path, types: bool) -> ast.Module:
    tree = ast.parse(path.read_text())
    if not types:
        tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node))]
    return tree


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Every module that a module imports, directly or not."""
    found, left = set[str](), [start]
    while left:
        left += (new := graph[left.pop()] - found)
        found |= new
    return found


def room(module: str) -> str:
    """The folder of a floor, or the module beside the folders."""
    return ".".join(module.split(".")[: 2 if floor(module) == "canary_mlflow" else 3])


def circles(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """The imports from which imports lead back."""
    below = {module: reached(graph, module) for module in graph}
    return {(one, other) for one, others in graph.items() for other in others if one in below[other]}


def test_no_circle_of_imports_leaves_its_room() -> None:
    assert {(one, other) for one, other in circles(import_graph(ROOT)) if room(one) != room(other)} == set()


def test_no_circle_of_imports_but_of_types_and_of_a_package_that_lists_its_parts() -> None:
    graph = import_graph(ROOT, types=False)
    parts = {one: {other for other in others if not other.startswith(f"{one}.")} for one, others in graph.items()}
    assert circles(parts) == set()


def test_what_watches_a_run_does_not_know_the_registry() -> None:
    upwards = {one: others for one, others in import_graph(ROOT).items() if room(one) == "canary_mlflow.tracking"}
    assert not {one for one, others in upwards.items() if "canary_mlflow.registry" in map(room, others)}


def test_a_circle_of_imports_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "canary_mlflow"
    folder.mkdir()
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from canary_mlflow import a\n"
    (folder / "a.py").write_text("def f():\n    from canary_mlflow import b\n")
    (folder / "b.py").write_text(for_types)
    both = {("canary_mlflow.a", "canary_mlflow.b"), ("canary_mlflow.b", "canary_mlflow.a")}
    assert circles(import_graph.__wrapped__(tmp_path, types=False)) == set()
    assert circles(import_graph.__wrapped__(tmp_path)) == both
    (folder / "b.py").write_text("from canary_mlflow.a import x\n")
    assert circles(import_graph.__wrapped__(tmp_path, types=False)) == both


LIGHT = (
    "canary_mlflow.cli",
    "canary_mlflow.registry.judging.gatekeeper",
    "mlflow",  # loads our plugins
    "canary_mlflow.training.__main__",  # the session's own process
)


SLOW = HEAVY | {"scipy.stats"}  # which takes longer to load than all of the gate


def test_nothing_slow_is_loaded() -> None:
    """One process imports them all: a process of each would import MLflow three times."""
    probe = f"import importlib, sys\nfor name in {LIGHT!r}:\n    importlib.import_module(name)\n"
    probe += f"    print(name, *sorted({SLOW!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == list(LIGHT)


def test_what_a_session_loads_before_its_runs_brings_no_part_of_scipy() -> None:
    """A fifth of a second of each session, before its first run can begin to load."""
    code = "import sys, canary_mlflow.training.ahead\n"
    code += "print([name for name in sys.modules if name.startswith('scipy.special')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


CHANGES = re.compile(
    r"\bsetattr\((?!self\b)|\breplace_method\("
    r"|ignore\[method-assign\]|\.(?:map_array|__new__|__init__|_find_and_load|call_event"
    r"|compute_loss|training_step|backward|on_log) = "
)


def test_what_is_changed_in_libraries_stands_in_the_docs() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("## What is changed in libraries")[2].partition("\n## ")[0]
    files = {
        path.relative_to(ROOT).as_posix()
        for package in FORBIDDEN
        for path in (ROOT / package).rglob("*.py")
        if CHANGES.search(path.read_text())
    }
    assert files == set(re.findall(r"`([\w/]+\.py)`", table)) - {"tests/test_floors.py"}


OUR_TAG = re.compile(r"(?:^|tags\.`?)canary\.(?:[a-z_]|$)")
NOT_TAGS = {"canary_mlflow/notify/events.py", "canary_mlflow/reports/junit.py"}  # names of events, of test classes


def tag_names(tree: ast.Module) -> list[str]:
    """The string literals, parts of f-strings too, that spell a tag of ours; docstrings are none."""
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    literals = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in said)
    return [one.value for one in literals if isinstance(one.value, str) and OUR_TAG.search(one.value)]


def test_names_of_tags_stand_in_one_module() -> None:
    files = [*(ROOT / "canary_mlflow").rglob("*.py"), *(ROOT / "training").rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in files if tag_names(ast.parse(path.read_text()))}
    assert found == {"canary_mlflow/tags.py", *NOT_TAGS}


@pytest.mark.parametrize(
    "code", ["'canary.role'", "f'canary.{x}'", "f'canary.env.{x}'", "'a AND tags.`canary.role` = 1'", "{'canary.': 1}"]
)
def test_the_name_of_a_tag_is_seen(code: str) -> None:
    assert tag_names(ast.parse(f"x = {code}"))
    other = "def f():\n    'canary.role is a tag'\nx = 'canary gate', 'canary.Event', '.canary.', 'in canary.yaml'"
    assert not tag_names(ast.parse(other))
