"""What a node of a cluster does with a unit: makes its runs in turn, each in a fresh process, and reports their
ends."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from canary_mlflow import errors
from canary_mlflow.errors import BrokeOff, CanaryError, NoSource
from canary_mlflow.tags import CLUSTER_NODE, CLUSTER_UNIT


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a task returned, or the error that it raised, which fits in one line. `node`: where it ran."""

    node: str
    returned: Any = None
    raised: str = ""  # the error's class; '' if there is none
    said: str = ""
    run_id: str = ""  # of a run that an exception ended

    def settle(self) -> Any:
        """Return what was returned, or raise what was raised."""
        if not self.raised:
            return self.returned
        if self.raised == BrokeOff.__name__:
            raise BrokeOff(self.said, self.run_id)
        kind = getattr(errors, self.raised, CanaryError)
        raise kind(self.said)


def perform(unit: Mapping[str, Any], node: str) -> list[dict[str, Any]]:
    """Do the tasks of a unit. An error that is no evidence ends the unit; a run that broke off, or code that is not
    available, does not: the other side of a pair is still needed."""
    os.environ.update(unit["environment"])
    if Path(unit["folder"]).is_dir():  # by a shared path; else where the runtime environment has put the code
        os.chdir(unit["folder"])
    tags = {CLUSTER_NODE: node, CLUSTER_UNIT: str(unit["id"])}
    found: list[Outcome] = []
    for task in unit["tasks"]:
        module, _, name = task["entry"].partition(":")
        try:
            returned = getattr(import_module(module), name)(tags=tags, **task["arguments"])
            found.append(Outcome(node=node, returned=returned))
        except CanaryError as error:
            kind = next(each.__name__ for each in type(error).__mro__ if each.__module__ == errors.__name__)
            run_id = getattr(error, "run_id", "")
            found.append(Outcome(node=node, raised=kind, said=str(error), run_id=run_id))
            if not isinstance(error, BrokeOff | NoSource):
                break
    return [asdict(one) for one in found]


def project_run(
    *,
    tags: Mapping[str, str],
    store: str,
    project: str,
    commit: str,
    here: bool,
    manager: str,
    session: str,
    **asked: Any,
) -> str:
    """One run of a session by MLflow Projects, as `canary_mlflow.launching.projects.launch` makes it, from the checkout
    `project`, which the node has by the same path, or a worktree of its own of the commit. Returns its id."""
    from canary_mlflow.launching.projects import launch
    from canary_mlflow.launching.sources import Source, worktree
    from canary_mlflow.tracking.stores.store import prepare_store

    client, folder, whose = prepare_store(store), Path(project), str(asked["name"])
    if not (folder / "MLproject").is_file():
        raise NoSource(f"{whose}: the node has no {folder}; expected the checkout at the same path on every node")
    if here:
        source = Source(folder=folder, env_manager=manager, commit=commit, here=True)
        return launch(client, source, session, tags=tags, **asked)
    with worktree(folder, commit, whose) as place:
        source = Source(folder=place, env_manager=manager, commit=commit, here=False)
        return launch(client, source, session, tags=tags, **asked)
