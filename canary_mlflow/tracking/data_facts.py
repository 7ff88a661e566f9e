"""What the data of an own script is known by: how many rows, and which. Loads neither torch nor datasets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MOST_ROWS = 200_000  # read for their digest, in a second or two before the first step; of more only the number is known
BATCH = 1000
DIGITS = 16


def data_of(trainer: Any) -> dict[str, str]:
    """`train_data` and `eval_data` of a trainer, those that it has; {} for no trainer."""
    given = {"train_data": getattr(trainer, "train_dataset", None), "eval_data": getattr(trainer, "eval_dataset", None)}
    return {name: words for name, data in given.items() if data is not None and (words := described(data))}


def described(data: Any) -> str:
    """`N rows`, with a digest of their texts where it is a `datasets.Dataset`; of several by name, in turn."""
    if isinstance(data, Mapping) and not hasattr(data, "features"):
        return "; ".join(f"{name}: {described(one)}" for name, one in sorted(data.items()))
    try:
        rows = len(data)
    except TypeError:
        return "streamed"
    try:
        found = digest(data) if rows <= MOST_ROWS else ""
    except Exception:  # noqa: BLE001  # data sets of any kind; their number of rows is known all the same
        found = ""
    return f"{rows} rows, {found}" if found else f"{rows} rows"


def digest(data: Any) -> str:
    """Of the texts, in whatever order: a seed may shuffle. '' where there are none.

    Token ids are left out: they change with a tokenizer or a template, which is a change to be judged.
    """
    features = getattr(data, "features", None)
    texts = sorted(name for name, kind in features.items() if "string" in str(kind)) if features else []
    if not texts:
        return ""
    total = sum(row_number(row) for row in rows_of(data.select_columns(texts).with_format(None), texts))
    return f"{total % 16**DIGITS:0{DIGITS}x}"


def rows_of(data: Any, columns: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    """The rows, read in batches."""
    for batch in data.iter(batch_size=BATCH):
        yield from zip(*(batch[name] for name in columns), strict=True)


def row_number(row: tuple[Any, ...]) -> int:
    """A number that another row does not have."""
    return int.from_bytes(hashlib.sha256(repr(row).encode(errors="surrogatepass")).digest()[:16], "big")


def rows_in(name: str, data: Any) -> dict[str, int]:
    """The number of rows as they are trained on; {} where it is not known."""
    try:
        return {name: len(data)}
    except TypeError:
        return {}


def tokens_in(data: Any) -> dict[str, str]:
    """Each column of token ids: `N in M rows, longest L, DIGEST`, whatever the order of the rows. {} where the tokens
    are made on the way, or are too many to be read."""
    features = getattr(data, "features", None) or {}
    columns = [name for name in sorted(features) if name.endswith("_ids") and name != "position_ids"]
    if not columns or len(data) > MOST_ROWS:
        return {}
    found = {name: Tokens() for name in columns}
    for batch in data.select_columns(columns).with_format("arrow").iter(batch_size=BATCH):
        for name in columns:
            found[name].add(batch.column(name).combine_chunks())
    return {f"tokens.{name}": str(one) for name, one in found.items()}


class Tokens:
    """Rows of token ids, counted and digested as they come, in Arrow's lists."""

    def __init__(self) -> None:
        self.rows = self.count = self.longest = self.total = 0

    def add(self, lists: Any) -> None:
        """Some more rows; a missing one has no tokens."""
        lengths = lists.value_lengths().fill_null(0).to_pylist()
        ids, at = lists.flatten().to_numpy(zero_copy_only=False).astype("<i4"), 0
        for length in lengths:
            self.total += int.from_bytes(hashlib.sha256(ids[at : at + length].tobytes()).digest()[:16], "big")
            at += length
        self.rows, self.count, self.longest = self.rows + len(lengths), self.count + at, max(self.longest, *lengths, 0)

    def __str__(self) -> str:
        digest = f"{self.total % 16**DIGITS:0{DIGITS}x}"
        return f"{self.count} in {self.rows} rows, longest {self.longest}, {digest}"
