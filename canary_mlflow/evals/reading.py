"""One side's results: a file or a folder, read by whichever reader knows each file.

To add a format: a module in readers/ with a `read` from an `EvalFile` to a `Contents`, or to None if the file is in
another format; a line in READERS; and a folder of that name in tests/data/evals. A format of one's own needs none of
this: a package may register such a function as an entry point of GROUP.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from canary_mlflow.errors import UsageError
from canary_mlflow.evals.drafts import Contents, GroupOf, Reader
from canary_mlflow.evals.files import EvalFile
from canary_mlflow.evals.readers import inspect_log, lm_eval, nemo, plain
from canary_mlflow.gates.model.items import Evaluated, Table
from canary_mlflow.gates.model.wording import listed

GROUP = "canary_mlflow.eval_readers"
READERS: Mapping[str, Reader] = {
    "lm_eval": lm_eval.read,
    "inspect": inspect_log.read,
    "nemo": nemo.read,
    "plain": plain.read,
}
"""Name → reader, in the order in which they are asked."""
KINDS = ("json", "eval", "jsonl", "csv")  # what names others comes first
MAX_FILES = 10_000
_SEED = re.compile(r"seed[-_=]?\w+")


@dataclass(frozen=True, kw_only=True)
class Results:
    """What a path holds. `digests`: of the files by which readers knew their format. `runs`: by harnesses' names."""

    tables: Evaluated
    digests: Mapping[str, str]
    runs: frozenset[str]


def read_results(path: Path, group_of: GroupOf = lambda _: None) -> Results:
    """The benchmarks of a file or a folder; a folder's subfolders seed0, seed1 … hold one training seed each. Raises
    UsageError, one line, for what cannot be read and where nothing is found."""
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder; expected results of an evaluation; check the path")
    seeds = sorted(one for one in path.iterdir() if one.is_dir() and _SEED.fullmatch(one.name)) if path.is_dir() else []
    sides, digests = [], dict[str, str]()
    for place in seeds or [path]:
        readings = list(_readings(files_of(place), group_of))
        sides.append(_joined(place, [table for one in readings for table in one.tables]))
        digests |= {one.files[0].digest(): str(one.files[0].path) for one in readings}
    names = sorted({name for side in sides for name in side})
    if not names:
        raise UsageError(f"{path}: no evaluation found; expected results of {listed(list(all_readers()), most=9)}")
    tables = {name: tuple(side.get(name, Table(benchmark=name, source=name)) for side in sides) for name in names}
    return Results(tables=tables, digests=digests, runs=frozenset(_runs(sides)))


def _runs(sides: Sequence[Mapping[str, Table]]) -> Iterator[str]:
    return (run for side in sides for table in side.values() for run in table.run.split() if run)


def files_of(path: Path) -> list[EvalFile]:
    """The files that may be results, those that name others first. Raises UsageError."""
    if path.is_file():
        return [EvalFile(path)]
    files = [EvalFile(one) for one in sorted(path.rglob("*")) if one.is_file() and not one.name.startswith(".")]
    if len(files) > MAX_FILES:
        raise UsageError(
            f"{path}: {len(files):,} files; expected at most {MAX_FILES:,}; name the folder of the results"
        )
    return sorted((one for one in files if one.kind in KINDS), key=lambda one: KINDS.index(one.kind))


def _readings(files: Sequence[EvalFile], group_of: GroupOf) -> Iterator[Contents]:
    taken: set[Path] = set()
    for file in files:
        if file.path in taken:
            continue
        for name, read in all_readers().items():
            try:
                found = read(file, group_of)
            except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
                what = f"{type(error).__name__}: {error}"
                raise UsageError(f"{file.path}: is not as {name} writes it ({what}); expected a whole one") from None
            if found is not None:
                taken |= {one.path for one in found.files}
                yield found
                break


@cache
def all_readers() -> Mapping[str, Reader]:
    """Those of other packages first."""
    return {**{one.name: one.load() for one in entry_points(group=GROUP)}, **READERS}


def _joined(place: Path, tables: Sequence[Table]) -> dict[str, Table]:
    """One table per benchmark. Two files with the same scores are one; another run of a harness is a further repeat."""
    found: dict[str, Table] = {}
    for table in tables:
        known = found.get(table.benchmark)
        if known is None:
            found[table.benchmark] = table
        elif _scores(table) == _scores(known):
            continue
        elif not table.run or table.run not in known.run.split():
            found[table.benchmark] = _repeated(known, table)
        else:
            raise UsageError(
                f"{place}: two files hold run {table.run} of {table.benchmark} with other scores; expected one; remove "
                "the wrong one"
            )
    return found


def _scores(table: Table) -> list[tuple[str, tuple[float | None, ...]]]:
    return sorted((key, item.scores) for key, item in table.items.items())


def _repeated(known: Table, table: Table) -> Table:
    items = dict(known.items)
    for key, item in table.items.items():
        old = items.get(key)
        items[key] = replace(old, scores=(*old.scores, *item.scores)) if old else item
    keys = known.facts.keys() | table.facts.keys()
    facts = {key: ", ".join(sorted({known.facts.get(key, "-"), table.facts.get(key, "-")})) for key in keys}
    return replace(known, items=items, facts=facts, run=f"{known.run} {table.run}")
