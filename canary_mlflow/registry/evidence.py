"""Resolves what a user types (run, session, version, champion) to the runs that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from canary_mlflow.errors import NoSuchModel, UsageError
from canary_mlflow.registry.sessions.orders import version_with
from canary_mlflow.registry.versions import CHAMPION, champion_number, find_version, no_such_alias
from canary_mlflow.reports.decision import RunWarning
from canary_mlflow.tags import MODEL_NAME, PARENT_RUN, PROFILE_OF, ROLE, SEED, SESSION_ID, TIER
from canary_mlflow.tracking.reading.facts import warnings_in
from canary_mlflow.tracking.reading.histories import read_runs, session_runs
from canary_mlflow.tracking.reading.profile import PROFILE
from canary_mlflow.tracking.stores.session import child_runs, get_run
from gates.model.records import Version
from gates.model.verdict import Verdict
from gates.model.wording import listed

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

PARENTS = {"revisions": "a comparison of two revisions", "sweep": "a sweep"}
"""Roles of runs that contain sessions instead of runs."""


@dataclass(frozen=True, kw_only=True)
class NamedEvidence:
    """One side of a comparison: its runs, its name, and the tier under which it was made (empty if unknown)."""

    label: str
    evidence: Version
    tier: str


def find_evidence(client: MlflowClient, text: str) -> NamedEvidence:
    """The side that `text` names: a run id, a session id, MODEL/VERSION, MODEL@alias, or the last two after models:/.

    Raises NoSuchRun, NoSuchModel, NoSuchVersion, or UsageError for an alias that names nothing.
    """
    named = version_named(client, text)
    return run_side(client, text) if named is None else version_side(client, *named)


def version_named(client: MlflowClient, text: str) -> tuple[str, str] | None:
    """(model, version) for MODEL/VERSION or MODEL@alias, with or without models:/; None for anything else, such as a
    run's id. Raises NoSuchModel, or UsageError for an alias that names nothing."""
    name = text.removeprefix("models:/")
    model, sign, rest = name.rpartition("@" if "@" in name else "/")
    return (model, aliased(client, model, rest) if sign == "@" else rest) if sign else None


def aliased(client: MlflowClient, model: str, alias: str) -> str:
    """The version number behind an alias."""
    if alias == CHAMPION and (number := champion_number(client, model)) is not None:
        return number
    champion_number(client, model)  # raises if the model itself is unknown
    number = client.get_registered_model(model).aliases.get(alias)
    if number is None:
        raise UsageError(no_such_alias(client, model, alias))
    return str(number)


def version_side(client: MlflowClient, model: str, version: str) -> NamedEvidence:
    """A model version: its session's runs."""
    found = find_version(client, model, version)
    number = str(found.version)
    return NamedEvidence(
        label=f"{model} version {number}",
        evidence=version_with(client, model, number),
        tier=tier_of(client, model, number),
    )


def champion_runs(client: MlflowClient, model: str) -> list[str]:
    """The ids of the champion's runs; empty if there is no such model, or no champion."""
    try:
        number = champion_number(client, model)
    except NoSuchModel:
        return []
    found = None if number is None else find_version(client, model, number)
    session = "" if found is None else (found.tags or {}).get(SESSION_ID, "")
    children = child_runs(client, session) if session else []
    return [run.info.run_id for run in children if run.data.tags.get(ROLE) == "run"]


def champion_beside(client: MlflowClient, side: NamedEvidence) -> list[str]:
    """The runs of the champion of a side's model, without the side's own; empty if it has no model, or no champion."""
    own, model = [run.run_id for run in side.evidence.runs], side.evidence.model
    if own and not model:  # a single run: its session knows
        parent = get_run(client, own[0]).data.tags.get(PARENT_RUN, "")
        model = tags_of(client, parent).get(MODEL_NAME, "") if parent else ""
    return [run for run in champion_runs(client, model) if run not in own] if model else []


def work_of_champion(client: MlflowClient, model: str) -> dict[str, str]:
    """The workload that the champion's runs declare; empty if there is no champion, or its runs declare none."""
    declared = (run.workload for run in read_runs(client, champion_runs(client, model), metrics=()))
    return dict(next((workload for workload in declared if workload), {}))


def tier_of(client: MlflowClient, model: str, version: str) -> str:
    """The tier of a version's source run; empty if the run has none."""
    run_id = find_version(client, model, version).run_id
    return tags_of(client, run_id).get(TIER, "") if run_id else ""


def run_side(client: MlflowClient, run_id: str) -> NamedEvidence:
    """A session (all its runs) or a single run. Raises UsageError for a parent of several sessions, a profile, or a run
    that only others wrote to, as without the callback's tags it would read as broken off."""
    tags = tags_of(client, run_id)
    role = tags.get(ROLE, "")
    refuse_profile(run_id, tags)
    if role in PARENTS:
        below = listed(sessions_below(client, run_id), most=6) or "none yet"
        raise UsageError(f"run {run_id}: found {PARENTS[role]}; expected one session; name one of its own: {below}")
    runs = () if role == "run" else session_runs(client, run_id)
    session = role == "session" or bool(runs)  # any run under which recorded runs are nested
    if not session and not role:
        raise UsageError(
            f"run {run_id}: no CanaryCallback recorded it (it has no tag {ROLE}); expected a run that one did; "
            "export its history as CSV or JSONL for canary judge or canary import"
        )
    runs = runs if session else read_runs(client, [run_id])
    # Sessions of `canary ab` have no tier, but their runs do.
    tiers = (tags_of(client, run.run_id).get(TIER, "") or run.workload.get("tier", "") for run in runs[:1])
    tier = tags.get(TIER, "") or next(tiers, "")
    kind = "session" if session else "run"
    return NamedEvidence(
        label=f"{kind} {run_id}",
        evidence=Version(model=tags.get(MODEL_NAME, ""), version=None, runs=runs),
        tier=tier,
    )


def refuse_profile(run_id: str, tags: Mapping[str, str]) -> None:
    """Raise UsageError for a run that only profiles another's configuration."""
    if tags.get(ROLE) == PROFILE:
        of = tags.get(PROFILE_OF, "")
        raise UsageError(
            f"run {run_id}: found a profile, which is never evidence; expected what it repeats: {of}; "
            f"canary profile {of} shows the profile"
        )


def sessions_below(client: MlflowClient, parent: str) -> list[str]:
    """The sessions of a sweep or of a comparison of revisions, each with its name."""
    return [
        f"{run.info.run_id} ({run.info.run_name})"
        for run in child_runs(client, parent)
        if run.data.tags.get(ROLE) == "session"
    ]


def tags_of(client: MlflowClient, run_id: str) -> dict[str, str]:
    """A run's tags. Raises NoSuchRun if there is no such run."""
    return dict(get_run(client, run_id).data.tags)


def is_own_script(client: MlflowClient, found: ModelVersion) -> bool:
    """Whether a version was registered from a session itself (`canary register`), and not from a canary's run."""
    return bool(found.run_id) and tags_of(client, found.run_id).get(ROLE) == "session"


def warnings_of(client: MlflowClient, verdict: Verdict) -> tuple[RunWarning, ...]:
    """What the watch said about the candidate's runs."""
    found = [(run_id, get_run(client, run_id).data.tags) for run_id in verdict.candidate_runs]
    return tuple(
        RunWarning(run=f"seed {tags[SEED]}" if SEED in tags else f"run {run_id}", warning=warning)
        for run_id, tags in found
        for warning in warnings_in(tags)
    )
