"""Judges two sides of files as the gate does, without MLflow and torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from canary_mlflow.errors import UsageError
from canary_mlflow.files.events import runs_below
from canary_mlflow.files.runs import read_run, read_side, sidecar_of
from canary_mlflow.gates import Policy, Version, judge
from canary_mlflow.gates.calibration import LEAST_RUNS, with_history
from canary_mlflow.gates.model.metrics import METRICS, metrics_with
from canary_mlflow.gates.model.policy import FreshBaseline
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.sides import baseline_side, candidate_side, conditions
from canary_mlflow.gates.model.verdict import Outcome, ReasonCode, Verdict
from canary_mlflow.gates.model.wording import counted
from canary_mlflow.reports.decision import Decision, Question

Print = tuple[tuple[str, bytes, bytes], ...]
_FEW = (ReasonCode.TOO_FEW_RUNS, ReasonCode.TOO_NOISY, ReasonCode.NEAR_MARGIN)


def refuse_shared(baseline: Sequence[Path], candidate: Sequence[Path]) -> None:
    """Raise UsageError for a file that is given for both sides, by whatever name."""
    given = {path.resolve() for path in baseline}
    if twice := next((path for path in candidate if path.resolve() in given), None):
        raise UsageError(
            f"{twice}: given as baseline and as candidate; expected files of two trainings; give the candidate's own"
        )


def matched(baseline: Version, candidate: Version) -> tuple[Version, Version]:
    """Both sides, each two runs that repeat each other with a seed of their own: any number will do. As they were
    unless no seed is known, and each of the candidate's runs has its one twin."""
    before, now = ([_print_of(run) for run in side.runs] for side in (baseline, candidate))
    seeds = {found: -number for number, found in enumerate(before, 1)}
    known = any(run.seed is not None for run in (*baseline.runs, *candidate.runs))
    if (
        known
        or len(seeds) < len(before)
        or len({*now}) < len(now)
        or not all(found and found in seeds for found in now)
    ):
        return baseline, candidate
    sides = [
        replace(side, runs=tuple(replace(run, seed=seeds[found]) for run, found in zip(side.runs, prints, strict=True)))
        for side, prints in ((baseline, before), (candidate, now))
    ]
    return sides[0], sides[1]


def said_of(baseline: Version, candidate: Version, verdict: Verdict) -> Iterator[str]:
    """What a reader should know of runs that repeat each other, and of seeds that are not known."""
    before = {found for run in baseline.runs if not _timed(run) and (found := _print_of(run))}
    again = [run for run in candidate.runs if not _timed(run) and _print_of(run) in before]
    if again:
        of_all = f"{len(again)} of {counted(len(candidate.runs), 'candidate file')}"
        yield (
            f"{of_all} with the values of the baseline's, to the bit: trainings that repeat each other, or copies of "
            "the same files; without step times nothing tells which"
        )
    runs = (*baseline.runs, *candidate.runs)
    beside = [one for run in runs if run.seed is None and (one := sidecar_of(Path(run.run_id)))]
    if beside and verdict.outcome is Outcome.INCONCLUSIVE and verdict.reason_code in _FEW:
        yield (
            f'no seed is known of {counted(len(beside), "file")}: with {{"seed": 0}} in {beside[0]}, and so on, runs '
            "of one seed are compared with each other, which takes fewer of them"
        )


def _print_of(run: Run) -> Print:
    """What seed, code and data alone decide, to the bit; nothing for a run of which that does not vary."""
    held = [run.series[name] for name in sorted(run.series) if name in METRICS and METRICS[name].repeatable]
    if not any(one.varies for one in held):
        return ()
    return tuple((one.name, one.steps.tobytes(), one.values.tobytes()) for one in held)


def _timed(run: Run) -> bool:
    return any(name in run.series and run.series[name].varies for name in metrics_with("clock"))


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
