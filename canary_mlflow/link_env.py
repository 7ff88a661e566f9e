"""Make `mlflow run .` use the environment that runs this module: no conda, pyenv or second copy."""

from __future__ import annotations

import os
import sys
from pathlib import Path

MARKER = ".mlflow-env"  # a file in the environment that tells where MLflow's link to it is


def place_of(project: Path) -> Path:
    """Where MLflow looks for the environment of `project`.

    MLflow has no public name for that place; a test checks the three private names used here. The place depends only on
    python_env.yaml and requirements.txt, so checkouts with the same ones share it.
    """
    from mlflow.projects.utils import load_project
    from mlflow.utils.environment import _PythonEnv
    from mlflow.utils.virtualenv import _get_mlflow_virtualenv_root, _get_virtualenv_name

    loaded = load_project(str(project))
    name = _get_virtualenv_name(_PythonEnv.from_yaml(loaded.env_config_path), str(project))
    return Path(str(_get_mlflow_virtualenv_root())) / str(name)


def link(project: Path, prefix: Path) -> Path:
    """Put a link to `prefix` at that place; an environment that MLflow has built there stays."""
    place = place_of(project)
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink() or not place.exists():
        made = place.with_name(f"{place.name}.{os.getpid()}")
        made.symlink_to(prefix)
        made.replace(place)  # atomic: another checkout may be looking
    (prefix / MARKER).write_text(f"{place}\n")
    return place


def link_where_none(project: Path) -> None:
    """Link the project's own `.venv`, if there is no link yet, or only one to a checkout that is gone."""
    prefix = Path(sys.prefix)
    if prefix.resolve() == (project / ".venv").resolve() and not place_of(project).exists():
        link(project, prefix)


def main() -> int:
    """Link this interpreter's environment to the project in the working folder."""
    try:
        place = link(Path.cwd(), Path(sys.prefix))
    except ImportError as error:
        print(
            f"this MLflow has no {error.name or error}; expected mlflow 3.17; use `mlflow run . --env-manager local`",
            file=sys.stderr,
        )
        return 4
    print(f"mlflow run . uses {sys.prefix} (through {place})", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
