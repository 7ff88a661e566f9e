"""The commands as functions, with the same results, for scripts and notebooks. See docs/python.md.

A `tracking_uri` of None means MLflow's own choice (`mlflow.set_tracking_uri`, MLFLOW_TRACKING_URI, else mlflow.db in
the working folder). Errors are raised as subclasses of `CanaryError`; their text is the line that the command prints.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import plainly

if TYPE_CHECKING:
    from canary_mlflow.files.replaying import Replayed
    from canary_mlflow.reports.decision import Decision
    from canary_mlflow.reports.diff import Diff

Rules = str | Path | Mapping[str, Any]
"""A policy: a shipped name, a YAML file, or its keys."""

Files = str | Path | Sequence[str | Path]

log = logging.getLogger("canary_mlflow")


@plainly
def compare(baseline: str, candidate: str, *, policy: Rules | None = None, tracking_uri: str | None = None) -> Decision:
    """Compare the evidence of two sides, as `canary compare` does; writes nothing.

    Each side is a run id, a session id, "MODEL/VERSION", "MODEL@champion" or "models:/MODEL/VERSION". `policy`: by
    default that of the candidate's session or tier. `decision.verdict` holds the outcome, its reason and one check per
    rule; a check's `evidence` has the numbers, in the unit that it names. Raises NoSuchRun, NoSuchModel,
    NoSuchVersion, StoreError, and UsageError for an unknown or missing policy.
    """
    from canary_mlflow.policies import rules_for
    from canary_mlflow.registry.judging.gatekeeper import compare as compare_sides
    from canary_mlflow.resolve import find_evidence
    from canary_mlflow.tracking.stores.store import reading_store

    client = reading_store(tracking_uri)
    left, right = find_evidence(client, baseline), find_evidence(client, candidate)
    rules = rules_for(policy, right.tier or left.tier, candidate)
    return compare_sides(client, rules, left.evidence, right.evidence, (left.label, right.label))


@plainly
def diff(baseline: str, candidate: str, *, tracking_uri: str | None = None) -> Diff:
    """The exact differences between two sides, named as for `compare`; judges nothing and writes nothing.

    `differences`: in exact facts, configuration, code, packages, data, hardware and work. `exit_code`: that of
    `canary diff`. Raises NoSuchRun, NoSuchModel, NoSuchVersion, StoreError.
    """
    from canary_mlflow.reports.diff import between
    from canary_mlflow.resolve import find_evidence
    from canary_mlflow.tracking.stores.store import existing_store

    client = existing_store(tracking_uri)
    left, right = find_evidence(client, baseline), find_evidence(client, candidate)
    return between(left.evidence, right.evidence, (left.label, right.label))


@plainly
def gate(
    model: str,
    version: str | int,
    *,
    policy: Rules | None = None,
    dry_run: bool = False,
    top_up: bool = False,
    promote: bool | None = None,
    launcher: str = "local",
    tracking_uri: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Decision:
    """Judge a version against the champion, as `canary gate` does; a PASS (or a bootstrap) makes it champion.

    `policy`: by default the one in force for the model; if the ledger or a server sets one, no other is allowed.
    `promote`: True lets a PASS also replace a newer champion; False records the verdict and moves nothing. `dry_run`:
    judge, but write nothing. `top_up`: make the missing runs through MLflow Projects until they decide, with the
    `launcher` "local" or "ray"; `say` is called with lines of progress. The decision's `exit_code` is the command's: 0
    PASS or bootstrap, 1 BLOCK, 3 INCONCLUSIVE. Raises NoSuchModel, NoSuchVersion, UsageError, BaselineMoved, Refused,
    NoSource, StoreError.
    """
    from canary_mlflow.analysis.reading import publish_study
    from canary_mlflow.registry.judging.gatekeeper import gate as judge_version
    from canary_mlflow.registry.policies.asked import file_of, policy_for
    from canary_mlflow.tracking.stores.store import existing_store

    client, number = existing_store(tracking_uri), str(version)
    rules = policy_for(client, model, number, policy)
    if top_up or rules.top_up:
        from canary_mlflow.installation import require_training_stack
        from canary_mlflow.launching.plan import top_up as carry_out

        if not dry_run:
            require_training_stack()
        decision = carry_out(client, model, number, rules, say, dry_run=dry_run, promote=promote, launcher=launcher)
    else:
        decision = judge_version(
            client, model, number, rules, dry_run=dry_run, promote=promote, policy_file=file_of(policy)
        )
    publish_study(client, decision)
    return decision


@plainly
def judge(baseline: Files, candidate: Files, *, policy: Rules, history: Files = ()) -> Decision:
    """Judge two sides given as files, one run per file, as `canary judge` does; needs no store and writes nothing.

    A file is JSONL or CSV with a row per step (`step`, `step_time` in seconds, `loss`, …) or a trainer_state.json.
    `history`: ten or more earlier runs, oldest first, which show how much runs differ. Raises UsageError for a file
    that cannot be read.
    """
    from canary_mlflow.files.judging import judge_files
    from canary_mlflow.policies import load_policy

    return judge_files(load_policy(policy), paths(baseline), paths(candidate), paths(history))


@plainly
def replay(file: str | Path, *, policy: Rules = "default", algo: str = "") -> Replayed:
    """Run the watch over one finished history, as `canary replay` does: its verdict (healthy, warned, critical, failed,
    or unknown for too few rows, or neither loss nor reward), and what it would have warned of at which optimizer step.
    `algo`: sft, dpo, grpo …; "" to tell it from the columns. Raises UsageError for a file that cannot be read or holds
    nothing to watch, and for an unknown algorithm."""
    from canary_mlflow.files.replaying import replay_file
    from canary_mlflow.policies import load_watch

    return replay_file(file, load_watch(policy), algo)


@plainly
def register(
    session: str,
    model: str | None = None,
    *,
    weights: str | Path | None = None,
    evals: Sequence[str | Path] = (),
    tracking_uri: str | None = None,
) -> str:
    """Register a new version of `model` with the session as its evidence, as `canary register` does, and return its
    number; judges nothing.

    `model`: by default the one that the session was started for. `weights`: the folder that `trainer.save_model()`
    wrote; without it the version is evidence only. `evals`: results of benchmarks, as for `add_evals`. Raises
    NoSuchRun, StoreError, and UsageError for a session that is open, empty or already a version's evidence, for a
    folder without weights, and as `add_evals` does.
    """
    from canary_mlflow.registry.sessions.registering import flaws_of, register_session
    from canary_mlflow.tracking.stores.store import existing_store

    client, folder = existing_store(tracking_uri), None if weights is None else Path(weights)
    name, version = register_session(client, session, model, folder, [Path(path) for path in evals])
    if flaws := flaws_of(client, session):
        log.warning("canary: %s version %s: %s", name, version, flaws)
    return version


@plainly
def add_evals(
    version: str,
    *paths: str | Path,
    group: str | None = None,
    weights: str | Path | None = None,
    tracking_uri: str | None = None,
) -> str:
    """Add what a harness wrote about a version ("MODEL/VERSION"), as `canary evals add` does, and return the MLflow run
    that holds it; judges nothing.

    `paths`: files or folders of lm-eval, Inspect, NeMo Evaluator, JSONL or CSV. `group`: where a record names what
    items share. `weights`: the folder that was evaluated. Raises UsageError for what cannot be read, for files that
    another evaluation of the model has, and for other weights than were sealed; NoSuchVersion, Refused, StoreError.
    """
    from canary_mlflow.registry.backends import registry_of
    from canary_mlflow.registry.evaluations import add, read_paths, version_named
    from canary_mlflow.tracking.stores.store import existing_store

    client = existing_store(tracking_uri)
    found = version_named(client, version)
    results = read_paths([Path(path) for path in paths], group, registry_of(client), str(found.name))
    return add(client, found, results, None if weights is None else Path(weights))


def paths(files: Files) -> list[Path]:
    """The paths of one file or several."""
    return [Path(files)] if isinstance(files, (str, Path)) else [Path(file) for file in files]
