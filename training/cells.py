"""The cells of a sweep: the configurations that its jobs trained, seeds aside, each judged against its champion."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from canary_mlflow import tags
from canary_mlflow.policies import load_policy
from canary_mlflow.registry.judging.unregistered import judge_runs
from canary_mlflow.reports.decision import Decision
from canary_mlflow.reports.formatting import counted
from canary_mlflow.reports.sweep import GridRow, grid
from canary_mlflow.tracking.describing.schema import name_of_key
from training.config import CanaryConfig
from training.naming import canary_name
from training.plain import to_plain
from training.runs import code_of_failure

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

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
