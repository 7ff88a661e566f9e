"""MLflow plugin that chooses the experiment if nobody named one: `mlflow run .` in this project's folder records into
`canary`, and a script's own runs into the experiment of the session that they join.

It also makes the SQLite store, once and under a lock, before MLflow would make it without a lock, and renews the link
to the project's environment if it points to a removed checkout. As MLflow always loads it, it also watches MLflow's
migrations. It is loaded while MLflow is half imported, so it imports MLflow only when asked.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from canary_mlflow.ledger.migrations import watch

EXPERIMENT = "canary"
FALLBACK = "0"  # MLflow's own default experiment
VARIABLE = "CANARY_SESSION"  # environment variable: the id of the open session

log = logging.getLogger("canary_mlflow")
_PROJECT = re.compile(r"^name:\s*['\"]?canary_mlflow['\"]?\s*(#.*)?$", re.MULTILINE)


class CanaryExperimentProvider:
    """Entry point of the group `mlflow.default_experiment_provider`. Duck-typed, as the base class is MLflow's."""

    def __init__(self) -> None:
        watch()  # MLflow makes an instance on import

    def in_context(self) -> bool:
        """True while a session of own scripts is open, and in a process whose working folder holds this project's
        MLproject file."""
        return bool(os.environ.get(VARIABLE)) or is_project(Path())

    def get_experiment_id(self) -> str:
        """The id of the open session's experiment, else of `canary`; MLflow's default experiment when the store cannot
        be prepared."""
        from mlflow.exceptions import MlflowException

        from canary_mlflow.errors import CanaryError, one_line
        from canary_mlflow.link_env import link_where_none
        from canary_mlflow.tracking.stores.session import get_run
        from canary_mlflow.tracking.stores.store import experiment_id, prepare_store

        if session := os.environ.get(VARIABLE):
            try:
                return str(get_run(prepare_store(), session).info.experiment_id)
            except (CanaryError, MlflowException):
                return FALLBACK  # the callback says what is wrong with that session
        try:
            link_where_none(Path.cwd())
        except (ImportError, OSError) as error:  # `mlflow run` then builds an environment, or reports that it cannot
            log.warning("canary: %s", one_line(error))
        try:
            return experiment_id(prepare_store(), EXPERIMENT)
        except (CanaryError, MlflowException) as error:
            log.warning("canary: %s", one_line(error))
            return FALLBACK


def is_project(folder: Path) -> bool:
    """True for a folder that holds this project's MLproject file."""
    try:
        return bool(_PROJECT.search((folder / "MLproject").read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return False
