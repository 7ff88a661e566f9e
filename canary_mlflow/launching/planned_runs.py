"""Makes the runs that a plan of looks adds: which are missing, and which must be repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from canary_mlflow.errors import BrokeOff, CanaryError, NoSource, StoreError
from canary_mlflow.launching.fresh_runs import fresh_is_due, seeds_of, seeds_without_fresh
from canary_mlflow.launching.makers import Made, Maker, run_champion
from canary_mlflow.launching.missing_runs import Missing, Turn
from canary_mlflow.registry.judging.looks import Progress
from canary_mlflow.registry.judging.records import session_of
from canary_mlflow.registry.judging.sides import progress, read_sides
from canary_mlflow.registry.sessions.orders import counted
from canary_mlflow.registry.sessions.rows import record_runs
from canary_mlflow.registry.versions import champion_number, find_version
from canary_mlflow.reports.next_step import NO_FRESH, NO_MORE
from gates.hard.crashes import to_run_beside
from gates.model.policy import Looks, Policy, WithoutSource
from gates.model.records import Version
from gates.model.sides import candidate_side, planned
from gates.top_up import champion_runs, next_seeds, to_run_again

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Versions(NamedTuple):
    """The champion's number, the champion and the candidate."""

    champion: str | None
    baseline: Version | None
    candidate: Version


@dataclass
class PlannedRuns:
    """Makes more runs of one version, and of the champion beside them. `say` tells people what is being made."""

    client: MlflowClient
    model: str
    version: str
    policy: Policy
    maker: Maker
    say: Callable[[str], None]
    with_fresh: bool = False  # the next runs come with fresh ones of the champion
    prepared: str | None = None  # the champion whose code is prepared, whoever has become champion since
    lost: str = ""  # why there are no fresh ones although the policy asks for them; noted on every verdict from then on
    broke_off: bool = False  # an exception ended a run of a look, and the look is taken without it
    stuck: str = ""  # why runs that broke off, or whose clock does not count, were not repeated

    def sides(self) -> Versions:
        """The champion and the candidate as they are now."""
        champion = champion_number(self.client, self.model)
        found = find_version(self.client, self.model, self.version)
        baseline, candidate = read_sides(self.client, self.model, champion, found)
        return Versions(champion, counted(baseline)[0], candidate)

    def looks(self, sides: Versions) -> Looks:
        """The policy's plan, extended so that it ends with no fewer runs than a champion needs."""
        return self.policy.looks.ending_with(champion_runs(self.policy, sides.baseline, sides.candidate))

    def progress(self, sides: Versions) -> Progress:
        """How far the version is in its plan, against the current champion."""
        found = find_version(self.client, self.model, self.version)
        return progress(self.client, found, sides.baseline, sides.candidate)

    def prepare_fresh(self, champion: str | None, baseline: Version | None) -> None:
        """Make the champion's code available if its runs belong beside the next ones, or go on without it."""
        if not self.with_fresh or champion is None or baseline is None:
            return
        try:
            self.maker.prepare_fresh(champion, baseline.runs)
            self.prepared = champion
        except NoSource as error:
            self.go_without(error)

    def go_without(self, error: NoSource) -> None:
        """The champion's code is not available: go on with its stored runs, or stop, as the policy says."""
        self.with_fresh = False
        stops = self.policy.looks.without_source is WithoutSource.INCONCLUSIVE
        what = NO_FRESH if stops else "no fresh baseline, judged against the stored runs"
        self.lost = f"{what}: {error}"
        self.say(self.lost)

    @property
    def ended(self) -> bool:
        """Whether the plan is over because there is no fresh baseline."""
        return bool(self.lost) and self.policy.looks.without_source is WithoutSource.INCONCLUSIVE

    def stop_if_ended(self) -> None:
        """Raise CanaryError if the policy does not go on, before a look is spent in vain."""
        if self.ended:
            raise CanaryError(f"{self.lost}; the plan can go on where it is available")

    def missing(self, wanted: int, sides: Versions | None = None) -> Missing:
        """The runs that the candidate still lacks to have `wanted`, and the champion's runs that belong beside them."""
        _, baseline, candidate = sides or self.sides()
        side = candidate_side(candidate.runs)
        behind, fresh = (baseline.runs, baseline.fresh) if baseline else ((), ())
        # Without runs that were stopped, whose seeds are free. `make_again` handles those that broke off.
        evidence, count = side.evidence, max(0, wanted - planned(side.evidence))
        seeds = next_seeds(count, seeds_of(behind), seeds_of((*evidence, *side.broken_off)))
        first = seeds_without_fresh(self.client, self.maker, evidence, fresh) if self.with_fresh else ()
        there = seeds_of([run for run in fresh if run.finished])
        return Missing(seeds=tuple(seeds), with_fresh=self.with_fresh, first=tuple(first), there=tuple(there))

    def make(self, missing: Missing) -> None:
        """Make the runs of the next look; the ledger names each of them, even one that broke off."""
        champion = self.prepared
        try:
            for turn, seed, made in self.maker.turns(missing.turns(), champion):
                self.make_one(turn, seed, champion, made)
                if not self.maker.at_once:  # else a fresh run may have ended that its own turn has yet to mark as one
                    self.record_runs()
        except BrokeOff as error:  # it is repeated first
            self.broke_off = True
            self.say(str(error))
        finally:
            self.record_runs()

    def make_one(self, turn: Turn, seed: int, champion: str | None, made: Made) -> None:
        if turn is Turn.CANDIDATE and not self.ended:
            self.say(f"making a run of the candidate, seed {seed}")
            made()
        elif turn is Turn.FRESH and self.with_fresh and champion is not None:
            self.say(f"making a run of champion version {champion}, seed {seed}")
            try:
                made()
            except NoSource as error:
                self.go_without(error)

    def record_runs(self) -> None:
        """Let the ledger name the runs that were made since it last did."""
        if session_id := session_of(find_version(self.client, self.model, self.version)):
            record_runs(self.client, session_id, self.model)

    def made(self) -> int:
        """How many runs of its plan the candidate has."""
        return planned(candidate_side(self.sides().candidate.runs).evidence)

    def make_again(self) -> None:
        """Repeat runs that broke off, or whose clock does not count, as often as the policy allows, and run the
        champion's code beside an exception that recurred. If that fails, the existing runs are judged."""
        while again := self.again(sides := self.sides()):
            try:
                self.maker.prepare()
            except CanaryError as error:
                self.stuck = str(error)
                self.say(f"{NO_MORE}: {error}")
                return
            for seed, reason in again.items():
                self.say(f"making the run of seed {seed} again: it {reason}")
                tried = len(self.sides().candidate.runs)
                try:
                    self.maker.candidate(seed)
                except CanaryError as error:
                    if isinstance(error, StoreError) or len(self.sides().candidate.runs) == tried:
                        raise
                    self.say(str(error))
                self.record_runs()
        self.make_fresh_after_crash(sides)

    def make_fresh_after_crash(self, sides: Versions) -> None:
        """Run the champion's code beside an exception that recurred, to tell whether the candidate's code is to
        blame."""
        champion, baseline, candidate = sides
        if champion is None or baseline is None or champion == self.version or self.stuck:
            return
        for seed, raised in to_run_beside(candidate.runs, baseline).items():
            self.say(f"{raised} ended seed {seed} again; making a run of champion version {champion}")
            if lost := run_champion(self.maker, champion, baseline.runs, seed):
                self.stuck = lost
                self.say(lost)

    def again(self, sides: Versions) -> dict[int, str]:
        """The seeds whose runs should be repeated, and why; empty if there is no champion to compare with, or no look
        left."""
        champion, baseline, candidate = sides
        left = self.looks(sides).left([look.runs for look in self.progress(sides).taken])
        if baseline is None or champion == self.version or not left:
            return {}
        today = baseline.fresh if fresh_is_due(self.client, self.maker, self.policy, baseline) else None
        return to_run_again(self.policy, baseline.runs, candidate, today)
