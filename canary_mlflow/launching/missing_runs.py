"""The runs that a look of a plan still needs: whose, with which seeds, in which order, and in words.

Some need fresh runs of the champion beside them: its own may be from another machine or day.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from canary_mlflow.gates.model.policy import FreshBaseline, Policy
from canary_mlflow.gates.model.records import Run, Version
from canary_mlflow.gates.model.wording import counted, listed

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from canary_mlflow.launching.runs import Runner

ORDER = "b c c b"  # so that neither side always has the earlier, cooler machine


@dataclass(frozen=True)
class Missing:
    """The candidate's missing runs by seed. `with_fresh`: each gets a fresh run of the champion with the same seed,
    unless one exists (`there`). `first`: the seeds of existing candidate runs that lack one."""

    seeds: tuple[int, ...]
    with_fresh: bool = False
    first: tuple[int, ...] = ()
    there: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """The total number of missing runs."""
        fresh = len(self.first) + len(set(self.seeds) - set(self.there)) if self.with_fresh else 0
        return len(self.seeds) + fresh

    def turns(self) -> Iterator[tuple[str, int]]:
        """The runs in order, as role and seed. Missing fresh runs come first: one more pair tells much
        (benchmarks/gate_plans.py)."""
        if not self.with_fresh:
            yield from (("run", seed) for seed in self.seeds)
            return
        yield from (("baseline", seed) for seed in self.first)
        for number, seed in enumerate(self.seeds):
            roles = ("baseline", "run") if number % 2 == 0 else ("run", "baseline")
            yield from ((role, seed) for role in roles if role == "run" or seed not in self.there)

    def words(self) -> str:
        """What will be made, such as "2 more runs (seeds 3 and 4), each beside a fresh run of the champion"."""
        if not self.seeds:
            return f"{counted(len(self.first), 'fresh run')} of the champion ({_seeds(self.first)})"
        fresh = f", each beside a fresh run of the champion (order {ORDER})" if self.with_fresh else ""
        earlier = f", after one for each existing run ({_seeds(self.first)})" if self.first else ""
        return f"{counted(len(self.seeds), 'more run')} ({_seeds(self.seeds)}){fresh}{earlier}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seeds {listed([str(seed) for seed in seeds], most=9)}"


def seeds_of(made: Sequence[Run]) -> list[int]:
    """The seeds of the runs that have one."""
    return [run.seed for run in made if run.seed is not None]


def fresh_is_due(client: MlflowClient, runner: Runner, policy: Policy, baseline: Version | None) -> bool:
    """Whether added runs need fresh runs of the champion beside them; DIFFERS: if its own are from another host or day
    (UTC)."""
    wanted = policy.looks.fresh_baseline
    if baseline is None or not baseline.runs or wanted is FreshBaseline.NEVER:
        return False
    return wanted is FreshBaseline.ALWAYS or any(
        runner.is_elsewhere(run) or not made_today(client, run) for run in baseline.runs
    )


def seeds_without_fresh(
    client: MlflowClient, runner: Runner, candidate: Sequence[Run], fresh: Sequence[Run]
) -> list[int]:
    """The seeds of candidate runs without a fresh baseline run that can still be made, on this machine and day."""
    have = set(seeds_of([run for run in fresh if run.completed]))
    near = [
        run for run in candidate if run.seed not in have and runner.can_reuse_machine(run) and made_today(client, run)
    ]
    return sorted(set(seeds_of(near)))


def made_today(client: MlflowClient, run: Run) -> bool:
    """Whether a run was made today (UTC)."""
    return day_of(client, run.run_id) == datetime.now(UTC).date()


def day_of(client: MlflowClient, run_id: str) -> date:
    """The day on which a run began, UTC."""
    return datetime.fromtimestamp(client.get_run(run_id).info.start_time / 1000, UTC).date()
