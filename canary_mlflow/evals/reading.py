"""One side's results: files and folders, read by whichever reader knows each file.

To add a format: a module in readers/ with a `read` from an `EvalFile` to a `Contents`, or to None if the file is in
another format; a line in READERS; and a folder of that name in tests/data/evals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from canary_mlflow.errors import UsageError
from canary_mlflow.evals.drafts import Contents, GroupOf, Reader, joined_facts
from canary_mlflow.evals.files import EvalFile
from canary_mlflow.evals.readers import inspect_log, lm_eval, nemo, plain
from canary_mlflow.gates.model.items import Evaluated, Table
from canary_mlflow.gates.model.wording import listed

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
    """What a side has. `digests`: sha256 → name, of the files by which readers knew their format. `loaded`: the folders
    of weights that the harness says it loaded."""

    tables: Evaluated
    digests: Mapping[str, str]
    loaded: frozenset[str] = frozenset()

    @property
    def runs(self) -> frozenset[str]:
        """The harness's own names of its runs."""
        return frozenset(run for seeds in self.tables.values() for table in seeds for run in table.run.split())


def read_results(path: Path, group_of: GroupOf = lambda _: None) -> Results:
    """The benchmarks of a file or a folder; a folder's subfolders seed0, seed1 … hold one training seed each. Raises
    UsageError, one line, for what cannot be read and where nothing is found."""
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder; expected results of an evaluation; check the path")
    seeds = sorted(one for one in path.iterdir() if one.is_dir() and _SEED.fullmatch(one.name)) if path.is_dir() else []
    readings = [list(_readings(files_of(place), group_of)) for place in seeds or [path]]
    sides = [joined(str(path), [table for one in some for table in one.tables]) for some in readings]
    names = sorted({name for side in sides for name in side})
    if not names:
        raise UsageError(f"{path}: no evaluation found; expected results of {listed(list(READERS), most=9)}")
    every = [one for some in readings for one in some]
    return Results(
        tables={name: tuple(side.get(name, Table(benchmark=name, source=name)) for side in sides) for name in names},
        digests={one.files[0].digest(): str(one.files[0].path) for one in every},
        loaded=frozenset(one.loaded for one in every if one.loaded),
    )


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
        for name, read in READERS.items():
            try:
                found = read(file, group_of)
            except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
                what = f"{type(error).__name__}: {error}"
                raise UsageError(f"{file.path}: is not as {name} writes it ({what}); expected a whole one") from None
            if found is not None:
                taken |= {one.path for one in found.files}
                yield found
                break


def together(where: str, several: Sequence[Results]) -> Results:
    """Several evaluations of one side: what a later one has of the same benchmark and seed is a repeat."""
    names = sorted({name for one in several for name in one.tables})
    tables = {}
    for name in names:
        nothing = Table(benchmark=name, source=name)
        seeds = zip_longest(*(one.tables.get(name, ()) for one in several), fillvalue=nothing)
        made = (joined(where, [one for one in some if one != nothing] or [nothing]) for some in seeds)
        tables[name] = tuple(side[name] for side in made)
    return Results(
        tables=tables,
        digests={key: name for one in several for key, name in one.digests.items()},
        loaded=frozenset().union(*(one.loaded for one in several)),
    )


def joined(where: str, tables: Sequence[Table]) -> dict[str, Table]:
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
                f"{where}: two files hold run {table.run} of {table.benchmark} with other scores; expected one; remove "
                "the wrong one"
            )
    return found


def _scores(table: Table) -> list[tuple[str, tuple[float | None, ...]]]:
    return sorted((key, item.scores) for key, item in table.items.items())


def _repeated(known: Table, table: Table) -> Table:
    items = dict(known.items)
    for key, item in table.items.items():
        items[key] = items[key].with_repeat(item) if key in items else item
    before, now = dict(known.facts), dict(table.facts)
    if known.higher != table.higher:
        before["higher"], now["higher"] = str(known.higher), str(table.higher)
    return replace(known, items=items, facts=joined_facts(before, now, "-"), run=f"{known.run} {table.run}")
