"""Several checkouts on one machine: each runs in its own environment, or says in one line what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from environments import STACK, Environment, copy_of_checkout, make

JOB = ("-m", "training", "algo=sft", "--cfg", "job")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that nobody has built, in a folder with blanks and umlauts."""
    return copy_of_checkout(tmp_path / "Prüfung zwei")


@pytest.fixture(scope="module")
def leftover(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What is left of another checkout's environment."""
    return make(tmp_path_factory.mktemp("leftover") / ".venv", without=(*STACK, "click"))


def test_each_way_in_goes_on_in_the_checkouts_own_environment(checkout: Path, leftover: Environment) -> None:
    own = make(checkout / ".venv")
    for words in (
        JOB,
        ("-m", "canary_mlflow.training.single_run", "--help"),
        ("-m", "canary_mlflow.cli", "gate", "--help"),
    ):
        done = leftover.run(leftover.python, *words, cwd=checkout)
        assert done.returncode == 0, done.stderr
        assert done.stderr == (f"canary: {leftover.python} is not this checkout's Python; going on with {own.python}\n")
        assert done.stdout


def test_without_an_environment_of_its_own_it_says_what_to_do(checkout: Path, leftover: Environment) -> None:
    done = leftover.run(leftover.python, *JOB, cwd=checkout)
    assert done.returncode == 2
    assert done.stderr == (
        f"canary: {leftover.python} lacks click, torch, transformers, trl, peft, accelerate, datasets, hydra; "
        f"expected an environment with what is needed; run `make smoke` in {checkout}\n"
    )


def test_a_python_that_is_none_of_its_own_is_gone_on_in_once(checkout: Path, leftover: Environment) -> None:
    """What stands in `.venv` may lead anywhere, and back."""
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/python").write_text(f'#!/bin/sh\nexec {leftover.python} "$@"\n')
    (checkout / ".venv/bin/python").chmod(0o755)
    done = leftover.run(leftover.python, *JOB, cwd=checkout)
    assert done.returncode == 2
    assert [line.split("; ")[-1].split(" ")[0] for line in done.stderr.splitlines()] == ["going", "run"]


def test_an_environment_in_which_the_checkout_is_installed_is_its_own(checkout: Path, tmp_path: Path) -> None:
    """Such as conda's. Another checkout is told whose it is, and runs."""
    elsewhere = make(tmp_path / "elsewhere")
    elsewhere.install("--editable", checkout, cwd=tmp_path)
    make(checkout / ".venv", without=STACK)  # not to be gone on in
    done = elsewhere.run(elsewhere.python, *JOB, cwd=checkout)
    assert (done.returncode, done.stderr) == (0, "")
    other = copy_of_checkout(tmp_path / "other")
    done = elsewhere.run(elsewhere.python, *JOB, cwd=other)
    assert done.returncode == 0
    assert done.stderr == (
        f"canary: {elsewhere.python} is the Python of {checkout}; `make smoke` in {other} builds its own\n"
    )


@pytest.mark.full  # every day: which Python a checkout goes on with, above and below
def test_mlflow_run_finds_its_environment_whatever_other_checkouts_left(
    checkout: Path, leftover: Environment, tmp_path: Path
) -> None:
    """The link is MLflow's, one for all checkouts with the same pins."""
    own = make(checkout / ".venv")
    own.install("--editable", checkout, cwd=checkout)
    envs = tmp_path / "envs"
    code = "from pathlib import Path; from canary_mlflow.link_env import place_of; print(place_of(Path('.')))"
    place = Path(own.run(own.python, "-c", code, cwd=checkout, MLFLOW_ENV_ROOT=str(envs)).stdout.strip())
    assert place.parent == envs
    envs.mkdir()
    run = (own.python, "-m", "mlflow", "run", ".", "-P", "tier=nope")
    place.symlink_to(leftover.prefix)  # another checkout was built since
    done = own.run(*run, cwd=checkout, MLFLOW_ENV_ROOT=str(envs))
    assert f"going on with {own.python}" in done.stderr
    assert "canary: unknown tier 'nope'" in done.stderr
    place.unlink()
    place.symlink_to(tmp_path / "removed")
    done = own.run(*run, cwd=checkout, MLFLOW_ENV_ROOT=str(envs))
    assert "canary: unknown tier 'nope'" in done.stderr
    assert place.resolve() == own.prefix.resolve()
    shutil.rmtree(envs)
    assert "canary: unknown tier 'nope'" in own.run(*run, cwd=checkout, MLFLOW_ENV_ROOT=str(envs)).stderr
