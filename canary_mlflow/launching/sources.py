"""Gets the code with which runs were made: this checkout, or a worktree of the recorded commit."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from canary_mlflow.errors import NoSource, one_line
from canary_mlflow.files.documents import read_yaml
from canary_mlflow.interpreter import on_path
from canary_mlflow.tracking.describing.fingerprint import PACKAGES, UNKNOWN, git, packages
from canary_mlflow.tracking.experiment import is_project
from canary_mlflow.tracking.stores.owner import CHECKOUT, scratch

ENTRY = "again"
PATIENCE = 120  # seconds that git, or the code of a revision, has to answer


@dataclass(frozen=True, kw_only=True)
class Source:
    """A folder with the code, and how MLflow Projects finds its Python: local (the one that runs this), uv, virtualenv.

    `project`: the checkout; `here`: the folder is that one, not a worktree of it.
    """

    project: Path
    folder: Path
    env_manager: str
    commit: str
    here: bool


def project_folder() -> Path:
    """The checkout from which runs are launched: the working folder, else the one with this package. Raises
    NoSource."""
    for folder in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if is_project(folder):
            return folder
    raise NoSource(
        "no MLproject file of canary-mlflow in the working folder; expected its checkout, from which MLflow Projects "
        "launches runs; change to it"
    )


@contextmanager
def source_of(project: Path, environment: Mapping[str, str], whose: str) -> Iterator[Source]:
    """The code and packages that a run recorded in its `environment` facts; a worktree is removed afterwards.

    `whose`: the beginning of the message of NoSource, which is raised if they are not available.
    """
    commit, now = environment.get("git_commit", UNKNOWN), git(project)
    if commit == UNKNOWN:
        raise NoSource(f"{whose}: its runs carry no git commit; expected one; train it from a checkout")
    manager = manager_for(environment, whose)
    if all(environment.get(key) == now.get(key) for key in ("git_commit", "git_dirty", "git_diff")):
        yield Source(project=project, folder=project, env_manager=manager, commit=commit, here=True)
        return
    if environment.get("git_dirty") != "false":
        raise NoSource(
            f"{whose}: its runs were made with changes that commit {commit[:10]} does not hold; expected a clean "
            "commit; commit before you train"
        )
    with worktree(project, commit, whose) as folder:
        yield Source(project=project, folder=folder, env_manager=manager, commit=commit, here=False)


@contextmanager
def on_node(source: Source, whose: str) -> Iterator[Source]:
    """The same code on a node of a cluster, which has the checkout by the same path: there, or in a worktree of the
    node's own. Raises NoSource."""
    if not is_project(place := source.project):
        raise NoSource(f"{whose}: the node has no {place}; expected the checkout at the same path on every node")
    if source.here:
        yield source
        return
    with worktree(source.project, source.commit, whose) as folder:
        yield replace(source, folder=folder)


@contextmanager
def worktree(project: Path, revision: str, whose: str) -> Iterator[Path]:
    """A checkout of a revision beside this one, for the length of a block. Raises NoSource."""
    revision = commit_of(project, revision, whose)
    with scratch("worktree") as place:
        folder = place / CHECKOUT
        _git(project, "worktree", "add", "--detach", "--quiet", str(folder), revision, whose=whose)
        try:
            if not has_entry(folder):
                raise NoSource(
                    f"{whose}: revision {revision[:40]} has no entry point {ENTRY!r} in its MLproject file; expected a "
                    "revision that can add single runs"
                )
            yield folder
        finally:
            subprocess.run(["git", "-C", str(project), "worktree", "remove", "--force", str(folder)], check=False)


def commit_of(project: Path, revision: str, whose: str) -> str:
    """The full commit that a revision names. Raises NoSource."""
    there = "FETCH_HEAD" if _fetched(project, revision, whose) else revision  # a fetch makes no branch of that name
    return _git(project, "rev-parse", f"{there}^{{commit}}", whose=whose)


def has_entry(folder: Path) -> bool:
    """Whether the project in the folder can make a single run."""
    try:
        found = read_yaml(folder / "MLproject")
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return isinstance(found, dict) and ENTRY in (found.get("entry_points") or {})


def manager_for(environment: Mapping[str, str], whose: str) -> str:
    """`local` if this Python's packages are the recorded ones; else the manager that installs the commit's pins."""
    return installer(whose) if different_packages(environment, packages()) else "local"


def installer(whose: str) -> str:
    """The manager that builds an environment from other pins: uv, beside this Python or on the path, else virtualenv
    with pyenv. Raises NoSource."""
    for program, manager in (("uv", "uv"), ("pyenv", "virtualenv")):
        if on_path(program):
            return manager
    raise NoSource(
        f"{whose}: its packages differ from those here, and neither uv nor pyenv can install them; expected one; "
        "pip install uv"
    )


def different_packages(recorded: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """`torch 2.13.0, not 2.12.0` for each package with another version; the project's own version follows its
    commit."""
    names = [name.replace("-", "_") for name in PACKAGES if name != "canary-mlflow"]
    return [
        f"{name} {other.get(name, 'missing')}, not {recorded.get(name, 'missing')}"
        for name in names
        if recorded.get(name) != other.get(name)
    ]


def _fetched(project: Path, revision: str, whose: str) -> bool:
    """Fetch a revision that a shallow clone lacks from where it was cloned; return whether that was needed."""
    known = ["git", "-C", str(project), "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    if (
        not revision
        or revision.startswith("-")
        or ":" in revision
        or subprocess.run(known, capture_output=True, check=False).returncode == 0
    ):
        return False
    try:
        _git(project, "fetch", "--quiet", "origin", revision.removeprefix("origin/"), whose=whose)
    except NoSource as error:
        raise NoSource(
            f"{whose}: revision {revision[:40]} is not in {project} and cannot be fetched; expected one that git knows"
        ) from error
    return True


def _git(project: Path, *command: str, whose: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(project), *command], capture_output=True, text=True, timeout=PATIENCE, check=True
        )
    except subprocess.CalledProcessError as error:
        raise NoSource(f"{whose}: git {command[0]}: {' '.join(error.stderr.split())[:200]}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise NoSource(f"{whose}: git {command[0]}: {one_line(error)}") from error
    return done.stdout.strip()
