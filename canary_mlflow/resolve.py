"""What a text stands for that a person gives: a run, a session, a version by its number or alias; and their runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from canary_mlflow.errors import NoSuchRun, UsageError
from canary_mlflow.gates.model.records import Version
from canary_mlflow.gates.model.wording import listed
from canary_mlflow.registry.sessions.orders import version_with
from canary_mlflow.registry.versions import find_version, holder_of, no_such_alias
from canary_mlflow.tags import MODEL_NAME, PROFILE_OF, ROLE, TIER
from canary_mlflow.tracking.reading.histories import read_runs, session_runs
from canary_mlflow.tracking.reading.profile import PROFILE
from canary_mlflow.tracking.stores.session import active_run, child_runs, get_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun
    from mlflow.entities.model_registry import ModelVersion

PARENTS = {"revisions": "a comparison of two revisions", "sweep": "a sweep"}
"""Roles of runs that contain sessions instead of runs."""


@dataclass(frozen=True, kw_only=True)
class VersionName:
    """MODEL/VERSION (`alias` None) or MODEL@ALIAS (`number` None), as somebody wrote it."""

    model: str
    number: str | None = None
    alias: str | None = None


@dataclass(frozen=True, kw_only=True)
class NamedEvidence:
    """One side of a comparison: its runs, its name, and the tier under which it was made (empty if unknown)."""

    label: str
    evidence: Version
    tier: str


def version_name(text: str) -> VersionName | None:
    """MODEL/VERSION or MODEL@ALIAS, also after models:/; None for any other text, such as an id."""
    name = text.removeprefix("models:/")
    if "@" in name:
        model, _, alias = name.rpartition("@")
        return VersionName(model=model, alias=alias) if model else None
    model, _, number = name.rpartition("/")
    return VersionName(model=model, number=number) if model else None


def find_named(client: MlflowClient, text: str) -> ModelVersion | None:
    """The version that a text names, as for `version_name`; None for an id. Raises NoSuchModel, NoSuchVersion, and
    UsageError for an alias that names nothing."""
    named = version_name(text)
    if named is None:
        return None
    number = named.number if named.alias is None else holder_of(client, named.model, named.alias)
    if number is None:
        raise UsageError(no_such_alias(client, named.model, str(named.alias)))
    return find_version(client, named.model, number)


def find_run(client: MlflowClient, text: str) -> MlflowRun:
    """The run with this id. Raises NoSuchRun; UsageError for a model's name, which is not specific enough."""
    from mlflow.exceptions import MlflowException

    try:
        return active_run(client, text)
    except NoSuchRun as error:
        try:
            client.get_registered_model(text)
        except MlflowException:
            raise error from None
        raise UsageError(
            f"{text!r}: a model; expected a run, or one of its versions; {text}@champion or {text}/VERSION"
        ) from None


def find_evidence(client: MlflowClient, text: str) -> NamedEvidence:
    """The side that `text` names: a run id, a session id, MODEL/VERSION, MODEL@alias, or the last two after models:/.

    Raises NoSuchRun, NoSuchModel, NoSuchVersion, or UsageError for an alias that names nothing.
    """
    found = find_named(client, text)
    return run_side(client, text) if found is None else version_side(client, found)


def version_side(client: MlflowClient, found: ModelVersion) -> NamedEvidence:
    """A model version: its session's runs."""
    model, number = str(found.name), str(found.version)
    evidence, tier = version_with(client, model, number), tier_of(client, found)
    return NamedEvidence(label=f"{model} version {number}", evidence=evidence, tier=tier)


def tier_of(client: MlflowClient, found: ModelVersion) -> str:
    """The tier of a version's source run; empty if the run has none."""
    return tags_of(client, found.run_id).get(TIER, "") if found.run_id else ""


def tags_of(client: MlflowClient, run_id: str) -> dict[str, str]:
    """A run's tags. Raises NoSuchRun if there is no such run."""
    return dict(get_run(client, run_id).data.tags)


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
