"""Exceptions inside the training: when a run that ended with one speaks against the candidate's code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gates.model.records import Raised, Run, Version
from gates.model.sides import contradictions
from gates.model.wording import listed


@dataclass(frozen=True, kw_only=True)
class Crash:
    """An exception of the candidate's code at one seed. `blocks`: it recurred in a rerun, and the baseline's run beside
    it finished. `reason` says what was found, or what is missing."""

    blocks: bool
    reason: str


def crashes(runs: Sequence[Run], baseline: Version | None) -> tuple[Crash, ...]:
    """The exceptions that the candidate's own code raised, by seed."""
    found = []
    for seed, raised, ended, tried in _by_seed(runs):
        what = f"{raised} ended {len(ended)} of {len(tried)} runs of seed {seed}"
        missing = _not_repeated(tried, ended) or _no_baseline_beside(ended, seed, baseline)
        said = missing or "the baseline's run of that seed, made beside on this host, finished"
        found.append(Crash(blocks=not missing, reason=f"{what}; {said}"))
    return tuple(found)


def repeated(runs: Sequence[Run]) -> dict[int, Raised]:
    """The seeds whose runs, at least two, all ended with the same exception of the code: another run tells no more."""
    return {seed: raised for seed, raised, ended, tried in _by_seed(runs) if not _not_repeated(tried, ended)}


def to_run_beside(runs: Sequence[Run], baseline: Version) -> dict[int, Raised]:
    """The seeds whose exception recurred and for which no run of the baseline's code was made beside."""
    return {seed: raised for seed, raised in sorted(repeated(runs).items()) if not _beside(baseline, seed)}


def _by_seed(runs: Sequence[Run]) -> Iterator[tuple[int, Raised, list[Run], list[Run]]]:
    """Each exception of the code with its seed, the runs that it ended, and all runs of that seed. Runs without a seed
    are left out: nobody knows which of them repeats which."""
    for seed in sorted({run.seed for run in runs if run.seed is not None}):
        tried = [run for run in runs if run.seed == seed and run.failure != "interrupted"]
        for raised in dict.fromkeys(run.raised for run in tried if run.failure == "error"):
            if raised is not None and raised.place and not raised.outside:
                yield seed, raised, [run for run in tried if run.raised == raised], tried


def _not_repeated(tried: Sequence[Run], ended: Sequence[Run]) -> str:
    if len(tried) < 2:
        return "it was not run again"
    return "" if len(ended) == len(tried) else "it did not come again each time"


def _no_baseline_beside(ended: Sequence[Run], seed: int, baseline: Version | None) -> str:
    """Why the baseline cannot tell whether the code is to blame; '' if it can."""
    if baseline is None:
        return "there is no champion to compare with"
    beside = _beside(baseline, seed)
    if not beside:
        return "no run of the baseline's code was made beside it"
    if broken := [run for run in beside if not run.finished]:
        return f"the baseline broke off beside it too ({broken[0].failure_reason or 'no end was recorded'})"
    for run in beside:
        for what, here, others in (
            ("hardware", run.hardware, [other.hardware for other in (*ended, *baseline.runs)]),
            ("workload", run.workload, [other.workload for other in ended]),
            ("host", _host(run), [_host(other) for other in ended]),
        ):
            if keys := sorted({key for other in others for key in contradictions(here, other)}):
                return f"the baseline's run beside it had another {what} ({listed(keys)})"
    return ""


def _beside(baseline: Version, seed: int) -> list[Run]:
    made = (*baseline.fresh, *(baseline.runs if baseline.beside else ()))
    return [run for run in made if run.seed == seed and run.failure != "interrupted"]


def _host(run: Run) -> dict[str, str]:
    return {"host": run.environment["host"]} if "host" in run.environment else {}
