"""Whether two sides trained on the same rows, and in which seeds they draw them in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gates.model.paradigm import Paradigm, paradigm_of
from gates.model.records import Run
from gates.model.sides import same_tokens
from gates.model.verdict import Difference

ORDER = "data.order."
"""In which order a trainer is given the rows of a column, from which follows what each step is about."""
LEAKED = "data.held_out_trained"
"""How many held-out rows are trained on: with more of them an evaluation means less."""
NEAR = "data.held_out_near"
TOKENS = "first.tokens"


def shuffled_otherwise(baseline: Sequence[Run], candidate: Sequence[Run]) -> list[int]:
    """The seeds in which the sides draw their rows by another `data_seed`: their first steps have nothing in common."""
    here, there = ({(run.seed, _drawn_by(run)) for run in side} for side in (baseline, candidate))
    shared = {seed for seed, _ in here} & {seed for seed, _ in there}
    return sorted(seed for seed in shared - {seed for seed, _ in here & there} if seed is not None)


def _drawn_by(run: Run) -> str:
    said = run.configuration.get("data_seed", "None")
    return str(run.seed) if said == "None" else said


def draws_explain(one: Difference, fact: str, among: Iterable[Difference], runs: Sequence[Run]) -> bool:
    """Whether its rows stand in another order wherever this fact of a run's steps differs. `fact`: its key without the
    variant. First steps of the same tokens are of the same rows whatever comes after them."""
    variant = one.key.removesuffix(fact)
    tokens = f"{variant}{TOKENS}"
    apart = {each.key: each.seeds for each in among if each.key.startswith((f"{variant}{ORDER}", tokens))}
    alike = {run.seed for run in runs} - {run.seed for run in runs if tokens not in run.facts}
    alike -= {*apart.pop(tokens, ())}
    moved = {seed for seeds in apart.values() for seed in seeds}
    return {*one.seeds} <= (moved - alike if fact.startswith("first.") else moved)


def of_same_rows(baseline: Sequence[Run], candidate: Sequence[Run]) -> bool:
    """Whether the records of runs of the same work show that all trained on the same rows, not only on as many. Rows of
    the same ids are the same, whatever is learned of them."""
    return same_tokens("train_data", baseline, candidate, "ids") or all(map(_knows_its_data, (*baseline, *candidate)))


def _knows_its_data(run: Run) -> bool:
    return any(
        (key.startswith("data") and "digest" in key) or (key == "train_data" and ", " in value)
        for key, value in run.workload.items()
    )


def reinforces(run: Run) -> bool:
    """Whether it learns from answers that it draws itself."""
    return paradigm_of(run.workload.get("algo", ""), run.series) is Paradigm.REINFORCEMENT
