"""JSONL or CSV with a row per item: id and score, and if known benchmark, repeat, group, error, input, output. Other
columns whose names begin with `fact.` must agree on both sides."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from canary_mlflow.errors import UsageError
from canary_mlflow.evals.drafts import Contents, Draft, GroupOf, facts, joined_facts
from canary_mlflow.evals.files import EvalFile, digest

NAMES = ("id", "sample_hash", "sample_id")
UNNAMED = "evaluation"


def read(file: EvalFile, group_of: GroupOf) -> Contents | None:
    """The benchmarks of one file."""
    name = next((name for name in NAMES if name in file.first), None)
    if name is None or not {"score", "error"} & file.first.keys():
        return None
    found: dict[str, Draft] = {}
    for number, row in enumerate(file.rows(), 1):
        benchmark = str(row.get("benchmark") or UNNAMED)
        if benchmark not in found:
            group = group_of(benchmark) or ("group" if "group" in row else None)
            found[benchmark] = Draft(benchmark, benchmark, file.path, group, higher=row.get("better") != "lower")
        draft, asked = found[benchmark], row.get("input")
        if row.get(name) in (None, ""):
            raise UsageError(f"{file.path}: row {number} has no {name}; expected one for each item; fix that row")
        told = facts({key: value for key, value in row.items() if str(key).startswith("fact.")})
        draft.facts = joined_facts(draft.facts, told, "")
        said = row.get("output")
        texts = {"prompt": digest(asked) if asked else "", "answer": digest(said) if said else ""}
        if isinstance(score := _score(row), str):
            raise UsageError(
                f"{file.path}: row {number}: score {score[:40]!r} is no number; expected one; fix that row"
            )
        draft.add(str(row[name]), score, row, asked=asked, said=said, **texts)
    return Contents([draft.table() for draft in found.values()], [file])


def _score(row: dict[str, Any]) -> object:
    score = row.get("score")
    if row.get("error") or score == "":  # an empty cell
        return None
    if isinstance(score, str):  # a cell of CSV
        with suppress(ValueError):
            return float(score)
    return score
