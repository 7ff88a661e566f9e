"""Hydra's --multirun as one MLflow parent run with every job's runs as its children, judged cell by cell.

The cells are the configurations that its jobs trained, seeds aside, each judged against its champion.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from canary_mlflow import tags
from canary_mlflow.errors import CanaryError
from canary_mlflow.launching.cluster import runner_at
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.actors import REASON_LIMIT
from canary_mlflow.registry.judging.unregistered import judge_runs
from canary_mlflow.registry.sessions.leftovers import clear
from canary_mlflow.reports.decision import Decision, decision_to_dict
from canary_mlflow.reports.formatting import counted
from canary_mlflow.reports.sweep import GridRow, grid
from canary_mlflow.shown import echo_lines, fenced, say, shown
from canary_mlflow.tracking.describing.schema import name_of_key
from canary_mlflow.tracking.signals import waiting
from canary_mlflow.tracking.stores.session import (
    child_runs,
    close_run,
    finish_session,
    get_run,
    held,
    log_tags,
    open_session,
)
from canary_mlflow.tracking.stores.store import prepare_store
from canary_mlflow.training.ahead import workers_of
from canary_mlflow.training.command_line import parse
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.naming import canary_name, default_model_name, run_name
from canary_mlflow.training.plain import to_plain
from canary_mlflow.training.preflight import check_machine
from canary_mlflow.training.process import GRACE
from canary_mlflow.training.runs import Prestarted, code_of, code_of_failure, own_run, own_runs, until_broken

WORST_FIRST = (1, 4, 2, 3, 0)
"""Exit codes, worst first: harm that was shown outranks any other failure, and unknown outranks fine."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The runs of one configuration. `decision`: None if their model has no champion, or there are no runs."""

    name: str
    asked: int
    runs: tuple[Run, ...]
    failures: tuple[str, ...]
    decision: Decision | None = None

    @property
    def code(self) -> int:
        """Its exit code."""
        codes = [code_of_failure(failure) for failure in self.failures]
        if self.decision is not None:  # it already weighs runs that became unstable or raised an exception
            codes = [code for code in codes if code != 1] + [self.decision.exit_code]
        return worst([*codes, 4 if self.missing else 0])

    @property
    def missing(self) -> int:
        """The number of runs that a lost job never began; a job that reports its end begins none after a broken one."""
        return 0 if self.failures else self.asked - len(self.runs)

    @property
    def word(self) -> str:
        """Its verdict."""
        return "no champion" if self.decision is None else self.decision.word

    @property
    def reason(self) -> str:
        """Why, in one line."""
        missing = f"; {self.missing} of {self.asked} runs were not made" if self.missing else ""
        if self.decision is not None:
            return f"{self.decision.verdict.reason}{missing}"
        broke = f", {len(self.failures)} of them broke off ({', '.join(self.failures)})" if self.failures else ""
        return f"{counted(len(self.runs), 'run')}{broke}; nothing to judge them against{missing}"


def cell_of(config: CanaryConfig) -> str:
    """A key for the runs of one configuration; it does not depend on the seed and the number of repeats."""
    plain = to_plain(replace(config, seed=0, repeats=None))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def label_of(config: CanaryConfig, swept: Sequence[str]) -> str:
    """A cell's name, by the keys in which it differs: `algo=sft train.learning_rate=0.001`; '' if only seeds do."""
    return " ".join(f"{key}={_value(to_plain(config), key)}" for key in swept)


def _value(tree: Any, key: str) -> str:
    for part in re.split(r"[./]", key.partition("@")[0]):
        tree = tree.get(part, "?") if isinstance(tree, dict) else "?"
    return str(tree.get("name", "?") if isinstance(tree, dict) else tree)  # of a group its option


def tags_of(config: CanaryConfig, model: str, swept: Sequence[str]) -> dict[str, str]:
    """The tags of a cell's runs."""
    return {tags.CELL: cell_of(config), tags.CELL_NAME: label_of(config, swept), tags.MODEL_NAME: model}


def judge_cells(
    client: MlflowClient, runs: Sequence[Run], configs: Sequence[CanaryConfig], swept: Sequence[str]
) -> Iterator[Cell]:
    """Judge each configuration of the sweep, in order, against its model's champion; nothing is recorded."""
    cells: dict[str, list[CanaryConfig]] = {}
    for config in configs:
        cells.setdefault(cell_of(config), []).append(config)
    for key, (config, *others) in cells.items():
        asked = sum(each.repeats or 1 for each in (config, *others))
        own = [run for run in runs if run.data.tags.get(tags.CELL) == key]
        model = next((run.data.tags[tags.MODEL_NAME] for run in own if tags.MODEL_NAME in run.data.tags), "")
        ids = [run.info.run_id for run in own]
        failures = tuple(run.data.tags.get(tags.FAILURE) or "error" for run in own if run.info.status != "FINISHED")
        decision = judge_runs(client, model, ids, load_policy(config.gate)) if model else None
        name = label_of(config, swept) or model or canary_name(config)
        yield Cell(name=name, asked=asked, runs=tuple(own), failures=failures, decision=decision)


def worst(codes: Sequence[int]) -> int:
    """The exit code of the whole sweep."""
    return min(codes, key=WORST_FIRST.index)


def table(cells: Sequence[Cell]) -> str:
    """The cells as a grid."""
    latest = [[{name_of_key(k): v for k, v in run.data.metrics.items()} for run in cell.runs] for cell in cells]
    return grid([
        GridRow(name=cell.name, latest=values, word=cell.word, reason=cell.reason)
        for cell, values in zip(cells, latest, strict=True)
    ])  # fmt: skip


PARENT = "CANARY_PARENT_RUN_ID"
WORST_WORD = ("BLOCK", "INCONCLUSIVE", "PASS")


def run_sweep(configs: Sequence[CanaryConfig], argv: Sequence[str], jobs: Callable[[Sequence[str]], object]) -> int:
    """Let `jobs` run everything that `argv` asks for under one parent run, which is ended however they end; then judge
    each cell that has a champion. Returns the exit code of the worst cell.
    """
    tracking = configs[0].tracking
    client = prepare_store(tracking.uri)
    clear(client)
    words = parse(argv).swept
    swept = [word.partition("=")[0].lstrip("+") for word in words]
    own = {tags.ROLE: "sweep", tags.SWEPT: " ".join(swept)}
    parent = open_session(client, tracking.experiment, " ".join(["sweep", *words]), own)
    code = 4
    try:
        with held(client, parent):
            # Hydra sets it in the jobs of every launcher, on this machine or another.
            if all(config.launcher.name == "ray" for config in configs):
                on_cluster(client, parent, configs, swept)
            else:
                try:
                    jobs([*argv, f"+hydra.job.env_set.{PARENT}={parent}"])
                finally:
                    _end_left(client, parent)
            code = _judge(client, parent, configs, swept)
    finally:
        finish_session(client, parent, "FINISHED" if code == 0 else "FAILED")
    return code


def run_job(config: CanaryConfig, scratch: Path) -> int:
    """Make the runs of one job: one seed unless `repeats` says otherwise. The sweep judges them once all are made."""
    check_machine(config)  # a node's own cores are first seen here
    repeats = config.repeats or 1
    with workers_of(config, scratch, repeats) as loading:
        client = prepare_store(config.tracking.uri)
        here = Prestarted(client, loading)
        model = config.model_name or default_model_name(config, here.prepared.workload)
        parent = os.environ[PARENT]
        sweep = get_run(client, parent)
        if sweep.info.status != "RUNNING":  # a job may wait in a queue for longer than that
            raise CanaryError(f"sweep {parent} has ended; this job of it has made no runs")
        own = tags_of(config, model, sweep.data.tags.get(tags.SWEPT, "").split())
        # Nothing registers a sweep, so nothing would ever load its weights, and no prune would find them.
        results = until_broken(here, own_runs(client, parent, config, repeats, profile=True, tags=own))
    return max((code_of(result) for result in results), default=0)


def on_cluster(client: MlflowClient, parent: str, configs: Sequence[CanaryConfig], swept: Sequence[str]) -> None:
    """Make the runs of all jobs at once, without Hydra's launcher, as far as the cluster has room."""
    asked = [replace(config, seed=config.seed + index) for config in configs for index in range(config.repeats or 1)]
    specs = []
    for number, config in enumerate(asked, start=1):
        cell = {tags.CELL: cell_of(config)}
        profile = config.profile and number == 1
        specs.append(own_run(client, parent, config, f"{number}/{len(asked)}", cell, profile=profile))
    with runner_at("ray", client, lambda: to_plain(configs[0]), say) as cluster:
        for config, (_, result) in zip(asked, cluster.make(specs), strict=True):
            model = config.model_name or default_model_name(config, result.workload)
            name = ", ".join(filter(None, (label_of(config, swept), run_name(config))))
            log_tags(client, result.run_id, {**tags_of(config, model, swept), tags.RUN_NAME: name})


def _end_left(client: MlflowClient, parent: str) -> None:
    """End the runs of lost jobs, once their own processes, if any are left, have had time to do so."""
    deadline = time.monotonic() + GRACE
    while left := [run.info.run_id for run in child_runs(client, parent) if run.info.status == "RUNNING"]:
        if time.monotonic() > deadline:
            break
        with waiting():
            time.sleep(1)
    for run_id in left:
        close_run(client, run_id, "interrupted", "its job ended without saying why")


def _judge(client: MlflowClient, parent: str, configs: Sequence[CanaryConfig], swept: Sequence[str]) -> int:
    """Judge the cells, write the result on the parent run and print it; return the worst exit code."""
    runs = [run for run in child_runs(client, parent) if run.data.tags.get(tags.ROLE) == "run"]
    cells = list(judge_cells(client, runs, configs, swept))
    finished = sum(run.info.status == "FINISHED" for run in runs)
    for run in runs:
        if run.info.status != "FINISHED":
            _say_why(run)
    say(f"sweep {parent}: {finished} of {len(runs)} runs finished")
    said = table(shown(cells))
    echo_lines(said)
    client.log_text(parent, f"{said}\n", "verdicts.txt")
    client.log_dict(
        parent, {cell.name: decision_to_dict(cell.decision) for cell in cells if cell.decision}, "verdicts.json"
    )
    log_tags(client, parent, {tags.DESCRIPTION: fenced(said)})
    for cell in cells:
        for run in cell.runs if cell.decision else ():
            reason = cell.reason[:REASON_LIMIT]
            log_tags(client, run.info.run_id, {tags.VERDICT: cell.word, tags.VERDICT_REASON: reason})
    if words := {cell.word for cell in cells if cell.decision}:
        log_tags(client, parent, {tags.VERDICT: min(words, key=WORST_WORD.index)})
    return worst([cell.code for cell in cells])


def _say_why(run: Run) -> None:
    """Say why a run broke off: it happened in a process, and perhaps on a machine, whose output is elsewhere."""
    said = run.data.tags
    which = f"the {said.get(tags.ALGO, '')} run with seed {said.get(tags.SEED, '')}"
    reason = said.get(tags.FAILURE_REASON, "no reason is recorded")
    say(f"{which} broke off ({said.get(tags.FAILURE, 'error')}): {reason}")
