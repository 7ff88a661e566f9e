"""Trainings of bisections.py that replay recorded ones, as many a second as git checks out commits.

A training of seed s has what a recorded run of the campaign learned, the same each time the commit draws the same
numbers, as on a CPU; and what the next run of the campaign's tape cost: both follow each other as they were made, so
what the machine did from one to the next, over hours and days, is real. The harm is put into what was recorded.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from campaign_tables import read
from root_cause import kept

from canary_mlflow.bisecting.commits import Commit
from canary_mlflow.bisecting.trying import Trainer
from canary_mlflow.gates import Run, Series
from canary_mlflow.gates.model.metrics import METRICS
from canary_mlflow.launching.seeds import VARIABLE
from canary_mlflow.upgrading.probing import Probe

STATE = "state.json"
CAMPAIGNS = ("campaign", "campaign-others")
POOLS = (("dpo", "quiet"), ("dpo", "busy"), ("sft", "quiet"), ("sft", "busy"), ("kto", "quiet"), ("reward", "quiet"))
OF_WORK = ("algo", "max_steps", "batch_size")
"""What a script of one's own says of its work; not its data's digest, with which each redrawn loss would be a fact."""
COSTS = ("step_time", "step_cpu_time", "step_cost")
LATE, NAN_AT, BALLAST = 5 / 6, 40, "peak_memory"


@cache
def tape(algo: str, load: str) -> tuple[Run, ...]:
    """The runs of unchanged sessions in the order in which they were made."""
    files = (Path(__file__).with_name(f"{name}.jsonl.gz") for name in CAMPAIGNS)
    sessions = [one for file in files for one in read(file) if (one["algo"], one["load"]) == (algo, load)]
    calm = [one for one in sessions if one["kind"] in ("baseline", "unchanged")]
    return tuple(kept(at, run) for at, one in enumerate(calm) for run in one["runs"] if run["completed"])


@dataclass(frozen=True, kw_only=True)
class Replayed(Trainer):
    """Its trainings are recorded ones. `recorded`: the tape; `first`: where on it the first one is."""

    recorded: Sequence[Run]
    first: Iterator[int]
    found: dict[str, Run] = field(default_factory=dict)

    @classmethod
    def of(cls, rng: random.Random, **given: Any) -> Replayed:
        recorded = tape(*rng.choice(POOLS))
        return cls(recorded=recorded, first=count(rng.randrange(len(recorded))), **given)

    def train(self, commit: Commit, seed: int, turn: str = "") -> Probe:
        """As of a process of its own, with the run that it would have recorded."""
        probe = super().train(commit, seed, turn)
        if probe.folder in self.found:
            vars(probe)["runs"] = (self.found[probe.folder],)
        return probe

    def run(self, words: Sequence[str], place: Path, key: str, environment: Mapping[str, str], folder: str) -> Probe:
        """What the commit's state makes of recorded runs."""
        state, seed = json.loads((Path(folder) / STATE).read_text()), int(environment[VARIABLE])
        recorded, at = self.recorded, next(self.first)
        ended = state["broken"] or (
            state["raises"] and f"RuntimeError at train.py:{24 + state['notes'] % 5} in <module>"
        )
        if ended:
            kind, seconds = ended.partition(" ")[0], 1.0
            return Probe(key=key, folder=str(place), seconds=seconds, code=1, ended=ended, kind=kind)
        learnt = recorded[zlib.crc32(f"{self.work} {state['shift']} {seed}".encode()) % len(recorded)]
        self.found[str(place)] = harmed(state, seed, learnt, recorded[at % len(recorded)], str(place))
        return Probe(key=key, folder=str(place), seconds=1.0, code=0)

    def _told(self, found: Probe) -> Probe:
        """Nothing is asked of a store, which there is none of."""
        return found


def harmed(state: Mapping[str, Any], seed: int, learnt: Run, made: Run, name: str) -> Run:
    """A run that learned like one and cost like another, with the state's harm in it."""
    both = {key: one for key, one in made.series.items() if not METRICS[key].repeatable}
    series = both | {key: one for key, one in learnt.series.items() if METRICS[key].repeatable}
    for key in COSTS:
        series[key] = scaled(series[key], state["cost"])
    series[BALLAST] = scaled(series[BALLAST], 1, state["ballast"])
    series["eval_loss"] = scaled(series["eval_loss"], 6 if state["diverges"] else state["worse"])
    values, nans = series["loss"].values.copy(), 0
    if state["diverges"]:
        values[int(LATE * len(values)) :] *= 6
    if state["nan"]:
        values[NAN_AT], nans = np.nan, 1
    series["loss"] = replace(series["loss"], values=values)
    trained = {"parameters.trainable": "17" if state["frozen"] else "161"}
    work = {key: value for key, value in learnt.workload.items() if key in OF_WORK}
    return replace(
        learnt, run_id=name, seed=seed, series=series, nan_steps=nans, facts=trained, workload=work,
        configuration={"width": "16"},
    )  # fmt: skip


def scaled(series: Series, factor: float, more: float = 0.0) -> Series:
    return replace(series, values=series.values * factor + more)
