"""MLproject, its environment and its place in MLflow's cache of environments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from environments import Environment, copy_of_checkout, outside
from mlflow.projects.utils import load_project

ROOT = Path(__file__).resolve().parents[1]


def command(entry: str, parameters: dict[str, str]) -> str:
    return str(load_project(str(ROOT)).get_entry_point(entry).compute_command(parameters, None))


def test_the_verbatim_command_names_the_defaults() -> None:
    assert command("main", {"tier": "smoke"}).startswith(
        "python -m training algo=dpo tier=smoke model=tiny-neox data=preferences seed=0 repeats=null"
    )


def test_overrides_arrive_as_one_quoted_word() -> None:
    text = command("main", {"overrides": "fault=nan_batch train.max_steps=3; echo pwned"})
    assert "'fault=nan_batch train.max_steps=3; echo pwned'" in text


def test_every_parameter_is_used() -> None:
    for name, entry in yaml.safe_load((ROOT / "MLproject").read_text())["entry_points"].items():
        for parameter in entry["parameters"]:
            assert f"{{{parameter}}}" in entry["command"], f"{name}: {parameter} is declared but not used"


def test_mlflow_finds_the_linked_environment(tmp_path: Path) -> None:
    environment = {**os.environ, "MLFLOW_ENV_ROOT": str(tmp_path)}
    prefix = tmp_path / "venv"
    prefix.mkdir()
    code = (
        "from pathlib import Path; from canary_mlflow.link_env import link; "
        f"print(link(Path('.'), Path({str(prefix)!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    place = Path(done.stdout.strip())
    assert place.parent == tmp_path
    assert place.resolve() == prefix.resolve()


MOVE = """
from mlflow import MlflowClient
client = MlflowClient()
(model,) = client.search_registered_models()
version = client.create_model_version(model.name, "somewhere")
client.set_registered_model_alias(model.name, "champion", version.version)
"""


@pytest.mark.timeout(1200)
def test_an_environment_that_mlflow_builds_has_the_command_and_the_guard(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--full"):
        pytest.skip("builds an environment of 2 GB: with --full")
    checkout, envs = copy_of_checkout(tmp_path / "checkout"), tmp_path / "envs"
    store = f"sqlite:///{checkout}/mlflow.db"
    place = {**outside(), "MLFLOW_ENV_ROOT": str(envs), "UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
    place["PATH"] = f"{Path(sys.executable).parent}:{place['PATH']}"
    words = ("-P", "algo=sft", "-P", "repeats=1", "-P", "overrides=train.max_steps=8")
    run = [sys.executable, "-m", "mlflow", "run", ".", "--env-manager", "uv", *words]
    done = subprocess.run(run, cwd=checkout, env=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "BOOTSTRAP" in done.stderr
    (prefix,) = envs.iterdir()
    built = Environment(prefix=prefix)
    assert built.run("canary", "audit", "verify", "--tracking-uri", store, cwd=tmp_path).returncode == 0
    uris = {"MLFLOW_TRACKING_URI": store, "MLFLOW_REGISTRY_URI": f"canary+{store}"}
    moved = built.run(built.python, "-c", MOVE, cwd=tmp_path, **uris)
    assert moved.returncode == 1
    assert "canary_mlflow/registry" in moved.stderr, moved.stderr  # the guard, before any trigger
