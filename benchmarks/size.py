"""How large the product is, and how far one has to look: what `make size` prints.

    python benchmarks/size.py [--beside COMMIT]

Lines: of Python files under canary_mlflow, gates and training, all of them, blank ones too; beside them templates and
pages (HTML, JavaScript, CSS; without vendored files) and YAML under conf. Chain: the most modules of ours that import
each other one after the other; imports in a circle count as one; all imports, and those at module level alone, which
a process pays for; imports of types are left out. `canary.*`: string literals that name a tag of ours. Constants:
names at module level that hold a number, or a sign and a number. Inside: import statements in functions. Gate: modules
of ours that `canary gate MODEL VERSION` has loaded at its end, and those of which it has called any function.
`--beside`: the same of that commit, from a worktree.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("canary_mlflow", "gates", "training")
PAGES = ("*.html", "*.js", "*.css")
TAG = re.compile(r"(?:^|`|\b)canary\.[a-z_]+")
STORE = """
import sys
from pathlib import Path
sys.path[:0] = [ROOT, f"{ROOT}/tests"]
from recorded import Recorded
from canary_mlflow.tracking.stores.store import prepare_store
uri = f"sqlite:///{Path.cwd()}/mlflow.db"
client = prepare_store(uri)
experiment = client.create_experiment("recorded", artifact_location=str(Path.cwd() / "mlruns"))
recorded = Recorded(client=client, uri=uri, experiment=experiment, model="m")
for _ in range(2):
    recorded.register(recorded.session())
"""
GATE = """
import json, sys
entered = set()

def look(frame, event, argument):
    if event == "call" and frame.f_code.co_flags & 1:  # a function's, not a module's or a class's body
        entered.add(frame.f_globals.get("__name__", ""))

sys.setprofile(look)
from canary_mlflow.cli import canary
try:
    for version in "12":
        canary(["gate", "m", version, "--tracking-uri", "sqlite:///mlflow.db"], standalone_mode=False)
except SystemExit:
    pass
sys.setprofile(None)
ours = {name for name in sys.modules if name.partition(".")[0] in PACKAGES}
print(json.dumps([len(ours), len(entered & ours)]))
"""
"""Both versions, as the first makes the champion."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", metavar="COMMIT")
    asked = parser.parse_args()
    sides = {"now": measured(ROOT)}
    if asked.beside:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "checkout"
            subprocess.run(
                ["git", "worktree", "add", "-q", "--detach", str(folder), asked.beside], cwd=ROOT, check=True
            )
            try:
                sides = {asked.beside: measured(folder), **sides}
            finally:
                subprocess.run(["git", "worktree", "remove", "--force", str(folder)], cwd=ROOT, check=True)
    print(f"{'':38s}" + "".join(f"{name[:10]:>12s}" for name in sides))
    for what in sides["now"]:
        print(f"{what:38s}" + "".join(f"{side.get(what, 0):12,d}" for side in sides.values()))


def measured(root: Path) -> dict[str, int]:
    """Every figure of a checkout, by its name."""
    files = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    trees = {module_of(root, path): ast.parse(path.read_text()) for path in files}
    loaded, entered = gate(root)
    return {
        "Python lines": sum(map(lines, files)),
        **{
            f"  {package}": sum(lines(path) for path in files if path.is_relative_to(root / package))
            for package in PACKAGES
        },
        "modules": len(files),
        "longest import chain": longest(trees, everywhere=True),
        "  at module level": longest(trees, everywhere=False),
        "canary.* literals": sum(1 for tree in trees.values() for text in literals(tree) if TAG.match(text)),
        "numeric constants at module level": sum(constants(tree) for tree in trees.values()),
        "imports inside functions": sum(len(inside(tree)) for tree in trees.values()),
        "canary gate: modules loaded": loaded,
        "  entered": entered,
        "lines of pages": sum(lines(path) for kind in PAGES for path in pages(root, kind)),
        "lines of YAML": sum(map(lines, (root / "conf").rglob("*.yaml"))),
        "lines of tests": sum(map(lines, (root / "tests").rglob("*.py"))),
    }


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def pages(root: Path, kind: str) -> Iterator[Path]:
    return (path for path in (root / "canary_mlflow").rglob(kind) if "vendor" not in path.parts)


def module_of(root: Path, path: Path) -> str:
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    linked = (root / "canary_mlflow" / name.partition(".")[0]).is_symlink()  # installed below canary_mlflow
    return f"canary_mlflow.{name}" if linked else name


def literals(tree: ast.AST) -> Iterator[str]:
    """The texts of a module, without docstrings."""
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.value


def constants(tree: ast.Module) -> int:
    """Names at module level that hold a number."""
    held = [node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value]
    plain = [one.operand if isinstance(one, ast.UnaryOp) else one for one in held]
    return sum(isinstance(one, ast.Constant) and type(one.value) in (int, float) for one in plain)


def inside(tree: ast.AST) -> set[int]:
    """The import statements within functions, by their place in memory."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {id(node) for one in functions for node in ast.walk(one) if isinstance(node, ast.Import | ast.ImportFrom)}


def imported(name: str, tree: ast.Module, known: Mapping[str, ast.Module], everywhere: bool) -> set[str]:
    """Modules of ours that a module imports."""
    typed = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    left = typed if everywhere else typed | inside(tree)
    found = set()
    for node in ast.walk(tree):
        if id(node) in left:
            continue
        if isinstance(node, ast.Import):
            found |= {item.name for item in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{item.name}" for item in node.names)}
    return (found & known.keys()) - {name}


def longest(trees: Mapping[str, ast.Module], *, everywhere: bool) -> int:
    """The modules of the longest chain of imports; a circle counts as one."""
    names = {name: at for at, name in enumerate(trees)}
    pairs = [
        (names[name], names[other]) for name, tree in trees.items() for other in imported(name, tree, trees, everywhere)
    ]
    ones = ([1] * len(pairs), tuple(zip(*pairs, strict=True)))
    _, circle = connected_components(coo_array(ones, shape=(len(names),) * 2), connection="strong")
    below = {one: set() for one in circle.tolist()}
    for here, there in pairs:
        below[int(circle[here])].add(int(circle[there]))
    depth: dict[int, int] = {}
    for one in TopologicalSorter({one: others - {one} for one, others in below.items()}).static_order():
        depth[one] = 1 + max((depth[other] for other in below[one] - {one}), default=0)
    return max(depth.values())


def gate(root: Path) -> tuple[int, int]:
    """Modules loaded and entered by the gate, on a store of recorded runs; 0 where that fails."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "CANARY_"))}
    with tempfile.TemporaryDirectory() as place:
        environment = {**kept, "PYTHONPATH": str(root), "CANARY_KEYS": f"{place}/keys"}
        for code in (STORE, GATE):
            words = [sys.executable, "-c", f"ROOT, PACKAGES = {str(root)!r}, {PACKAGES!r}\n{code}"]
            done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                print(done.stderr.strip().splitlines()[-1], file=sys.stderr)
                return 0, 0
    loaded, entered = json.loads(done.stdout.splitlines()[-1])
    return loaded, entered


if __name__ == "__main__":
    main()
