"""The GitHub action: its own steps, run as a runner would, with a real canary and an API that records."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from github import GitHub, github, job
from workplace import ROOT

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
EXAMPLES = sorted((ROOT / "docs" / "ci").glob("*.yml"))
EXPRESSION = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")


def filled(text: str, inputs: Mapping[str, str]) -> str:
    """A value as the runner passes it on."""
    known = {f"inputs.{key}": value for key, value in inputs.items()} | {"strategy.job-index": "0"}
    return EXPRESSION.sub(lambda found: known[found[1]], str(text))


def act(api: GitHub, folder: Path, **given: str) -> list[subprocess.CompletedProcess[str]]:
    """Carry out the steps with a shell, one after the other, until one fails."""
    inputs = {key: body.get("default", "") for key, body in ACTION["inputs"].items()}
    inputs |= {"python": sys.executable, "token": "a-token", **given}
    done: list[subprocess.CompletedProcess[str]] = []
    for step in ACTION["runs"]["steps"]:
        if "run" not in step:
            continue
        own = {key: filled(value, inputs) for key, value in step["env"].items()}
        place = {**os.environ, "PYTHONPATH": str(ROOT), **job(api, folder), **own}
        place.pop("MLFLOW_TRACKING_URI", None)
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done.append(subprocess.run(command, cwd=folder, env=place, capture_output=True, text=True, check=False))
        if done[-1].returncode:
            break
    return done


def test_a_canary_that_nothing_can_be_compared_with_is_neutral(tmp_path: Path) -> None:
    with github() as api:
        ran, published = act(api, tmp_path, overrides="algo=sft repeats=1 train.max_steps=25")
    assert "INCONCLUSIVE" in ran.stderr, ran.stderr
    assert "no version was registered" in ran.stderr
    assert published.returncode == 0, published.stderr
    (made,) = api.checks
    assert (made["name"], made["conclusion"]) == ("canary: sft-tiny-neox-preferences-smoke", "neutral")
    assert len(api.comments) == 1
    assert "verdict=INCONCLUSIVE" in (tmp_path / "output.txt").read_text()
    assert (tmp_path / "canary-report" / "report.html").exists()


def test_wrong_words_end_the_job_in_its_first_step(tmp_path: Path) -> None:
    with github() as api:
        (ran,) = act(api, tmp_path, overrides="algo=nope")
    assert ran.returncode == 2
    assert "nope" in ran.stderr
    assert api.calls == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_ask_for_what_there_is(path: Path) -> None:
    text = path.read_text()
    if "gitlab" in path.name:
        assert yaml.safe_load(text)["canary:smoke"]["variables"]["REGISTER"] == "false"
        return
    (job_,) = yaml.safe_load(text)["jobs"].values()
    (used,) = [step["with"] for step in job_["steps"] if "canary-mlflow" in step.get("uses", "")]
    assert set(used) <= set(ACTION["inputs"])
