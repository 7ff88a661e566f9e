"""Change points in the history of a model's champions: steps that each single verdict let through. A report, not a
check.

The numbers come from the verdicts by which versions became champion, as the ledger keeps them, so no series is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from canary_mlflow.gates.model.rules import Role
from canary_mlflow.gates.model.verdict import Outcome
from canary_mlflow.gates.model.wording import change, listed, quantity

if TYPE_CHECKING:
    from canary_mlflow.ledger.chain import Row

LEAST = 8  # champions; on fewer, noise makes steps as often as changes do
SEGMENT = 2  # champions on either side of a step
PENALTY = 4.0  # times log n, in variances: steps in 6 to 9 % of histories of 8 to 20 equal champions, 2 % of 40


@dataclass(frozen=True, kw_only=True)
class Level:
    """A metric of one champion: its number and the standard error that its runs give it, on the margin's scale."""

    version: int
    value: float
    error: float
    relative: bool
    unit: str


def history_notes(rows: Iterable[Row]) -> list[str]:
    """What a reader should know about the champions so far, one sentence each; nothing while there are few."""
    histories = {name: levels for name, levels in read_histories(rows).items() if len(levels) >= LEAST}
    if not histories:
        return []
    if find_spec("ruptures") is None:
        return ["history of champions: not audited, ruptures is not installed (pip install 'canary-mlflow[audit]')"]
    steps = [said for name, levels in histories.items() for said in steps_in_words(name, levels)]
    longest = max(len(levels) for levels in histories.values())
    return steps or [f"history of champions: no step in any metric over {longest} of them"]


def block_notes(rows: Iterable[Row], version: int) -> list[str]:
    """What a reader should know about a version that was BLOCKed before: against another champion it may pass."""
    blocks = [row.facts.get("verdict") for row in rows if row.version == version and row.word == Outcome.BLOCK]
    beside = {str(verdict.get("baseline_version")) for verdict in blocks if isinstance(verdict, Mapping)}
    ordered = sorted(beside, key=lambda number: (len(number), number))
    return [f"version {version} was BLOCKed before, against version {listed(ordered)}"] if ordered else []


def read_histories(rows: Iterable[Row]) -> dict[str, list[Level]]:
    """Gate metric → the champions' numbers in order, from the verdicts that moved the alias."""
    histories: dict[str, list[Level]] = {}
    for row in rows:
        if row.moves and row.alias == "champion" and isinstance(verdict := row.facts.get("verdict"), Mapping):
            try:
                levels = [(str(check["metric"]), level_of(row.version, check)) for check in verdict.get("checks", ())]
            except (AttributeError, KeyError, TypeError, ValueError):
                continue  # not a row of ours; `canary audit verify` names it
            for name, level in levels:
                if level is not None:
                    histories.setdefault(name, []).append(level)
    return histories


def level_of(version: int, check: Mapping[str, Any]) -> Level | None:
    """The number of the check's gate metric for this version; None if the check has none."""
    found = check.get("evidence")
    if check.get("role") != Role.GATE or not found or found.get("candidate") is None:
        return None
    relative, value = bool(found["relative"]), float(found["candidate"])
    if relative and value <= 0:
        return None
    spread = float(found.get("spread") or 0.0)
    return Level(
        version=version,
        value=math.log(value) if relative else value,
        error=spread / math.sqrt(max(1, found["candidate_runs"])),
        relative=relative,
        unit=str(found["unit"]),
    )


def steps_in_words(name: str, levels: Sequence[Level]) -> list[str]:
    """`history of champions: step_cost changed by +6.1 % with version 7 (10.1 kernels before, 10.7 since)`."""
    values = np.array([level.value for level in levels])
    said = []
    bounds = [0, *change_points(values, noise(levels)), len(levels)]
    for start, at, end in zip(bounds, bounds[1:], bounds[2:], strict=False):
        before, since = (float(np.mean(values[a:b])) for a, b in ((start, at), (at, end)))
        relative, unit = levels[0].relative, levels[0].unit
        size = math.expm1(since - before) if relative else since - before
        here, there = (quantity(math.exp(x) if relative else x, unit) for x in (before, since))
        said.append(
            f"history of champions: {name} changed by {change(size, relative, unit)} with version {levels[at].version} "
            f"({here} before, {there} since)"
        )
    return said


def noise(levels: Sequence[Level]) -> float:
    """The SD of a champion's number if nothing changes: from its runs, or larger if neighbours differ more."""
    values = np.array([level.value for level in levels])
    neighbours = 1.4826 * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)
    return max(neighbours, float(np.median([level.error for level in levels])), 1e-12)


def change_points(values: np.ndarray[Any, Any], sd: float) -> list[int]:
    """The indices at which a new level begins, by penalised least squares (PELT). `sd`: the noise around a level."""
    import ruptures

    found = ruptures.Pelt(model="l2", min_size=SEGMENT, jump=1).fit((values / sd)[:, None])
    return [int(at) for at in found.predict(pen=PENALTY * math.log(len(values)))[:-1]]
