"""Makes a session a model version, with its weights or as evidence only: registered and sealed, or not there at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow import tags
from canary_mlflow.errors import UsageError
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.evaluations import add, read_paths
from canary_mlflow.registry.guard.seal import seal_version
from canary_mlflow.registry.sessions.leftovers import drop_unsealed
from canary_mlflow.registry.sessions.own import broken_off, check_name
from canary_mlflow.registry.sessions.rows import record_runs
from canary_mlflow.registry.sessions.weights_check import check_weights, evaluate
from canary_mlflow.registry.versions import Weights, ensure_model, find_version
from canary_mlflow.resolve import refuse_profile
from canary_mlflow.tracking.delivery.uploading import upload
from canary_mlflow.tracking.stores.session import active_run, child_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def register_version(
    client: MlflowClient,
    model_name: str,
    session_id: str,
    source_run_id: str,
    *,
    weights: Weights = Weights.FILES,
    evaluation: Mapping[str, Any] | None = None,
) -> str:
    """Register `model/` of one run of a session (or of the session itself), with the session as its evidence, and seal
    it; returns the version's number. `evaluation`: what the run found when it evaluated its saved weights again.

    The model is created if it is missing. Sessions that end at the same moment get different numbers.
    """
    record_runs(client, session_id, model_name)
    source = f"{client.get_run(source_run_id).info.artifact_uri}/model"
    with registry_of(client).registering():
        ensure_model(client, model_name)
        known = {tags.SESSION_ID: session_id}
        version = client.create_model_version(model_name, source, run_id=source_run_id, tags=known)
    number = str(version.version)
    try:
        seal_version(client, model_name, number, weights=weights, evaluation=evaluation)
    except BaseException:  # a signal too
        with suppress(Exception):
            drop_unsealed(client, session_id)
        raise
    return number


def register_session(
    client: MlflowClient, session_id: str, model: str | None, weights: Path | None, evals: Sequence[Path] = ()
) -> tuple[str, str]:
    """Register a new version with the session as its evidence, and return (model, number); nothing is judged.

    `model`: by default the one that the session was started for. `weights`: the folder of the model that the session
    trained, which is copied to the session's artifacts. `evals`: results of benchmarks, for that version. Raises
    NoSuchRun; UsageError for a session that is still open, has no runs or is already a version's evidence, for an
    invalid model name, and for a folder without weights or whose model or tokenizer cannot be loaded; StoreError.
    """
    session = active_run(client, session_id)
    refuse_profile(session_id, session.data.tags)
    name = model or session.data.tags.get(tags.MODEL_NAME, "")
    if not name:
        raise UsageError(f"session {session_id}: it names no model; expected the name of one; add it to the command")
    check_name(name)
    refuse_unready(client, session)
    results = read_paths(evals, None, registry_of(client), name) if evals else None
    evaluation = None
    if weights is not None:
        check_weights(weights, session_id)
        evaluation, _ = evaluate(registry_of(client), session_id, weights)
        upload(client, session_id, weights, "model")
    # The session is the source run, as it is not known from which of its runs the weights come.
    kept = Weights.NONE if weights is None else Weights.FILES
    version = register_version(client, name, session_id, session_id, weights=kept, evaluation=evaluation)
    if results is not None:
        add(client, find_version(client, name, version), results, weights)
    return name, version


def refuse_unready(client: MlflowClient, session: Run) -> None:
    """Raise UsageError for a session that cannot be evidence, or already is a version's."""
    session_id = session.info.run_id
    if session.info.status == "RUNNING":
        raise UsageError(f"session {session_id}: it is still open; expected one that has ended; canary session end")
    if not any(run.data.tags.get(tags.ROLE) == "run" for run in child_runs(client, session_id)):
        raise UsageError(
            f"session {session_id}: no runs in it; expected trainings with callbacks=[CanaryCallback()] that ran while "
            "it was open"
        )
    for version in client.search_model_versions(tags.where(tags.SESSION_ID, session_id)):
        raise UsageError(
            f"session {session_id}: it is the evidence of {version.name} version {version.version} already; expected a "
            f"separate session for each version; judge that one: canary gate {version.name} {version.version}"
        )


def flaws_of(client: MlflowClient, session_id: str) -> str:
    """What a reader should know about a session before it is judged: `1 of its 3 runs broke off (seed 2: …)`; '' if
    nothing."""
    runs = [run for run in child_runs(client, session_id) if run.data.tags.get(tags.ROLE) == "run"]
    broken = broken_off(runs)
    return broken.replace(" of them", f" of its {len(runs)} runs", 1)
