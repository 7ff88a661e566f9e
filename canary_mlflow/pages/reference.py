"""What a run's curves are shown beside: the runs that its verdict compared it with, else those of the champion."""

from __future__ import annotations

from dataclasses import dataclass

from canary_mlflow.pages.facts import children_of, read_facts
from canary_mlflow.pages.models import champion_session
from canary_mlflow.pages.requests import readers
from canary_mlflow.pages.verdict import judged
from canary_mlflow.tracking.reading.facts import RunFacts
from canary_mlflow.tracking.reading.numbers import count
from canary_mlflow.tracking.stores.read_only import reading


@dataclass(frozen=True, kw_only=True)
class Champion:
    """The champion behind a band. `said`: a sentence about it, or on why there is none; then `run_ids` is empty."""

    said: str
    version: int | None = None
    run_ids: tuple[str, ...] = ()


def champion_of(tracking: str, registry: str, run: RunFacts, model: str, session: RunFacts | None) -> Champion:
    """The champion whose runs a run is shown with, or a sentence on why there is none. For a judged session, that is
    what it was judged against: also once it, or another version, is champion itself."""
    if not model:
        return Champion(said="No band of a champion: this run belongs to no session of a registered model.")
    unreadable = f"No band of a champion: you may not read that of {model}."
    if not readers().model(model):
        return Champion(said=unreadable)
    with reading(registry) as connection:
        version, evidence = champion_session(connection, model)
    known = judged(registry, session) if session is not None and session.tags.get("canary.verdict") else None
    before = known[1].verdict if known is not None and known[1].verdict.baseline_runs else None
    if version is None and before is None:
        return Champion(said=f"No band of a champion: {model} has none yet.")
    if before is None and evidence and evidence == run.parent:
        return Champion(said=f"This run is evidence of the champion itself, version {version}.", version=version)
    with reading(tracking) as connection:
        ids = before.baseline_runs if before else children_of(connection, [evidence]).get(evidence, [])
        runs = list(read_facts(connection, ids, latest=()).values())
    then = before is not None and before.baseline_version != str(version)
    version = count(before.baseline_version or "") if before else version
    if not all(readers().experiment(one.experiment) for one in runs):
        return Champion(said=unreadable)
    alike = [one for one in runs if workload(one) == workload(run) and one.tags.get("canary.completed") == "true"]
    if not runs:
        return Champion(said=f"No band of the champion: the runs of version {version} are gone.", version=version)
    if not alike:
        return Champion(
            said=f"No band of the champion: version {version} did other work than this run.", version=version
        )
    what = f"the range of {len(alike)} runs" if len(alike) > 1 else "a line, the one run"
    return Champion(
        said=f"Grey: {what} of the champion{' then' if then else ''}, version {version}.",
        version=version,
        run_ids=tuple(one.run_id for one in alike),
    )


def workload(run: RunFacts) -> dict[str, str]:
    """The workload tags: two runs can be compared if they are equal."""
    return {key: value for key, value in run.tags.items() if key.startswith("canary.workload.")}
