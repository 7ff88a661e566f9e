"""Continues a comparison of two revisions: what was compared, which runs it has, and how often it was judged."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import yaml

from canary_mlflow.errors import UsageError, one_line
from canary_mlflow.files.documents import read_yaml
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.verdict import Outcome
from canary_mlflow.launching.added_runs import same_hardware
from canary_mlflow.launching.revisions import POLICY_FILE, SIDES, Revision, Trial, ended_afterwards, first_pairs
from canary_mlflow.launching.sources import Source
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.judging.looks import looks_taken
from canary_mlflow.registry.sessions.leftovers import clear
from canary_mlflow.tags import OURS, OVERRIDES, SIDE, VERDICT
from canary_mlflow.tracking.stores.session import active_run, child_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient


def recorded(client: MlflowClient, run_id: str) -> Trial:
    """The comparison that a run is the parent of. Raises UsageError for another run, or one that was decided."""
    run = active_run(client, run_id)
    tags = run.data.tags
    sessions = {
        child.data.tags[SIDE]: child.info.run_id for child in child_runs(client, run_id) if SIDE in child.data.tags
    }
    if set(sessions) != set(SIDES) or OVERRIDES not in tags:
        raise UsageError(f"--continue {run_id}: found another run; expected the session that `canary ab` named")
    if (verdict := tags.get(VERDICT)) in (Outcome.PASS, Outcome.BLOCK):
        raise UsageError(f"--continue {run_id}: it was decided: {verdict}; expected one that is open")
    named = {side: tags[f"{OURS}{side}"].rpartition(" ") for side in SIDES}
    return Trial(
        client=client,
        parent=run_id,
        revisions={side: Revision(name=name, commit=commit) for side, (name, _, commit) in named.items()},
        sessions=sessions,
        overrides=tuple(shlex.split(tags[OVERRIDES])),
        policy=_policy_of(client, run_id),
    )


def _policy_of(client: MlflowClient, run_id: str) -> Policy:
    from mlflow.exceptions import MlflowException

    try:
        with TemporaryDirectory() as folder:
            found = read_yaml(Path(client.download_artifacts(run_id, POLICY_FILE, folder)))
        return load_policy(found)
    except (MlflowException, OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(
            f"--continue {run_id}: its {POLICY_FILE} cannot be read ({one_line(error)}); expected it among its "
            "artifacts; begin anew without --continue"
        ) from error


def pairs_wanted(begun: Trial, asked: int | None) -> int | None:
    """The number of pairs to continue to, once, if somebody `asked` for one; None: follow the plan.

    Raises UsageError if that many were already judged, or if the plan has no look left.
    """
    taken = [look.runs for look in looks_taken(begun.client, begun.parent, SIDES[0])]
    least = max([first_pairs(begun.policy) - 1, *taken]) + 1
    if asked is not None and asked < least:
        raise UsageError(f"--pairs {asked}: expected at least {least}; {max(taken, default=0)} pairs have been judged")
    if asked is None and not begun.policy.looks.left(taken):
        raise UsageError(
            f"--continue {begun.parent}: its plan is spent (judged at {', '.join(map(str, taken))} pairs); expected a "
            f"number to go on to; add --pairs N, {least} or more"
        )
    return asked


@contextmanager
def taken_up(begun: Trial, sources: dict[str, Source]) -> Iterator[Trial]:
    """The trial that was begun, reopened for the length of a block. Raises UsageError on another machine than that of
    its runs."""
    client = begun.client
    for run in [run for version in begun.versions() for run in version.runs][:1]:
        same_hardware(f"--continue {begun.parent}", run)
    ids = (begun.parent, *begun.sessions.values())
    clear(client)
    with ended_afterwards(client, ids):
        for run_id in ids:
            client.update_run(run_id, "RUNNING")
        yield replace(begun, sources=sources)
