"""Whether runs of one seed draw the same rows: a trainer may have a seed of its own for that."""

from __future__ import annotations

from collections.abc import Sequence

from gates.model.records import Run


def shuffled_otherwise(baseline: Sequence[Run], candidate: Sequence[Run]) -> list[int]:
    """The seeds in which the sides draw their rows by another `data_seed`: their first steps have nothing in common."""
    here, there = ({(run.seed, _drawn_by(run)) for run in side} for side in (baseline, candidate))
    shared = {seed for seed, _ in here} & {seed for seed, _ in there}
    return sorted(seed for seed in shared - {seed for seed, _ in here & there} if seed is not None)


def _drawn_by(run: Run) -> str:
    said = run.configuration.get("data_seed", "None")
    return str(run.seed) if said == "None" else said
