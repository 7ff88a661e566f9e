"""A run's first steps beside the champion's runs: what blocks by itself ends it there, as a STOP of the watch does."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from canary_mlflow import tags
from canary_mlflow.errors import StoreError, UsageError, one_line
from canary_mlflow.gates.facts.check import said, what_differs
from canary_mlflow.gates.facts.courses import COURSE
from canary_mlflow.gates.facts.exact import FACTS, SERIES, STEPS, bare
from canary_mlflow.gates.model.records import Series
from canary_mlflow.gates.model.sides import baseline_side, candidate_side, mismatches
from canary_mlflow.gates.model.wording import listed
from canary_mlflow.tracking.describing.fact_tags import facts_in
from canary_mlflow.tracking.reading.histories import read_runs

if TYPE_CHECKING:
    from canary_mlflow.tracking.journal import Journal
    from canary_mlflow.tracking.opening import Options

log = logging.getLogger("canary_mlflow")
BROKEN = "broken: "


def certain_harm(journal: Journal, options: Options) -> str:
    """Why a run whose first STEPS are over can only fail; '' if it may pass, or the champion's runs cannot tell."""
    client, found = journal.target.client, journal.probes.tags()
    if client is None or not options.champion_runs:
        return ""
    try:
        *champion, mine = read_runs(client, [*options.champion_runs, journal.target.run_id], SERIES)
    except (StoreError, UsageError) as error:
        log.warning("canary: its first steps are not compared with the champion's: %s", one_line(error))
        return ""
    broken = found.get(tags.INVARIANTS, "")
    mine = replace(mine, completed=True, facts=facts_in(found), invariants=broken, series=_first_rows(journal))
    now = candidate_side([mine])
    before = baseline_side(champion, now)
    if not before.evidence or any(mismatches(before, now, what) for what in ("workload", "hardware")):
        return ""
    against = []
    if "invariants" in options.fail_fast and not any(run.invariants.startswith(BROKEN) for run in champion):
        against += [broken.removeprefix(BROKEN)] if broken.startswith(BROKEN) else []
    differs, _ = what_differs(before.evidence, (), now.evidence, judged=FACTS in options.fail_fast)
    # So few steps are no schedule's course.
    against += [said(one) for one in differs if one.decides and not bare(one.key).startswith(COURSE)]
    return f"ended after its first steps: {listed(against, 2)}" if against else ""


def _first_rows(journal: Journal) -> dict[str, Series]:
    found = {}
    for name in SERIES:
        rows = {step: row[name] for step, row in journal.rows.items() if 1 <= step <= STEPS and name in row}
        if rows:
            found[name] = Series(name=name, steps=np.array([*rows]), values=np.array([*rows.values()], dtype=float))
    return found
