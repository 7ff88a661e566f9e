"""How the data of a user's own script is identified: how many rows, which, and how many of them are also held out.

Loads neither torch nor datasets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from canary_mlflow.tracking.describing.fact_tags import DIGITS

MOST_ROWS = 200_000  # that are read for a digest, in a second or two before the first step; more are only counted
BATCH = 1000
IGNORED_LABEL = -100  # a token that is not learned, by PyTorch's convention

_IGNORED = {"labels": IGNORED_LABEL, "mask": 0, "masks": 0}  # last word of a column → what is not counted in it
_OF_TOKENS = ("ids", *_IGNORED)
_LABELS = ("label", "labels")

SHINGLE = 8  # tokens
MOST_TOKENS = 100 * MOST_ROWS  # of the training rows, read in a second
SIEVE = 2**22
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no token is lost

Hashes = NDArray[np.uint64]


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
    total = sum(row_number(row) for row in rows_of(_plain(data, texts), texts))
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


def tokens_in(data: Any, name: str = "tokens", order: str = "") -> dict[str, str]:
    """For each column of token ids, labels or masks: `N in M rows, longest L, DIGEST`, independent of the rows' order.
    N leaves out what a mask or an ignored label says is not learned. Under the name `order` a digest of the rows of one
    column as they stand, of ids if there is one: masks come and go from one release to the next. {} if the tokens are
    made during training, or are too many to read."""
    columns = _columns_of_tokens(data)
    if not columns:
        return {}
    found = {column: Tokens(without=_IGNORED.get(column.rpartition("_")[2])) for column in columns}
    for batch in data.select_columns(columns).with_format("arrow").iter(batch_size=BATCH):
        for column in columns:
            found[column].add(batch.column(column).combine_chunks())
    first = min(columns, key=lambda column: (not column.endswith("ids"), column))
    said = {f"{order}.{first}": found[first].order.hexdigest()[:DIGITS]} if order else {}
    return {f"{name}.{column}": str(one) for column, one in found.items()} | said


def labels_in(data: Any, name: str = "labels") -> dict[str, str]:
    """For each column that gives a row one label: `N of M rows are not 0, DIGEST`, of which label goes with which row,
    independent of the rows' order. A row is known by its token ids, column by column, as a release of the trainer may
    add one or prepare one otherwise; without ids by its texts. {} if no row has a label, or too many to read."""
    columns = _columns_of_labels(data)
    ids = [column for column in _columns_of_tokens(data) if column.endswith("ids")]
    found = {}
    for column in columns:
        labels = [None if label is None else float(label) for (label,) in rows_of(_plain(data, [column]), [column])]
        known: dict[str, Iterator[Any]] = {f".{one}": _digests(data, [one]) for one in ids} or {"": _texts(data)}
        for suffix, rows in known.items():
            total = sum(map(row_number, zip(labels, rows, strict=True))) % 16**DIGITS
            found[f"{name}.{column}{suffix}"] = (
                f"{sum(map(bool, labels))} of {len(labels)} rows are not 0, {total:0{DIGITS}x}"
            )
    return found


def _texts(data: Any) -> Iterator[tuple[Any, ...]]:
    """The texts of each row, of which it may have none."""
    texts = [column for column, kind in data.features.items() if "string" in str(kind)]
    return rows_of(_plain(data, texts), texts) if texts else iter([()] * len(data))


def _plain(data: Any, columns: list[str]) -> Any:
    return data.select_columns(columns).with_format(None)


def held_out_trained(train: Any, held_out: Any) -> dict[str, int]:
    """How many held-out rows are also trained on, by their token ids: their evaluation is none of what a model has not
    seen. {} if that cannot be read."""
    columns = columns_of_ids(train, held_out)
    if not columns:
        return {}
    rows = [*_digests(held_out, columns)]
    seen = set(rows).intersection(_digests(train, columns))
    return {"held_out_trained": sum(row in seen for row in rows)}


def columns_of_ids(train: Any, held_out: Any) -> list[str]:
    """The columns of token ids that both have."""
    theirs = _columns_of_tokens(held_out)
    return [column for column in _columns_of_tokens(train) if column.endswith("ids") and column in theirs]


def _digests(data: Any, columns: list[str]) -> Iterator[bytes]:
    """A digest of each row's token ids."""
    for batch in data.select_columns(columns).with_format("arrow").iter(batch_size=BATCH):
        parts = (Tokens().add(batch.column(column).combine_chunks()) for column in columns)
        yield from map(b"".join, zip(*parts, strict=True))


def _columns_of_tokens(data: Any) -> list[str]:
    """The columns of tokens that can be read: none of a stream, of too many rows, or of another kind of data set."""
    features = getattr(data, "features", None)
    if not isinstance(features, Mapping) or not hasattr(data, "__len__") or len(data) > MOST_ROWS:
        return []
    return [column for column in sorted(features) if _holds_tokens(column, features[column])]


def _columns_of_labels(data: Any) -> list[str]:
    """The columns whose name says that they hold a label, and that have one number or truth for each row."""
    features = getattr(data, "features", None)
    if not isinstance(features, Mapping) or not hasattr(data, "__len__") or len(data) > MOST_ROWS:
        return []
    kinds = ("bool", "int", "uint", "float")
    return [
        column
        for column in sorted(features)
        if column.rpartition("_")[2] in _LABELS and str(getattr(features[column], "dtype", "")).startswith(kinds)
    ]


def _holds_tokens(column: str, feature: Any) -> bool:
    """Whether each row of the column is a list of numbers for tokens, by its name and kind."""
    kind = str(getattr(getattr(feature, "feature", None), "dtype", ""))
    named = column != "position_ids" and column.rpartition("_")[2] in _OF_TOKENS
    return named and kind.startswith(("int", "uint", "bool"))


class Tokens:
    """Counts and digests rows of token ids as they come, in Arrow's lists. `without`: what is not counted."""

    def __init__(self, without: int | None = None) -> None:
        self.rows = self.count = self.longest = self.total = 0
        self.order = hashlib.sha256()
        self._without = without

    def add(self, lists: Any) -> list[bytes]:
        """Add more rows, and return a digest of each; a missing row has no tokens."""
        lengths = lists.value_lengths().fill_null(0).to_pylist()
        ids, at, rows = lists.flatten().to_numpy(zero_copy_only=False).astype("<i4"), 0, []
        for length in lengths:
            row = hashlib.sha256(ids[at : at + length].tobytes()).digest()[:16]
            self.total += int.from_bytes(row, "big")
            self.order.update(row)
            rows.append(row)
            at += length
        self.count += at if self._without is None else int((ids[:at] != self._without).sum())
        self.rows, self.longest = self.rows + len(lengths), max(self.longest, *lengths, 0)
        return rows

    def __str__(self) -> str:
        digest = f"{self.total % 16**DIGITS:0{DIGITS}x}"
        return f"{self.count} in {self.rows} rows, longest {self.longest}, {digest}"


def near_copies(train: Any, held_out: Any) -> dict[str, int]:
    """How many held-out rows have half of their shingles of 8 tokens somewhere in the training rows, copies included: a
    copy with a token more is no copy to a digest. {} where that cannot be read, or takes too long."""
    columns = columns_of_ids(train, held_out)
    found = [*_shingles(held_out, columns)]
    hashes, rows = (np.concatenate(part) for part in zip(*found, strict=True)) if found else ((), ())
    if not len(hashes):
        return {}
    known, places = np.unique(hashes, return_inverse=True)
    seen, sieve, read = np.zeros(len(known), bool), np.zeros(SIEVE, bool), 0
    sieve[known % SIEVE] = True  # one look-up for most of what is in no held-out row
    for hashed, _ in _shingles(train, columns):
        read += len(hashed)
        if read > MOST_TOKENS:
            return {}
        trained = hashed[sieve[hashed % SIEVE]]
        at = np.searchsorted(known, trained).clip(max=len(known) - 1)
        seen[at[known[at] == trained]] = True
    shared, whole = np.bincount(rows, weights=seen[places]), np.bincount(rows)
    return {"held_out_near": int((2 * shared >= np.maximum(whole, 1)).sum())}


def _shingles(data: Any, columns: Sequence[str]) -> Iterator[tuple[Hashes, NDArray[np.int64]]]:
    """A hash of each 8 tokens in a row of a column, and which row that is."""
    for number, batch in enumerate(data.select_columns(columns).with_format("arrow").iter(BATCH) if columns else ()):
        for column in columns:
            lists = batch.column(column).combine_chunks()
            lengths = lists.value_lengths().fill_null(0).to_numpy()
            ids = lists.flatten().to_numpy(zero_copy_only=False).astype(np.uint64) + np.uint64(1)
            rows = np.repeat(np.arange(len(lengths)) + number * BATCH, lengths)
            last = max(0, len(ids) - SHINGLE + 1)
            hashes = np.zeros(last, np.uint64)
            for by in range(SHINGLE):
                hashes = hashes * _FACTOR + ids[by : last + by]
            whole = rows[:last] == rows[SHINGLE - 1 :][:last]
            yield hashes[whole], rows[:last][whole]
