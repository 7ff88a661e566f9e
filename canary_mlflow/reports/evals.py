"""Results of benchmarks on a terminal: a comparison, and what one side has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from canary_mlflow.evals.comparing import EvalComparison, Flip
from canary_mlflow.gates.model.items import Evaluated, Table
from canary_mlflow.gates.model.verdict import Check, CheckOutcome
from canary_mlflow.gates.model.wording import counted
from canary_mlflow.reports.rows import rows_of
from canary_mlflow.reports.terminal import HEADINGS, evidence, indented, labelled_lines
from canary_mlflow.shown import shown, visible

FEW, MANY = 5, 50
"""Broken items of one benchmark that a comparison shows, and with --full."""
WIDEST = 200
"""Characters of a text."""


def compared(found: EvalComparison, width: int, *, full: bool = False) -> Iterator[RenderableType]:
    """Verdict, why, the figures, the items behind them, and some that broke."""
    decision = shown(found.decision)
    verdict = decision.verdict
    sides = f"{decision.candidate_label} against {decision.baseline_label}"
    yield Text.assemble((decision.word, HEADINGS[decision.word]), "  ", (sides, "bold"))
    yield indented(verdict.reason)
    if rows := rows_of(decision):
        yield from ("", *evidence(rows, width, all_meanings=False), "")
    yield from labelled_lines("items", [line for check in verdict.checks if (line := items(check))])
    silent = [
        f"{check.metric}: {check.reason}"
        for check in decision.having(CheckOutcome.NOT_JUDGED)
        if check.evidence is None
    ]
    yield from labelled_lines("not judged", silent)
    yield from labelled_lines("notes", verdict.notes)
    for check in found.decision.verdict.checks:  # by their names as they are
        if full or check.outcome in (CheckOutcome.BLOCK, CheckOutcome.INCONCLUSIVE):
            yield from broken(check.metric, found.flips.get(check.metric, ()), MANY if full else FEW)


def items(check: Check) -> str:
    """`gsm8k/acc: 78 broke, 45 mended, 1,319 items`."""
    found = check.evidence and check.evidence.items
    if not found:
        return ""
    groups = f" in {found.groups:,.0f} groups" if round(found.groups) < found.items else ""
    lost = f", {found.lost:.3g} lost" if found.lost else ""
    return f"{check.metric}: {found.broke:,} broke, {found.mended:,} mended, {found.items:,} items{groups}{lost}"


def broken(name: str, flips: Sequence[Flip], most: int) -> Iterator[RenderableType]:
    """The worst of the items that broke, each with its question and both answers."""
    if flips:
        yield ""
        yield indented(
            f"{visible(name)}: {counted(len(flips), 'item')} broke" + f", {most} of them" * (len(flips) > most)
        )
    for one in flips[:most]:
        asked, before, after = (visible(text, most=WIDEST) for text in (one.asked, one.before, one.after))
        yield indented(f"  {visible(one.item, most=40)}  {one.was:.3g} → {one.now:.3g}  {asked}")
        yield indented(f"      {before} → {after}" if before or after else "", style="dim")


def side_lines(tables: Evaluated) -> Iterator[str]:
    """What one side has of each benchmark."""
    for found in side_dict(tables)["benchmarks"]:
        score = "no score" if found["score"] is None else f"{found['score']:.4g}"
        error = f" ± {found['stderr']:.2g}" if found["stderr"] is not None else ""
        size = f"{counted(found['items'], 'item')}, {counted(found['groups'], 'group')}"
        if found["errors"]:
            size += f", {counted(found['errors'], 'error')} of the harness"
        yield f"{found['benchmark']}  {score}{error}  {size if found['items'] else 'aggregated only'}"
        yield from (f"    {key}: {value[:WIDEST]}" for key, value in found["facts"].items())


def side_dict(tables: Evaluated) -> dict[str, Any]:
    """The same as JSON values."""
    return {"benchmarks": [_benchmark(name, index, len(seeds), table) for name, seeds in tables.items()
                           for index, table in enumerate(seeds)]}  # fmt: skip


def _benchmark(name: str, seed: int, seeds: int, table: Table) -> dict[str, Any]:
    means = [sum(item.scored) / len(item.scored) for item in table.items.values() if item.scored]
    whole = table.aggregate
    return {
        "benchmark": name,
        "seed": seed if seeds > 1 else None,
        "score": sum(means) / len(means) if means else whole and whole.score,
        "stderr": whole and whole.stderr,
        "higher_is_better": table.higher,
        "items": len(table.items),
        "answers": sum(len(item.scores) for item in table.items.values()),
        "errors": sum(len(item.scores) - len(item.scored) for item in table.items.values()),
        "groups": len({item.group for item in table.items.values()}),
        "grouped_by": table.grouped or None,
        "facts": dict(table.facts),
    }
