"""The GitHub action: its own steps, run as a runner would, with a real canary and an API that records."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import forking
import pytest
import yaml
from environments import copy_of_checkout, outside
from github import GitHub, github, job
from workplace import ROOT

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
WORKFLOWS = [*sorted((ROOT / "docs/ci").glob("[!g]*.yml")), ROOT / ".github/workflows/canary.yml"]
PYTHON = yaml.safe_load((ROOT / "python_env.yaml").read_text())["python"]
EXPRESSION = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")


def filled(text: str, inputs: Mapping[str, str]) -> str:
    """A value as the runner passes it on."""
    known = {f"inputs.{key}": value for key, value in inputs.items()} | {"strategy.job-index": "0"}
    return EXPRESSION.sub(lambda found: known[found[1]], str(text))


def act(
    api: GitHub, folder: Path, machine: Mapping[str, str] | None = None, **given: str
) -> list[subprocess.CompletedProcess[str]]:
    """Carry out the steps with a shell, one after the other, until one fails: with this Python, or on a machine."""
    inputs = {key: body.get("default", "") for key, body in ACTION["inputs"].items()}
    inputs |= {"python": forking.python(), "token": "a-token", **given}
    done: list[subprocess.CompletedProcess[str]] = []
    for step in ACTION["runs"]["steps"]:
        if "run" not in step:
            continue
        own = {key: filled(value, inputs) for key, value in step["env"].items()}
        place = {**(machine or {**outside(), "PYTHONPATH": str(ROOT)}), **job(api, folder), **own}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done.append(subprocess.run(command, cwd=folder, env=place, capture_output=True, text=True, check=False))
        if done[-1].returncode:
            break
    return done


def test_a_canary_that_nothing_can_be_compared_with_is_neutral(tmp_path: Path) -> None:
    with github() as api:
        words = "algo=sft repeats=1 train.max_steps=25"
        ran, published = act(api, tmp_path, overrides=words, **{"tracking-uri": f"sqlite:///{tmp_path}/mlflow.db"})
    assert "INCONCLUSIVE" in ran.stdout, ran.stderr
    assert "no version was registered" in ran.stdout
    assert published.returncode == 0, published.stderr
    (made,) = api.checks
    assert (made["name"], made["conclusion"]) == ("canary: sft-tiny-neox-preferences-smoke", "neutral")
    assert len(api.comments) == 1
    assert "verdict=INCONCLUSIVE" in (tmp_path / "output.txt").read_text()
    assert (tmp_path / "canary-report" / "report.html").exists()


def test_wrong_words_end_the_job_in_its_first_step(tmp_path: Path) -> None:
    with github() as api:
        (ran,) = act(api, tmp_path, overrides="algo=nope", **{"tracking-uri": "sqlite:///mlflow.db"})
    assert ran.returncode == 2
    assert "nope" in ran.stderr
    assert api.calls == []


def test_a_champion_in_no_store_is_refused(tmp_path: Path) -> None:
    """A variable that was not set is empty: each job would have a store of its own, and all would be green."""
    with github() as api:
        (ran,) = act(api, tmp_path, overrides="algo=sft", **{"tracking-uri": ""})
    refused(ran, tmp_path)


def test_gitlab_without_the_variable_is_refused(tmp_path: Path) -> None:
    (steps,) = [
        job_["script"] for job_ in read("gitlab-ci.yml").values() if isinstance(job_, dict) and "script" in job_
    ]
    place = {**outside(), "PYTHONPATH": str(ROOT), "REGISTER": "true", "OVERRIDES": "algo=sft"}
    place["PATH"] = f"{Path(forking.python()).parent}:{place['PATH']}"
    command = ["bash", "-eo", "pipefail", "-c", "\n".join(steps)]
    refused(subprocess.run(command, cwd=tmp_path, env=place, capture_output=True, text=True, check=False), tmp_path)


def refused(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    """In one line, with nothing recorded."""
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("canary: tracking store: MLFLOW_TRACKING_URI is set, and empty; expected the store")
    assert not [path for path in folder.iterdir() if path.suffix != ".json"]


def read(name: str) -> dict[str, Any]:
    found = yaml.safe_load((ROOT / "docs" / "ci" / name).read_text())
    assert isinstance(found, dict)
    return found


def test_gitlab_judges_merge_requests_on_the_python_of_the_pins() -> None:
    example = read("gitlab-ci.yml")
    assert example["canary:smoke"]["variables"]["REGISTER"] == "false"
    assert example[".canary"]["image"] == f"python:{PYTHON}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_builds_what_the_pins_say_and_asks_for_what_there_is(path: Path) -> None:
    for job_ in yaml.safe_load(path.read_text())["jobs"].values():
        (python,) = [step["with"] for step in job_["steps"] if "setup-python" in step.get("uses", "")]
        assert python == {"python-version": PYTHON, "cache": "pip", "cache-dependency-path": "requirements.txt"}
        (used,) = [step["with"] for step in job_["steps"] if step.get("uses", "").startswith(("canary-mlflow", "./"))]
        assert set(used) <= set(ACTION["inputs"])
        # No stranger's code on machines of one's own.
        ours = "self-hosted" in job_["runs-on"] and "pull_request" in path.read_text()
        assert not ours or "head.repo" in job_["if"]


@pytest.mark.timeout(2400)
def test_our_workflow_serves_a_pull_request_that_changes_a_pin(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """With what the workflow installs, and with nothing else that this machine has."""
    if not request.config.getoption("--full"):
        pytest.skip("builds two environments of 2 GB: with --full")
    main = copy_of_checkout(tmp_path / "main")
    pins = main / "requirements.txt"
    new = pins.read_text()
    pins.write_text(re.sub(r"^zipp==.*$", "zipp==4.1.1", new, flags=re.MULTILINE))
    git("init", "--quiet", "--initial-branch=main", cwd=main)
    committed("base", main)
    checkout = tmp_path / "pull"
    git("clone", "--quiet", str(main), str(checkout), cwd=tmp_path)
    (checkout / "requirements.txt").write_text(new)
    committed("upgrade", checkout)

    workflow = yaml.safe_load((ROOT / ".github/workflows/canary.yml").read_text())["jobs"]["smoke"]
    machine = bare_machine(tmp_path, workflow["env"])
    built = [step["run"] for step in workflow["steps"] if "run" in step]
    done = subprocess.run(["bash", "-ec", "\n".join(built)], cwd=checkout, env=machine, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (used,) = [step["with"] for step in workflow["steps"] if step.get("uses") == "./"]
    given = {key: value.replace("${{ github.base_ref }}", "main") for key, value in used.items()}
    with github() as api:
        words = "tier=smoke algo=sft train.max_steps=8"
        ran, published = act(api, checkout, machine=machine, **{**given, "overrides": words})
    assert "zipp" in (checkout / "canary-report/report.html").read_text(), ran.stderr
    assert published.returncode == 0, published.stderr
    assert len(list((tmp_path / "envs").iterdir())) == 2  # the link to .venv, and the other revision's


def git(*words: str, cwd: Path) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=cwd, check=True)


def committed(message: str, folder: Path) -> None:
    git("add", "--all", cwd=folder)
    git("commit", "--quiet", "--message", message, cwd=folder)


def bare_machine(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """What a hosted machine has: the system's programs and the Python that was asked for; packages as here."""
    (folder / "bin").mkdir()
    (folder / "bin/python3").symlink_to(Path(sys.base_prefix) / f"bin/python{PYTHON}")
    path = f"{folder}/bin:/usr/bin:/bin"
    if shutil.which("uv", path=path) or not (folder / "bin/python3").exists():
        pytest.skip(f"needs Python {PYTHON}, and no uv in /usr/bin")
    kept = {**outside(), **given, "PATH": path, "MLFLOW_ENV_ROOT": str(folder / "envs"), "MLFLOW_TRACKING_URI": ""}
    if wheels := os.environ.get("PIP_FIND_LINKS"):  # this machine has a torch of its own
        kept = {key: value for key, value in kept.items() if key not in given} | {"UV_FIND_LINKS": wheels}
    return kept


def test_what_our_workflows_use_is_pinned_by_digest() -> None:
    """A tag of somebody else's action can be moved."""
    files = [ROOT / "action.yml", *(ROOT / ".github/workflows").glob("*.yml")]
    used = {name for file in files for name in re.findall(r"uses: (\S+)", file.read_text())}
    assert [name for name in used if not re.fullmatch(r"\./|\S+@[0-9a-f]{40}", name)] == []


def test_a_nightly_that_blocks_says_which_commit_of_the_day(tmp_path: Path) -> None:
    """With a Python that stands in for the two commands, as a real search takes hours there."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/bash\necho "$*" >> "$(dirname "$0")/calls"\n'
        'case "$*" in *training*) exit 1;; *bisect*) echo "BLOCK  abc speed"; exit 1;; esac\n'
    )
    python.chmod(0o755)
    git("init", "--quiet", cwd=tmp_path)
    yesterday = {"GIT_COMMITTER_DATE": "2020-01-01T00:00:00"}
    named = ("-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "--quiet", "--allow-empty", "--message")
    subprocess.run(["git", *named, "old"], cwd=tmp_path, env={**os.environ, **yesterday}, check=True)
    git(*named, "new", cwd=tmp_path)
    words = {"overrides": "tier=nightly algo=dpo gate.top_up=true", "python": str(python), "bisect-minutes": "90"}
    with github() as api:
        act(api, tmp_path, **words, **{"tracking-uri": f"sqlite:///{tmp_path}/mlflow.db"})
    asked = (tmp_path / "calls").read_text().splitlines()[1]
    old = subprocess.run(["git", "rev-parse", "HEAD~1"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert asked == f"-m canary_mlflow.cli bisect {old.stdout.strip()} HEAD tier=nightly algo=dpo --minutes 90"
    assert "BLOCK  abc speed" in (tmp_path / "canary-report" / "bisect.txt").read_text()
    assert "### Which commit" in (tmp_path / "summary.md").read_text()
