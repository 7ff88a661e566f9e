"""Several tests that share one error level."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float], alpha: float, ceilings: Sequence[float] | None = None) -> list[bool]:
    """Holm's step-down: which hypotheses are rejected while the chance of any false rejection stays <= alpha.

    `ceilings`: p-values above which a hypothesis is never rejected, whatever its level (one that asks for an effect
    beyond a margin has such a p-value). It cannot err more often than that, and what it cannot spend of its share is
    divided among the others; without ceilings a share is alpha over the number of hypotheses that are left.
    """
    ceilings = [1.0] * len(p_values) if ceilings is None else ceilings
    rejected = [False] * len(p_values)
    while left := [i for i, done in enumerate(rejected) if not done]:
        level = _level([ceilings[i] for i in left], alpha)
        found = [i for i in left if p_values[i] <= min(level, ceilings[i])]
        if not found:
            break
        for i in found:
            rejected[i] = True
    return rejected


def _level(ceilings: Sequence[float], alpha: float) -> float:
    """The level that all may use, so that what they use, each up to its ceiling, adds up to alpha; 1 where they cannot
    use it up."""
    left = alpha
    for place, ceiling in enumerate(ordered := sorted(ceilings)):
        others = len(ordered) - place
        if ceiling * others >= left:
            return left / others
        left -= ceiling
    return 1.0
