"""The runs of unchanged sessions: which of them may tell how much such runs differ."""

from __future__ import annotations

from collections.abc import Sequence

from canary_mlflow.errors import UsageError
from canary_mlflow.gates import Policy, Run
from canary_mlflow.gates.hard.hard_gates import hard_checks
from canary_mlflow.gates.model.sides import Side, candidate_side, conditions, mismatches, once
from canary_mlflow.gates.model.verdict import CheckOutcome
from canary_mlflow.gates.model.wording import listed


def each_once(groups: Sequence[Sequence[Run]]) -> tuple[list[tuple[Run, ...]], list[str]]:
    """The finished runs of each group, and why others are left out. A run in several groups, or a copy of one, counts
    only in the largest: counted twice, it would make the spread look more certain than it is."""
    everyone = candidate_side(run for group in groups for run in group)
    waiting = {run.run_id for run in everyone.finished}
    good = []
    for group in sorted(groups, key=len, reverse=True):
        good.append(once(run for run in group if run.run_id in waiting))
        waiting -= {run.run_id for run in group}
    return good, list(everyone.left_out)


def healthy(
    policy: Policy, groups: Sequence[Sequence[Run]], left_out: Sequence[str]
) -> tuple[list[tuple[Run, ...]], list[str]]:
    """The groups without runs that a hard check blocks, which set no standard, and without runs that are alone; and
    what is left out, after `left_out`. Raises UsageError where no two runs of a group are left."""
    good, notes = [], list(left_out)
    for group in groups:
        problems = {run.run_id: _problem(policy, run) for run in group}
        notes += [f"run {run_id}: {problem}: not healthy, left out" for run_id, problem in problems.items() if problem]
        good.append(tuple(run for run in group if not problems[run.run_id]))
    if not any(len(group) > 1 for group in good):
        counts = ", ".join(str(len(group)) for group in good)
        why = f" ({listed(notes)})" if notes else ""
        raise UsageError(
            f"canary calibrate: found {counts} finished runs{why}; expected a group of at least 2; add runs"
        )
    notes += [f"run {group[0].run_id} is alone in its group, left out" for group in good if len(group) == 1]
    return [group for group in good if len(group) > 1], notes


def _problem(policy: Policy, run: Run) -> str:
    found = hard_checks(policy, candidate_side([run]))
    blocked = [check for check in found if check.outcome is CheckOutcome.BLOCK]
    return f"{blocked[0].metric}: {blocked[0].reason.removeprefix('1 of 1 runs: ')}" if blocked else ""


def refuse_mixed(groups: Sequence[Sequence[Run]]) -> None:
    """Raise UsageError unless all runs did the same work on the same hardware: otherwise their common spread would be
    stored and used for either."""
    side = pooled(groups)
    keys = [*mismatches(side, side, "workload"), *mismatches(side, side, "hardware")]
    mixed = [f"{each.key}: {each.baseline}" for each in keys]
    if mixed:
        raise UsageError(
            f"canary calibrate: found runs of more than one workload or hardware ({', '.join(mixed)}); expected "
            "unchanged runs of one; calibrate each separately"
        )


def pooled(groups: Sequence[Sequence[Run]]) -> Side:
    """The runs of all groups as one side of a comparison, on which the gate finds what they share."""
    runs = tuple(run for group in groups for run in group)
    return Side(runs=runs, evidence=runs, left_out=())


def shared_facts(groups: Sequence[Sequence[Run]]) -> tuple[dict[str, str], dict[str, str]]:
    """What all runs agree on: all facts, to choose a policy's rules; and those that a stored spread holds for."""
    side = pooled(groups)
    found = conditions(side, side)
    hardware = {key for run in side.runs for key in run.hardware}
    when = {key: found[key] for key in sorted(hardware | {"algo", "model", "tier"}) if key in found}
    return found, when
