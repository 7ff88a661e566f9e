"""When added runs need fresh runs of the champion beside them: its own may be from another machine or day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from gates.model.policy import FreshBaseline, Policy
from gates.model.records import Run, Version

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.launching.makers import Maker


def seeds_of(made: Sequence[Run]) -> list[int]:
    """The seeds of the runs that have one."""
    return [run.seed for run in made if run.seed is not None]


def fresh_is_due(client: MlflowClient, maker: Maker, policy: Policy, baseline: Version | None) -> bool:
    """Whether added runs need fresh runs of the champion beside them; DIFFERS: if its own are from another host or day
    (UTC)."""
    wanted = policy.looks.fresh_baseline
    if baseline is None or not baseline.runs or wanted is FreshBaseline.NEVER:
        return False
    return wanted is FreshBaseline.ALWAYS or any(
        maker.is_elsewhere(run) or not made_today(client, run) for run in baseline.runs
    )


def seeds_without_fresh(
    client: MlflowClient, maker: Maker, candidate: Sequence[Run], fresh: Sequence[Run]
) -> list[int]:
    """The seeds of candidate runs without a fresh baseline run that can still be made, on this machine and day."""
    have = set(seeds_of([run for run in fresh if run.completed]))
    near = [
        run for run in candidate if run.seed not in have and maker.can_reuse_machine(run) and made_today(client, run)
    ]
    return sorted(set(seeds_of(near)))


def made_today(client: MlflowClient, run: Run) -> bool:
    """Whether a run was made today (UTC)."""
    return day_of(client, run.run_id) == datetime.now(UTC).date()


def day_of(client: MlflowClient, run_id: str) -> date:
    """The day on which a run began, UTC."""
    return datetime.fromtimestamp(client.get_run(run_id).info.start_time / 1000, UTC).date()
