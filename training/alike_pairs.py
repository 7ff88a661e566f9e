"""How much pairs of texts tell that share their phrases: as many independent pairs, and an interval for what is counted
in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

CHUNK = 512  # rows of the matrix of all pairs that are held at once

Tokens = Sequence[int]


def independent(chosen: Sequence[Tokens], rejected: Sequence[Tokens]) -> float:
    """The number of independent pairs that tell as much, from 1 to their number.

    A model that was never taught what people prefer still scores words somehow, and orders all pairs alike that share
    them. So let every token, and every two neighbours, have a weight drawn at random: whether such a score orders two
    pairs both rightly or both wrongly has the correlation 2/pi·asin(r), where r is the cosine between their differences
    of counts. The mean over all couples of pairs is the variance of the share that is ordered rightly, in units of
    that of one pair (Kish's design effect).
    """
    differences = _differences(chosen, rejected)
    count = differences.shape[0]
    alike = 0.0
    for at in range(0, count, CHUNK):
        cosines = np.asarray((differences[at : at + CHUNK] @ differences.T).todense())
        own = np.arange(len(cosines))
        cosines[own, at + own] = 1.0  # a pair that differs in no count, too
        alike += float(np.arcsin(np.clip(cosines, -1.0, 1.0)).sum()) * 2 / np.pi
    return float(np.clip(count**2 / alike, 1.0, count)) if alike > 0 else float(count)


def interval(share: float, count: float, alpha: float) -> tuple[float, float]:
    """Clopper and Pearson's for a share of so many independent pairs, which may be no whole number (Korn and Graubard,
    1998)."""
    from scipy.stats import beta

    right = share * count
    low = float(beta.ppf(alpha / 2, right, count - right + 1)) if right > 0 else 0.0
    high = float(beta.ppf(1 - alpha / 2, right + 1, count - right)) if right < count else 1.0
    return low, high


def _differences(chosen: Sequence[Tokens], rejected: Sequence[Tokens]) -> Any:
    """A sparse matrix: for each pair how often what occurs in the better text, less than how often in the worse one;
    of length 1."""
    from scipy.sparse import csr_matrix

    places: dict[object, int] = {}
    data, columns, ends = [], [], [0]
    for better, worse in zip(chosen, rejected, strict=True):
        found = Counter(_parts(better))
        found.subtract(_parts(worse))
        length = float(np.sqrt(sum(number**2 for number in found.values()))) or 1.0
        for part, number in found.items():
            columns.append(places.setdefault(part, len(places)))
            data.append(number / length)
        ends.append(len(data))
    return csr_matrix((data, columns, ends), shape=(len(chosen), max(1, len(places))))


def _parts(tokens: Tokens) -> Iterator[object]:
    yield from tokens
    yield from pairwise(tokens)
