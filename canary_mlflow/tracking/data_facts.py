"""How the data of a user's own script is identified: how many rows, and which. Loads neither torch nor datasets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MOST_ROWS = 200_000  # that are read for a digest, in a second or two before the first step; more are only counted
BATCH = 1000
DIGITS = 16


def data_of(trainer: Any) -> dict[str, str]:
    """`train_data` and `eval_data` of a trainer, as far as it has them; {} for no trainer."""
    given = {"train_data": getattr(trainer, "train_dataset", None), "eval_data": getattr(trainer, "eval_dataset", None)}
    return {name: words for name, data in given.items() if data is not None and (words := described(data))}


def described(data: Any) -> str:
    """`N rows`, with a digest of their texts if `data` is a `datasets.Dataset`; for several by name, one after
    another."""
    if isinstance(data, Mapping) and not hasattr(data, "features"):
        return "; ".join(f"{name}: {described(one)}" for name, one in sorted(data.items()))
    try:
        rows = len(data)
    except TypeError:
        return "streamed"
    try:
        found = digest(data) if rows <= MOST_ROWS else ""
    except Exception:  # noqa: BLE001  # any kind of data set; its number of rows is still known
        found = ""
    return f"{rows} rows, {found}" if found else f"{rows} rows"


def digest(data: Any) -> str:
    """A digest of the texts that does not depend on the rows' order, as a seed may shuffle them; '' without texts.

    Token ids are left out: they change with a tokenizer or a template, and such a change is to be judged.
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
    """A number that identifies the row (a hash)."""
    return int.from_bytes(hashlib.sha256(repr(row).encode(errors="surrogatepass")).digest()[:16], "big")


def rows_in(name: str, data: Any) -> dict[str, int]:
    """The number of rows that are trained on; {} if it is not known."""
    try:
        return {name: len(data)}
    except TypeError:
        return {}


def tokens_in(data: Any) -> dict[str, str]:
    """For each column of token ids: `N in M rows, longest L, DIGEST`, independent of the rows' order. {} if the tokens
    are made during training, or are too many to read."""
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
    """Counts and digests rows of token ids as they come, in Arrow's lists."""

    def __init__(self) -> None:
        self.rows = self.count = self.longest = self.total = 0

    def add(self, lists: Any) -> None:
        """Add more rows; a missing row has no tokens."""
        lengths = lists.value_lengths().fill_null(0).to_pylist()
        ids, at = lists.flatten().to_numpy(zero_copy_only=False).astype("<i4"), 0
        for length in lengths:
            self.total += int.from_bytes(hashlib.sha256(ids[at : at + length].tobytes()).digest()[:16], "big")
            at += length
        self.rows, self.count, self.longest = self.rows + len(lengths), self.count + at, max(self.longest, *lengths, 0)

    def __str__(self) -> str:
        digest = f"{self.total % 16**DIGITS:0{DIGITS}x}"
        return f"{self.count} in {self.rows} rows, longest {self.longest}, {digest}"
