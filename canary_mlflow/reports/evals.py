"""What one side has of each benchmark, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from canary_mlflow.gates.model.items import Evaluated, Table
from canary_mlflow.gates.model.wording import counted


def side_lines(tables: Evaluated) -> Iterator[str]:
    """What one side has of each benchmark."""
    for found in side_dict(tables)["benchmarks"]:
        score = "no score" if found["score"] is None else f"{found['score']:.4g}"
        size = f"{counted(found['items'], 'item')}, {counted(found['groups'], 'group')}"
        if found["errors"]:
            size += f", {counted(found['errors'], 'error')} of the harness"
        yield f"{found['benchmark']}  {score}  {size if found['items'] else 'aggregated only'}"
        yield from (f"    {key}: {value[:200]}" for key, value in found["facts"].items())


def side_dict(tables: Evaluated) -> dict[str, Any]:
    """The same as JSON values."""
    return {"benchmarks": [_benchmark(name, index, len(seeds), table) for name, seeds in tables.items()
                           for index, table in enumerate(seeds)]}  # fmt: skip


def _benchmark(name: str, seed: int, seeds: int, table: Table) -> dict[str, Any]:
    return {
        "benchmark": name,
        "seed": seed if seeds > 1 else None,
        "score": table.score,
        "higher_is_better": table.higher,
        "items": len(table.items),
        "answers": sum(len(item.scores) for item in table.items.values()),
        "errors": sum(len(item.scores) - len(item.scored) for item in table.items.values()),
        "groups": len({item.group for item in table.items.values()}),
        "grouped_by": table.grouped or None,
        "facts": dict(table.facts),
    }
