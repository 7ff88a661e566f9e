"""Judges two sides of files as the gate does, without MLflow and torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from canary_mlflow.errors import UsageError
from canary_mlflow.files.events import runs_below
from canary_mlflow.files.runs import read_run, read_side
from canary_mlflow.files.twins import matched, refuse_shared, said_of
from canary_mlflow.gates import Policy, Version, judge
from canary_mlflow.gates.calibration import LEAST_RUNS, with_history
from canary_mlflow.gates.model.policy import FreshBaseline
from canary_mlflow.gates.model.sides import baseline_side, candidate_side, conditions
from canary_mlflow.gates.model.wording import counted
from canary_mlflow.reports.decision import Decision, Question


def judge_files(
    policy: Policy, baseline: Sequence[Path], candidate: Sequence[Path], history: Sequence[Path]
) -> Decision:
    """The verdict on the runs in these files, one per file, or per folder of TensorBoard's. `history`: earlier runs in
    order of time, which show how much runs differ. Raises UsageError for a file that cannot be read or is given for
    both sides, and for a history that is too short."""
    baseline, candidate, history = (runs_below(paths) for paths in (baseline, candidate, history))
    refuse_shared(baseline, candidate)
    left, left_notes = read_side(baseline)
    right, right_notes = read_side(candidate)
    left, right = matched(left, right)
    notes = [*left_notes, *right_notes]
    if history:
        past = [read_run(path)[0] for path in history]
        if len(past) < LEAST_RUNS:
            raise UsageError(
                f"--history: found {counted(len(past), 'file')}; expected at least {LEAST_RUNS}, the oldest first; "
                "give more, or none"
            )
        side = candidate_side(right.runs)
        policy = with_history(policy, past, conditions(baseline_side(left.runs, side), side))
        notes.append(f"spreads between runs are learnt from a history of {len(past)} files")
    return judge_sides(policy, left, right, notes)


def judge_sides(policy: Policy, baseline: Version, candidate: Version, notes: Sequence[str] = ()) -> Decision:
    """The verdict on two sides read from files, with what the readers noted."""
    verdict = judge(policy, baseline, candidate)
    first = said_of(baseline, candidate, verdict)
    return Decision(
        verdict=replace(verdict, notes=(*first, *verdict.notes, *_without_fresh_runs(policy), *notes)),
        model="",
        question=Question.FILES,
        baseline_label=counted(len(baseline.runs), "baseline file"),
        candidate_label=counted(len(candidate.runs), "candidate file"),
    )


def _without_fresh_runs(policy: Policy) -> Iterator[str]:
    """A note on what the policy's plan would do about machines that are slower on some days."""
    if policy.looks.fresh_baseline is FreshBaseline.ALWAYS:
        yield (
            f"policy {policy.name} judges speed against fresh runs of the baseline, which files do not have: a machine "
            "that is slower today counts as the candidate's doing; make the files of both sides in turn"
        )
