"""What several ranks of one training printed into one log: the lines of one of them are its history."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from canary_mlflow.files.source import MAX_LOG_LINE

Row = dict[str, float]

# torchrun's `[rank0]:` and `[default0]:`, mpirun's `[1,0]<stdout>:`, Ray's `(pid=7)`, pdsh's address.
_PREFIX = re.compile(
    r"\[(?:rank|default|trainer|worker|gpu|device) ?[=:]?\d+\]|\[\d+,\d+\]<std(?:out|err)>"
    r"|\([^()]{0,60}\bpid=\d+[^()]{0,60}\)|\brank[ =:]{0,2}\d+\b|^(?:\d{1,3}\.){3}\d{1,3}(?=: )|^ *\d+(?=: \{)",
    re.IGNORECASE,
)
_WITHIN = 120  # characters of a line in which its rank stands
_TELLS = re.compile(r"(?:loss|reward\w*|\bkl)['\"]?[\s:=]{1,20}['\"]?(?:[-+.\d]|nan|inf)", re.IGNORECASE)
_NAN = re.compile(r"\b(?:nan|inf)\b", re.IGNORECASE)
_NEARLY = 0.9
_PLACE = {"epoch", "step", "learning_rate"}
_FIRST = 1000  # rows that tell how many ranks print each
_LATE = 100  # rows by which one may be late


def rank_of(line: str) -> str:
    """The rank that a line names before what it says; "" for none."""
    return "".join(_PREFIX.findall(line[:_WITHIN]))


def other_ranks(lines: Iterable[str]) -> tuple[frozenset[str], list[str]]:
    """The ranks to leave out, and a note on them. Where several print a training's lines, equally many, the one with
    the most NaN is read, or the first; one that alone prints the loss, as a pipeline's last stage, has no others."""
    told, bad = Counter[str](), Counter[str]()
    for line in lines:
        if (rank := rank_of(line)) and _TELLS.search(line, 0, MAX_LOG_LINE):
            told[rank] += 1
            bad[rank] += _NAN.search(line) is not None
    alike = [rank for rank, count in told.items() if count >= _NEARLY * max(told.values())]
    if len(alike) < 2:
        return frozenset(), []
    read = min(alike, key=lambda rank: (-bad[rank], len(rank), rank))
    return frozenset(alike) - {read}, [f"printed by {len(alike)} ranks: the lines of {read} are read"]


def is_summary(row: Row) -> bool:
    """Whether Transformers ended a training with it; with the tokens seen, it logs the time so far in every row."""
    return "train_runtime" in row and "loss" not in row


def one_each(rows: Iterable[Row]) -> tuple[Iterator[Row], int]:
    """The rows, and how many ranks printed each of them, epoch and all: they come once then."""
    rest = iter(rows)
    first = list(islice(rest, _FIRST))
    # What is measured at other places too, such as a loss of 0, tells nothing; the last rows may be cut.
    measured = {repr(row): repr([(key, row[key]) for key in row if key not in _PLACE]) for row in first}
    places = Counter(measured.values())
    counts = [count for row, count in Counter(map(repr, first)).items() if places[measured[row]] == 1][:-1]
    ranks = Counter(counts).most_common(1)[0][0] if len(counts) > 1 else 1
    several = ranks > 1 and sum(count % ranks == 0 for count in counts) >= _NEARLY * len(counts)
    return (_every(ranks, chain(first, rest)), ranks) if several else (chain(first, rest), 1)


def _every(ranks: int, rows: Iterable[Row]) -> Iterator[Row]:
    """The first of each so many equal rows; summaries differ in their time."""
    seen: OrderedDict[str, int] = OrderedDict()
    for row in rows:
        said = "summary" if is_summary(row) else repr(row)
        seen[said] = count = seen.pop(said, 0) + 1
        if count % ranks == 1:
            yield row
        if len(seen) > _LATE:
            seen.popitem(last=False)
