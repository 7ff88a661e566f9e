"""What is installed: the wheel, made from the source distribution, in a separate environment and folder."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from environments import STACK, Environment, copy_of_checkout, link, make, outside
from servers import Server
from unchanged_files import unchanged_files
from workplace import ROOT

LINKED = ("gates", "training", "conf")  # from canary_mlflow/


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a copy that has no git."""
    folder = tmp_path_factory.mktemp("build")
    source = copy_of_checkout(folder / "checkout")
    made = python("-c", "from hatchling.build import build_sdist; build_sdist('..')", cwd=source)
    assert made.returncode == 0, made.stderr
    (found,) = folder.glob("*.tar.gz")
    return found


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    alone = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    made = python("-m", "pip", "wheel", *alone, str(sdist), cwd=folder)
    assert made.returncode == 0, made.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel with its dependencies, without the training stack."""
    environment = make(tmp_path_factory.mktemp("core") / "env", without=STACK)
    environment.install(wheel, cwd=wheel.parent)
    return environment


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the extra `train` adds, to be put on the path."""
    folder = tmp_path_factory.mktemp("stack")
    link(folder, only=STACK)
    return folder


def python(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=cwd, env=outside(), capture_output=True, text=True, check=False)


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    files = [path for name in ("canary_mlflow", *LINKED) for path in (ROOT / name).rglob("*") if path.is_file()]
    tracked = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    expected = {f"canary_mlflow/{name}" if name.startswith(LINKED) else name for name in tracked}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert found == expected


def test_the_sdist_holds_the_packages_and_what_describes_them_and_no_data(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    beside = {"README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert {name for name in names if not name.startswith("canary_mlflow/")} == beside
    assert sdist.stat().st_size < 2**21


def test_pypi_shows_the_readme_with_links_that_lead_to_the_repository(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        shown = Parser().parsestr(archive.read(name).decode())
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", shown["Version"])
    places = re.findall(r"\]\(([^)\s]+)", str(shown.get_payload()))
    repository = "canary-mlflow/canary-mlflow"
    blob, raw = f"https://github.com/{repository}/blob/main/", f"https://raw.githubusercontent.com/{repository}/main/"
    assert [place for place in places if not place.startswith((blob, raw, "#"))] == []
    assert {place for place in places if place.endswith(".png")} == {
        f"{raw}docs/pictures/{name}.png" for name in ("live", "watch")
    }
    assert f"{blob}docs/tutorial.md" in places


def test_every_command_answers_from_the_wheel_and_not_from_the_checkout(core: Environment, tmp_path: Path) -> None:
    listed = core.run("canary", "--help", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    code = (
        "import canary_mlflow, importlib.util as u\n"
        "from canary_mlflow.cli import COMMANDS, canary\n"
        "for one in COMMANDS: canary([one, '--help'], prog_name='canary', standalone_mode=False)\n"
        "places = canary_mlflow.__file__, u.find_spec('torch'), u.find_spec('training'), u.find_spec('gates')\n"
        "print(list(COMMANDS), *places)"
    )
    helped = core.run(core.python, "-c", code, cwd=tmp_path)
    assert helped.returncode == 0, helped.stderr
    names, _, places = helped.stdout.splitlines()[-1].rpartition("] ")
    assert all(f"  {name.strip()[1:-1]} " in listed.stdout for name in names[1:].split(","))
    ours, *others = places.split()
    assert Path(ours).parent == core.packages / "canary_mlflow"
    assert others == ["None"] * 3


def test_files_are_judged_and_replayed_without_the_training_stack(
    core: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = unchanged_files(8)
    sides = ("--baseline", *files[:4], "--candidate", *files[4:])
    judged = core.run("canary", "judge", "--policy", "perf", *sides, cwd=tmp_path)
    assert judged.stdout.startswith(("PASS", "INCONCLUSIVE")), judged.stderr
    replayed = core.run("canary", "replay", files[0], cwd=tmp_path)
    assert replayed.returncode == 0, replayed.stderr
    tiny = core.run(core.python, "-c", "import canary_mlflow.training.assets.tiny", cwd=tmp_path)
    assert tiny.returncode == 0, f"the tutorial's script takes its model from there: {tiny.stderr}"
    for words in (("run",), ("check-reward", "folder")):
        refused = core.run("canary", *words, cwd=tmp_path)
        assert refused.returncode == 2
        assert refused.stderr.endswith("expected the [train] extra; pip install 'canary-mlflow[train]'\n")


def test_a_session_runs_from_the_wheel_whatever_a_project_calls_its_folders(
    core: Environment, stack: Path, tmp_path: Path
) -> None:
    for name in LINKED:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the code of somebody else')")
    words = ("algo=sft", "repeats=1", "gate.min_baseline_runs=1", "train.max_steps=30")
    done = core.run("canary", "run", *words, cwd=tmp_path, PYTHONPATH=str(stack))
    assert done.returncode == 0, done.stderr
    assert "BOOTSTRAP" in done.stdout
    assert (tmp_path / "mlflow.db").is_file()
    planned = core.run("canary", "plan", "algo=sft", cwd=tmp_path, PYTHONPATH=str(stack))
    assert planned.returncode == 0, planned.stderr


@pytest.mark.full
def test_the_server_of_the_wheel_has_the_pages(core: Environment, tmp_path: Path) -> None:
    with (
        Server(f"sqlite:///{tmp_path}/mlflow.db", tmp_path, app="canary", python=core.python) as server,
        urllib.request.urlopen(f"{server.uri}/canary") as page,
        urllib.request.urlopen(f"{server.uri}/canary/static/canary.css") as style,
    ):
        assert b"<html" in page.read()
        assert style.status == 200
