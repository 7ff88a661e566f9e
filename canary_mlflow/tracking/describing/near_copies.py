"""Held-out rows of which half is among the training rows: a copy with a token more is no copy to a digest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from canary_mlflow.tracking.describing.data_facts import BATCH, columns_of_ids

LENGTH = 8  # tokens of a shingle
HALF = 0.5
MOST_TOKENS = 20_000_000  # of the training rows, read in a second
SIEVE = 2**22
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no token is lost

Hashes = NDArray[np.uint64]


def near_copies(train: Any, held_out: Any) -> dict[str, int]:
    """How many held-out rows have half of their shingles of 8 tokens somewhere in the training rows, copies included;
    {} where that cannot be read, or takes too long."""
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
    return {"held_out_near": int((shared >= HALF * np.maximum(whole, 1)).sum())}


def _shingles(data: Any, columns: Sequence[str]) -> Iterator[tuple[Hashes, NDArray[np.int64]]]:
    """A hash of each 8 tokens in a row of a column, and which row that is."""
    for number, batch in enumerate(data.select_columns(columns).with_format("arrow").iter(BATCH) if columns else ()):
        for column in columns:
            lists = batch.column(column).combine_chunks()
            lengths = lists.value_lengths().fill_null(0).to_numpy()
            ids = lists.flatten().to_numpy(zero_copy_only=False).astype(np.uint64) + np.uint64(1)
            rows = np.repeat(np.arange(len(lengths)) + number * BATCH, lengths)
            last = max(0, len(ids) - LENGTH + 1)
            hashes = np.zeros(last, np.uint64)
            for by in range(LENGTH):
                hashes = hashes * _FACTOR + ids[by : last + by]
            whole = rows[:last] == rows[LENGTH - 1 :][:last]
            yield hashes[whole], rows[:last][whole]
