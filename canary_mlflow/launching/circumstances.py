"""What the place and the day say about added runs: which seeds, how long, and whether the baseline's are needed too."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from gates.policy import FreshBaseline, Policy
from gates.records import Run, Version

if TYPE_CHECKING:
    from mlflow import MlflowClient


def seeds_of(made: Sequence[Run]) -> list[int]:
    """The seeds that are known."""
    return [run.seed for run in made if run.seed is not None]


def fresh_is_due(client: MlflowClient, policy: Policy, baseline: Version | None) -> bool:
    """Whether added runs need the champion's beside them; DIFFERS: its own are of another host or day (UTC)."""
    wanted = policy.looks.fresh_baseline
    if baseline is None or not baseline.runs or wanted is FreshBaseline.NEVER:
        return False
    if wanted is FreshBaseline.ALWAYS:
        return True
    if any(run.environment.get("host") != platform.node() for run in baseline.runs):
        return True
    today = datetime.now(UTC).date()
    return any(day_of(client, run.run_id) != today for run in baseline.runs)


def day_of(client: MlflowClient, run_id: str) -> date:
    """The day on which a run began, UTC."""
    return datetime.fromtimestamp(client.get_run(run_id).info.start_time / 1000, UTC).date()
