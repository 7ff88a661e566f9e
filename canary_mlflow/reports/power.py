"""What a policy's deciding rules can detect: the smallest harm that each blocks, and the chance that an unchanged
candidate passes them all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from canary_mlflow.gates import MetricRule, Policy
from canary_mlflow.gates.model.rules import Prior, Scale, Worse
from canary_mlflow.gates.model.wording import change, limit
from canary_mlflow.gates.stats.power import POWER, Chances
from canary_mlflow.reports.calibration import amount

ASSUMPTION = (
    "the product of the chances above, as if the metrics varied independently; hard checks, exact facts and disturbed "
    "clocks are left out, and a metric whose runs repeat bit for bit always passes"
)
WIDTH = 110
SOURCES = {
    "shipped": "shipped with the policy",
    "calibrated": "calibrated here",
    "learnt": "learnt from several sessions",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A rule that decides: the spread it is judged with, the name that this is stored under, '' for a shipped one, and
    what it can detect with each number of runs."""

    rule: MetricRule
    prior: Prior
    entry: str
    reached: tuple[Chances, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """All rows. `subject`: what the table is for, '' for runs in general. `facts`: which runs these are. `here`:
    whether the hardware in `facts` is this machine's."""

    policy: Policy
    subject: str
    facts: Mapping[str, str]
    here: bool
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(baseline, candidate) runs."""
        found = ((each.baseline_runs, each.candidate_runs) for row in self.rows for each in row.reached)
        return tuple(dict.fromkeys(found))

    @property
    def together(self) -> tuple[float, ...]:
        """For each size, the chance that an unchanged candidate passes all rules: see ASSUMPTION."""
        return tuple(math.prod(row.reached[at].unchanged for row in self.rows) for at in range(len(self.sizes)))


def lines(table: Table) -> Iterator[str]:
    """The table for people."""
    facts = ", ".join(f"{key}={value}" for key, value in table.facts.items())
    here = " (this machine's; --fact asks for others)" if table.here else ""
    yield f"{table.policy.name}: what decides {f'for {table.subject}' if table.subject else f'with {facts}'}{here}"
    yield from (f"Note: {note}." for note in table.notes)
    sizes = [f"{before}+{now}" for before, now in table.sizes]
    head = ("rule", "role", "spread", "limit")
    cells = [
        [*head, *(f"sees at {size}" for size in sizes), *(f"passes at {size}" for size in sizes)],
        *(_cells(row) for row in table.rows),
        ["all together", "", "", "", *("" for _ in sizes), *(_percent(chance) for chance in table.together)],
    ]
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    for row in cells:
        left = [cell.ljust(width) for cell, width in zip(row[:2], widths, strict=False)]
        right = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        yield "  " + "  ".join([*left, *right]).rstrip()
    sure = f"{100 * POWER:.0f} %"
    yield f"sees at K+M: the smallest true harm that K baseline and M candidate runs BLOCK with {sure} chance"
    yield "passes at K+M: how often an unchanged candidate passes (a guard: is not blocked)"
    yield from wrap(f"all together: {ASSUMPTION}", WIDTH, subsequent_indent="  ")
    yield f"spread: standard deviation between equal runs, {_sources(table.rows)}"


def _cells(row: Row) -> list[str]:
    rule = row.rule
    relative = rule.scale is Scale.LOG
    margin = rule.change(rule.harm_margin)
    within = limit(abs(margin) if rule.worse is Worse.BOTH else margin, relative, rule.unit, rule.worse is Worse.BOTH)
    seen = [
        "never" if each.smallest is None else change(rule.change(each.smallest), relative, rule.unit)
        for each in row.reached
    ]
    spread = amount(row.prior.sd, rule, relative)
    return [rule.name, str(rule.role), spread, within, *seen, *(_percent(each.unchanged) for each in row.reached)]


def _percent(chance: float) -> str:
    """A chance in percent; one below 1 is never shown as 100 %."""
    return f"{100 * chance:.0f} %" if chance < 0.995 else "> 99 %" if chance < 1 else "100 %"


def _sources(rows: Sequence[Row]) -> str:
    """`shipped with the policy`; if there are several kinds, which rules have which."""
    kinds = dict.fromkeys(row.prior.kind for row in rows)
    if len(kinds) == 1:
        return SOURCES[next(iter(kinds))]
    rules = {kind: [row.rule.name for row in rows if row.prior.kind == kind] for kind in kinds}
    return ", ".join(f"{SOURCES[kind]} ({', '.join(names)})" for kind, names in rules.items())


def as_dict(table: Table) -> dict[str, Any]:
    """The table as JSON values; spreads, margins and harms as a policy states them: fractions on the log scale, else in
    the metric's unit."""
    return {
        "policy": table.policy.name,
        "facts": dict(table.facts),
        "notes": list(table.notes),
        "rules": [
            {
                "rule": row.rule.name,
                "role": row.rule.role.value,
                "scale": row.rule.scale.value,
                "margin": row.rule.margin,
                "spread": row.prior.sd,
                "spread_kind": row.prior.kind,
                "spread_entry": row.entry or None,
                "reached": [
                    {
                        "baseline_runs": each.baseline_runs,
                        "candidate_runs": each.candidate_runs,
                        "smallest": None if each.smallest is None else row.rule.change(each.smallest),
                        "unchanged": each.unchanged,
                    }
                    for each in row.reached
                ],
            }
            for row in table.rows
        ],
        "together": [
            {"baseline_runs": size[0], "candidate_runs": size[1], "unchanged": chance}
            for size, chance in zip(table.sizes, table.together, strict=True)
        ],
        "assumption": ASSUMPTION,
    }
