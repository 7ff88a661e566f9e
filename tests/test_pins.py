"""One list of pins, and no other."""

from __future__ import annotations

import itertools
import re
import tomllib
from importlib.metadata import distributions, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
ORACLE = ROOT / ".oracle"
# By a cluster in its own release, and by what an S3 store or its test needs: no run imports them, ranges alone.
BROUGHT = {"ray", "boto3", "moto"}


def pins() -> dict[str, str]:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    found = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.\-]+==[\w.]+", line) for line in found), "every line is name==version"
    return {canonicalize_name(name): pin for name, pin in (line.split("==") for line in found)}


def test_both_environment_files_hold_the_one_list() -> None:
    conda = yaml.safe_load((ROOT / "conda.yaml").read_text())
    virtualenv = yaml.safe_load((ROOT / "python_env.yaml").read_text())
    python = virtualenv["python"]
    assert virtualenv["dependencies"] == ["-r requirements.txt", "-e ."]
    assert conda["dependencies"] == [f"python={python}", "pip", {"pip": virtualenv["dependencies"]}]


def test_every_declared_range_admits_its_pin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [names for extra, names in project["optional-dependencies"].items() if extra != "docs"]  # installed apart
    declared = [*project["dependencies"], *itertools.chain(*extras)]
    pinned = pins()
    for text in declared:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name in BROUGHT:
            assert name not in pinned, f"{name} would be installed where no run needs it"
            continue
        assert name in pinned, f"{name} is declared but not pinned"
        assert pinned[name] in requirement.specifier, f"{text} does not admit {pinned[name]}"


@pytest.mark.skipif(not ORACLE.is_dir(), reason="trl 1.12.0 is not there; `make oracle` brings it")
def test_no_range_admits_what_the_oldest_trl_does_not_take() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["train"]
    lowest = {one.name: floor(one) for one in map(Requirement, declared)}
    (trl,) = distributions(name="trl", path=[str(ORACLE)])
    needed = [one for one in map(Requirement, trl.requires or []) if one.marker is None and one.name in lowest]
    assert needed
    assert [f"{one}, declared from {lowest[one.name]}" for one in needed if lowest[one.name] not in one.specifier] == []


def floor(requirement: Requirement) -> str:
    return next(one.version for one in requirement.specifier if one.operator == ">=")


def test_core_install_pulls_no_training_stack() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    assert not core & {"torch", "transformers", "trl", "peft", "datasets", "accelerate", "bitsandbytes", "hydra-core"}


def test_tests_run_on_the_pins() -> None:
    for name in ("torch", "transformers", "trl", "mlflow", "hydra-core"):
        assert version(name).split("+")[0] == pins()[name]
