"""Exceptions inside the training: when a run that ended with one speaks against the candidate's code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from canary_mlflow.gates.model.records import Raised, Run, Version
from canary_mlflow.gates.model.sides import contradictions
from canary_mlflow.gates.model.wording import listed


@dataclass(frozen=True, kw_only=True)
class Crash:
    """An exception of the candidate's code at one seed. `recurred`: all runs of the seed, at least two, ended with it,
    so another run tells no more. `blocks`: moreover, the baseline's run beside it finished. `reason` says what was
    found, or what is missing."""

    seed: int
    raised: Raised
    recurred: bool
    blocks: bool
    reason: str


def crashes(runs: Sequence[Run], baseline: Version | None) -> tuple[Crash, ...]:
    """The exceptions that the candidate's own code raised, by seed. Runs without a seed are left out: nobody knows
    which of them repeats which."""
    found = []
    for seed in sorted({run.seed for run in runs if run.seed is not None}):
        tried = [run for run in runs if run.seed == seed and run.failure != "interrupted"]
        for raised in dict.fromkeys(run.raised for run in tried if run.failure == "error"):
            if raised is None or not raised.place or raised.outside:
                continue
            ended = [run for run in tried if run.raised == raised]
            once = _not_repeated(tried, ended)
            missing = once or _no_baseline_beside(ended, seed, baseline)
            said = missing or "the baseline's run of that seed, made beside on this host, finished"
            what = f"{raised} ended {len(ended)} of {len(tried)} runs of seed {seed}; {said}"
            found.append(Crash(seed=seed, raised=raised, recurred=not once, blocks=not missing, reason=what))
    return tuple(found)


def to_run_beside(runs: Sequence[Run], baseline: Version) -> dict[int, Raised]:
    """The seeds whose exception recurred and for which no run of the baseline's code was made beside."""
    recurred = [crash for crash in crashes(runs, baseline) if crash.recurred]
    return {crash.seed: crash.raised for crash in recurred if not _beside(baseline, crash.seed)}


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
