"""Evaluations of versions: each is a run of its own in MLflow and a row of the ledger, and nothing replaces it.

Whoever signs reads the table from the run and digests it: nobody's word counts for a score.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow import tags
from canary_mlflow.errors import UsageError
from canary_mlflow.evals.comparing import groups_of, refuse_same
from canary_mlflow.evals.files import digest
from canary_mlflow.evals.reading import Results, read_results, together
from canary_mlflow.evals.stored import Stored, from_bytes, to_text
from canary_mlflow.gates.model.records import Version
from canary_mlflow.gates.model.wording import counted
from canary_mlflow.ledger.chain import Kind
from canary_mlflow.registry.actors import current_actor, given, refuse_stranger
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.guard.binding import digest_of_all, file_digests
from canary_mlflow.registry.guard.evaluated import ADDED, FILE, WITHDRAWN, numbers_of, table_at
from canary_mlflow.registry.guard.order import Binding, Order
from canary_mlflow.registry.versions import aliases_of, find_version, session_of
from canary_mlflow.resolve import find_named
from canary_mlflow.tracking.stores.session import active_run, find_experiment, get_run, start_run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.registry.backends.registry import Registry

ROLE = "evals"
SEALED, NOT_SHOWN = "sealed", "not shown"
LOGGED = re.compile(r"models:/(m-[^/]+)")  # the source of a version that was made of a logged model
MOST_METRICS = 1000  # in one request to MLflow


@dataclass(frozen=True, kw_only=True)
class Known:
    """A version's evaluations as a verdict takes them. `rows`: as of `numbers_of`. `notes`: what a reader must know."""

    results: Results = field(default_factory=lambda: Results(tables={}, digests={}))
    rows: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def version_named(client: MlflowClient, text: str) -> ModelVersion:
    """The version that a text names. Raises UsageError for an id."""
    if (found := find_named(client, text)) is None:
        raise UsageError(f"{text}: no version; expected MODEL/VERSION or MODEL@ALIAS; name one")
    return found


def known_of(registry: Registry, found: ModelVersion, *, sealed: bool = False) -> Known:
    """Read the version's evaluations, all that were not withdrawn. `sealed`: only those of its sealed weights. Raises
    UsageError for a table that is not the one that was signed; StoreError."""
    subject = f"version {found.version} of {found.name!r}"
    every, several, notes = registry.evaluations(found), [], []
    for one in every:
        name = f"row {one.row}" if one.row else f"run {one.run}"
        if one.withdrawn:
            notes.append(f"version {found.version}: its evaluation in {name} was withdrawn {one.withdrawn}")
            continue
        stored = from_bytes(table_at(one.place, store=registry.client.tracking_uri), f"run {one.run}")
        if one.digest and stored.digest != one.digest:
            raise UsageError(
                f"{subject}: the table of its evaluation in run {one.run} changed since row {one.row} of the ledger; "
                f"expected it unchanged; withdraw that row (canary evals add --withdraw {one.row}), then add it again"
            )
        if one.weights == NOT_SHOWN:
            notes.append(f"version {found.version}: its evaluation in {name} does not show which weights it loaded")
        if one.weights == SEALED or not sealed:
            several.append(stored.results)
    results = together(subject, several) if several else Known().results
    return Known(results=results, rows=numbers_of(every), notes=tuple(notes))


def with_evals(
    registry: Registry, baseline: Version | None, candidate: Version, *, sealed: bool
) -> tuple[Version | None, Version, Known]:
    """Both sides with what was evaluated of them. Raises UsageError for the same file or run on both."""
    sides, found = [side for side in (baseline, candidate) if side], []
    for side in sides:
        its = find_version(registry.client, side.model, str(side.version))
        found.append(known_of(registry, its, sealed=sealed))
    if len(found) == 2:
        refuse_same(found[0].results, found[1].results, f"version {candidate.version} of {candidate.model!r}")
    made = [replace(side, evals=one.results.tables) for side, one in zip(sides, found, strict=True)]
    rows = {number: one for known in found for number, one in known.rows.items()}
    known = Known(results=found[-1].results, rows=rows, notes=tuple(note for one in found for note in one.notes))
    return (made[0] if baseline else None), made[-1], known


def read_paths(paths: Sequence[Path], group: str | None, registry: Registry, model: str) -> Results:
    """What the files and folders hold, grouped as is asked, or as the policy in force says. Raises UsageError."""
    governing = registry.governing(model)
    group_of = groups_of(governing.policy if governing else None, group)
    if not paths:
        raise UsageError(f"{model}: no paths of results; expected one or more; name them")
    return together(str(paths[0]), [read_results(path, group_of) for path in paths])


def add(client: MlflowClient, found: ModelVersion, results: Results, weights: Path | None) -> str:
    """Keep an evaluation of a version, sign it, and return its run. `weights`: the folder that was evaluated. Raises
    UsageError for files that another row has, and for other weights than were sealed; Refused, StoreError."""
    registry = registry_of(client)
    text = to_text(results, folder_digest(registry, found, results, weights))
    refuse(registry, found, from_bytes(text.encode(), "these files"))  # before anything is written
    model, version, session = str(found.name), str(found.version), session_of(found)
    home = get_run(client, session).info.experiment_id if session else find_experiment(client, None)
    name = f"{model}/{version}"
    run_id = start_run(client, home, {tags.ROLE: ROLE, tags.RUN_NAME: f"evals of {name}"[:250], tags.EVALUATES: name})
    try:
        log(client, run_id, found, results, text)
        registry.do(
            "evals",
            {"model": model, "version": version, "run": run_id},
            here=lambda: add_here(registry, model, version, run_id, current_actor()),
            there=refuse_silence,
        )
    except BaseException:  # a signal too
        with suppress(Exception):
            client.delete_run(run_id)
        raise
    return run_id


def refuse_silence(answer: Mapping[str, Any]) -> None:
    """Raise UsageError for a server without these routes."""
    if not answer:
        raise UsageError("this server knows no evaluations; expected one that does; upgrade canary-mlflow there")


def folder_digest(registry: Registry, found: ModelVersion, results: Results, weights: Path | None) -> str:
    """The digest of the folder that was evaluated; "" if nobody named one and the harness's is not the sealed one: a
    path in a log may mean another folder here."""
    if weights is not None:
        if not weights.is_dir():
            raise UsageError(f"--weights {weights}: no folder; expected the one that was evaluated; check the path")
        return digest_of_all(file_digests(weights))
    if any(len(seeds) > 1 for seeds in results.tables.values()):
        return ""  # weights of several trainings
    sealed = (registry.seal(found) or {}).get("artifact")
    folders = [Path(one) for one in sorted(results.loaded) if Path(one).is_dir()]
    return next((one for one in map(lambda one: digest_of_all(file_digests(one)), folders) if one == sealed), "")


def add_here(registry: Registry, model: str, version: str, run_id: str, actor: str) -> None:
    """Sign the table that a run holds. The same checks again: a server has only now seen the files."""
    client = registry.client
    found, run = find_version(client, model, version), active_run(client, run_id)
    every = registry.evaluations(found)
    is_its = (run.data.tags.get(tags.ROLE), run.data.tags.get(tags.EVALUATES)) == (ROLE, f"{model}/{version}")
    if not is_its or run_id in [one.run for one in every]:
        raise UsageError(
            f"run {run_id}: no new evaluation of {model}/{version}; expected one; canary evals add makes it"
        )
    place = f"{run.info.artifact_uri}/{FILE}"
    stored = from_bytes(table_at(place, store=client.tracking_uri), f"run {run_id}")
    if aliases_of(client, found):  # what others are compared with is for who may act by hand
        refuse_stranger(registry.operators, actor, f"evaluations of {model!r}, version {version}")
    shown = refuse(registry, found, stored)
    facts = {
        "run": run_id,
        "place": place,
        "digest": stored.digest,
        "weights": shown,
        "files": dict(stored.results.digests),
        "runs": sorted(stored.results.runs),
        "benchmarks": {name: len(seeds[0].items) for name, seeds in stored.results.tables.items()},
    }
    runs = [one.run for one in every if not one.withdrawn]
    record(registry, found, ADDED, facts, [*runs, run_id], actor, counted(len(facts["benchmarks"]), "benchmark"))


def refuse(registry: Registry, found: ModelVersion, stored: Stored) -> str:
    """Raise UsageError for files or runs of a harness that another evaluation of the model has, for a second one of
    what holds an alias, and for other weights than were sealed; return what is known of the weights."""
    subject, mine = f"version {found.version} of {found.name!r}", stored.results
    held = aliases_of(registry.client, found)
    rows = registry.rows(str(found.name), kind=Kind.EVALS)
    gone = {row.facts["run"] for row in rows if row.word == WITHDRAWN}
    for row in (row for row in rows if row.facts["run"] not in gone):
        facts = row.facts
        same = [mine.digests[key] for key in mine.digests.keys() & facts["files"].keys()]
        same += [f"run {run} of the harness" for run in sorted(mine.runs & set(facts["runs"]))]
        if same:
            raise UsageError(
                f"{subject}: {same[0]} is in row {row.seq} of the ledger, for version {row.version}, already; expected "
                "an evaluation of its own; evaluate its weights"
            )
        again = sorted(mine.tables.keys() & facts["benchmarks"].keys())
        if held and again and row.version == int(found.version):
            raise UsageError(
                f"{subject}: it is {' and '.join(held)}, and row {row.seq} of the ledger has {again[0]}; expected no "
                "second one, which could change what others are compared with; withdraw that row first"
            )
    if not stored.weights:
        return NOT_SHOWN
    if several := next((seeds for seeds in mine.tables.values() if len(seeds) > 1), None):
        raise UsageError(
            f"{subject}: {len(several)} seeds of {several[0].benchmark} with the weights of one folder; expected what "
            "that folder answered; leave out --weights, or add it alone"
        )
    sealed = (registry.seal(found) or {}).get("artifact", "no seal")
    if stored.weights != sealed:
        raise UsageError(
            f"{subject}: the evaluated folder is {stored.weights}, its sealed files are {sealed}; expected the same; "
            "evaluate the weights that were registered"
        )
    return SEALED


def withdraw(client: MlflowClient, found: ModelVersion, which: str, reason: str) -> None:
    """Count an evaluation no more; every verdict says so. `which`: its row or its run. Raises UsageError, Refused."""
    registry, model, version = registry_of(client), str(found.name), str(found.version)
    registry.do(
        "withdrawals",
        {"model": model, "version": version, "row_or_run": which, "reason": reason},
        here=lambda: withdraw_here(registry, model, version, which, reason, current_actor()),
        there=refuse_silence,
    )


def withdraw_here(registry: Registry, model: str, version: str, which: str, reason: str, actor: str) -> None:
    """The same by this process, which signs."""
    found, reason = find_version(registry.client, model, version), given(reason, "why it does not count; it is kept")
    refuse_stranger(registry.operators, actor, f"evaluations of {model!r}, version {version}")
    every = [one for one in registry.evaluations(found) if not one.withdrawn]
    mine = next((one for one in every if which in (str(one.row), one.run)), None)
    if mine is None:
        there = ", ".join(str(one.row or one.run) for one in every) or "none"
        raise UsageError(
            f"version {version} of {model!r}: no evaluation {which[:40]!r}; expected one of its own: {there}"
        )
    left = [one.run for one in every if one is not mine]
    record(registry, found, WITHDRAWN, {"run": mine.run}, left, actor, reason)


def record(
    registry: Registry, found: ModelVersion, word: str, facts: Mapping[str, Any], runs: Sequence[str], actor: str,
    why: str,
) -> None:  # fmt: skip
    """Write the row, and the version's tag that names the evaluations which count."""
    binding = Binding(version_created=int(found.creation_timestamp), source=str(found.source), artifact="", runs={})
    order = Order(
        kind=Kind.EVALS, model=str(found.name), version=str(found.version), word=word, binding=binding, actor=actor,
        reason=why, facts=facts, tags={tags.EVALS: " ".join(runs)},
    )  # fmt: skip
    registry.record(order)


def log(client: MlflowClient, run_id: str, found: ModelVersion, results: Results, text: str) -> None:
    """Scores to look at, the items as datasets, linked to the version's logged model; and the table."""
    from mlflow.entities import Dataset, DatasetInput, Metric

    client.log_text(run_id, text, FILE)
    made, now = LOGGED.fullmatch(str(found.source)), int(time.time() * 1000)
    model = made and made[1]
    datasets, metrics = [], []
    for benchmark, tables in results.tables.items():
        asked = digest(sorted((key, item.prompt) for key, item in tables[0].items.items()))
        datasets.append(DatasetInput(Dataset(benchmark[:500], asked, "evals", "{}")))
        link = {"model_id": model, "dataset_name": benchmark[:500], "dataset_digest": asked} if model else {}
        key, score = "eval/" + re.sub(r"[^\w. /:-]", "_", benchmark)[:200], tables[0].score
        numbers = {f"{key}/items": float(len(tables[0].items))} | ({} if score is None else {key: score})
        metrics += [Metric(name, value, now, 0, **link) for name, value in numbers.items()]
    linked = {}
    if model:  # MLflow 2 has no logged models
        from mlflow.entities import LoggedModelInput

        linked["models"] = [LoggedModelInput(model)]
    client.log_inputs(run_id, datasets, **linked)
    client.log_batch(run_id, metrics[:MOST_METRICS])
    client.set_terminated(run_id)
