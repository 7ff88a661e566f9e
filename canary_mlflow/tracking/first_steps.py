"""A run's first steps beside the champion's runs: what blocks by itself ends it there, as a STOP of the watch does."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from canary_mlflow import tags
from canary_mlflow.errors import one_line
from canary_mlflow.gates.facts.check import said, what_differs
from canary_mlflow.gates.facts.courses import COURSE
from canary_mlflow.gates.facts.exact import SERIES, STEPS, bare
from canary_mlflow.gates.model.records import Series
from canary_mlflow.gates.model.sides import baseline_side, candidate_side, mismatches
from canary_mlflow.gates.model.wording import listed
from canary_mlflow.tracking.describing.fact_tags import facts_in
from canary_mlflow.tracking.reading.histories import read_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.tracking.journal import Journal
    from canary_mlflow.tracking.opening import Options

log = logging.getLogger("canary_mlflow")
BROKEN = "broken: "


def certain_harm(journal: Journal, options: Options) -> str:
    """Why a run whose first STEPS are over can only fail; '' if it may pass, or the champion's runs cannot tell."""
    if journal.target.client is None or not options.champion_runs:
        return ""
    try:
        against = _against(journal, journal.target.client, options)
    except Exception as error:  # noqa: BLE001 - measuring must not stop what is measured
        log.warning("canary: its first steps are not compared with the champion's: %s", one_line(error))
        return ""
    return f"ended after its first steps: {listed(against, 2)}" if against else ""


def _against(journal: Journal, client: MlflowClient, options: Options) -> list[str]:
    probes = journal.probes.named
    found = {**probes["facts"].tags(), **probes["invariants"].tags()}
    *champion, mine = read_runs(client, [*options.champion_runs, journal.target.run_id], SERIES)
    broken = found.get(tags.INVARIANTS, "")
    mine = replace(mine, completed=True, facts=facts_in(found), invariants=broken, series=_first_rows(journal))
    now = candidate_side([mine])
    before = baseline_side(champion, now)
    if not before.evidence or any(mismatches(before, now, what) for what in ("workload", "hardware")):
        return []
    alone = broken.startswith(BROKEN) and not any(run.invariants.startswith(BROKEN) for run in champion)
    differs, _ = what_differs(before.evidence, (), now.evidence, judged=True)
    # So few steps are no schedule's course.
    facts = [said(one) for one in differs if one.decides and not bare(one.key).startswith(COURSE)]
    return [*([broken.removeprefix(BROKEN)] if alone else []), *facts]


def _first_rows(journal: Journal) -> dict[str, Series]:
    found = {}
    for name in SERIES:
        rows = {step: row[name] for step, row in journal.rows.items() if 1 <= step <= STEPS and name in row}
        if rows:
            found[name] = Series(name=name, steps=np.array([*rows]), values=np.array([*rows.values()], dtype=float))
    return found
