"""What keeps a version from being promoted, whatever its runs showed: one place for the gate and for acts by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from canary_mlflow import tags
from canary_mlflow.errors import UsageError
from canary_mlflow.gates.metric_checks import too_short
from canary_mlflow.gates.model.policy import Bootstrap, Policy
from canary_mlflow.gates.model.records import Run, Version
from canary_mlflow.gates.model.sides import candidate_side, planned
from canary_mlflow.gates.model.verdict import Outcome, ReasonCode, Verdict
from canary_mlflow.gates.model.wording import counted
from canary_mlflow.gates.top_up import champion_runs
from canary_mlflow.reports.decision import HeldBy, Hold

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

MADE_WITH = "its runs were made with "


def could_begin(policy: Policy, verdict: Verdict) -> bool:
    """Whether the policy makes a version without a baseline the first champion."""
    return verdict.reason_code is ReasonCode.NO_BASELINE and policy.bootstrap is Bootstrap.AUTO


def holds_of(
    policy: Policy, found: ModelVersion, baseline: Version | None, candidate: Version, verdict: Verdict,
    promote: bool | None, code: bool = False,
) -> tuple[Hold, ...]:  # fmt: skip
    """Everything that holds the version back. `promote`: True also over a newer champion, False not at all, None only
    over an older one. `code`: loading its files can run some."""
    holds = []
    if load := load_of(found, candidate.runs):
        holds.append(Hold(by=HeldBy.LOAD, reason=f"{MADE_WITH}{load}"))
    if code and policy.refuse_code:
        holds.append(Hold(by=HeldBy.CODE, reason="its policy refuses files that can run code when they are loaded"))
    champion = baseline.version if baseline else None
    if promote is None and champion is not None and int(found.version) < int(champion):
        holds.append(Hold(by=HeldBy.OLDER, reason=f"version {champion}, the champion, is newer"))
    if promote is False:
        holds.append(Hold(by=HeldBy.ASKED, reason="only its verdict was asked for"))
    if verdict.outcome is Outcome.PASS or could_begin(policy, verdict):
        needed, have = champion_runs(policy, baseline, candidate), planned(candidate_side(candidate.runs).finished)
        if have < needed:
            like = f", as version {champion} has" if needed > policy.min_baseline_runs else ""
            reason = f"it has {counted(have, 'run')}, a champion needs {needed}{like}"
            holds.append(Hold(by=HeldBy.RUNS, reason=reason, runs=needed))
    if could_begin(policy, verdict) and (short := too_short(policy, candidate)):
        holds.append(Hold(by=HeldBy.SHORT, reason=f"its runs are too short to judge later ones against: {short}"))
    return tuple(holds)


def only_looked_at(found: ModelVersion, holds: Iterable[Hold]) -> bool:
    """Whether judging the version only reads: it is older than the champion, has a verdict, and nobody asked for
    more."""
    return tags.VERDICT in (found.tags or {}) and any(hold.by is HeldBy.OLDER for hold in holds)


def load_of(found: ModelVersion, made: Iterable[Run]) -> str:
    """Why its runs are no standard for others, such as a fault; '' if they are. Once a verdict has marked the version,
    the mark counts whatever has become of its runs: anybody can remove them or their tags."""
    marked = str((found.tags or {}).get(tags.NOT_PROMOTABLE, "")).removeprefix(MADE_WITH)
    return next((run.not_promotable for run in made if run.not_promotable), marked)


def refuse_load(found: ModelVersion, made: Iterable[Run]) -> None:
    """Raise UsageError for a version that nobody may promote, not even by hand."""
    if load := load_of(found, made):
        raise UsageError(
            f"version {found.version} of {found.name!r}: {MADE_WITH}{load}; expected runs without, because such a "
            "version is judged and shown, never champion or a baseline; train it again without"
        )
