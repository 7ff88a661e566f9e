"""Carries out a plan of looks: judge, make the missing runs, judge again, until it decides or cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from canary_mlflow import tags
from canary_mlflow.errors import BrokeOff, CanaryError, NoSource, StoreError, UsageError
from canary_mlflow.gates.hard.crashes import to_run_beside
from canary_mlflow.gates.model.policy import Looks, Policy, WithoutSource
from canary_mlflow.gates.model.records import Version
from canary_mlflow.gates.model.sides import candidate_side, planned
from canary_mlflow.gates.model.verdict import ReasonCode
from canary_mlflow.gates.model.wording import counted
from canary_mlflow.gates.top_up import TopUp, certain, champion_runs, in_vain, next_look, next_seeds, to_run_again
from canary_mlflow.launching.added_runs import AddedRuns, configuration_of, run_champion
from canary_mlflow.launching.cluster import runner_at
from canary_mlflow.launching.missing_runs import Missing, fresh_is_due, seeds_of, seeds_without_fresh
from canary_mlflow.launching.runs import Result, Runner, RunSpec, make_one
from canary_mlflow.registry.acts.accepting import accepted_facts
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.evidence import is_own_script
from canary_mlflow.registry.judging.gatekeeper import gate
from canary_mlflow.registry.judging.looks import Progress, progress
from canary_mlflow.registry.sessions import orders
from canary_mlflow.registry.sessions.orders import read_sides
from canary_mlflow.registry.sessions.rows import record_runs
from canary_mlflow.registry.versions import champion_number, find_version, session_of
from canary_mlflow.reports.decision import Decision, HeldBy
from canary_mlflow.reports.next_step import NO_FRESH, NO_MORE, lasting
from canary_mlflow.tracking.reading.histories import read_version
from canary_mlflow.tracking.stores.session import minutes_of_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Versions(NamedTuple):
    """The champion's number, the champion and the candidate."""

    champion: str | None
    baseline: Version | None
    candidate: Version


@dataclass
class Plan:
    """One version on its way through the looks of a policy, with more runs of it, and of the champion beside them.
    `say` tells people what is being made."""

    client: MlflowClient
    model: str
    version: str
    policy: Policy
    added: AddedRuns
    runner: Runner
    say: Callable[[str], None]
    dry_run: bool = False
    promote: bool | None = None  # see `gate`
    step: TopUp | None = None
    with_fresh: bool = False  # the next runs come with fresh ones of the champion
    prepared: str | None = None  # the champion whose code is prepared, whoever has become champion since
    lost: str = ""  # why there are no fresh ones although the policy asks for them; noted on every verdict from then on
    broke_off: bool = False  # an exception ended a run of a look, and the look is taken without it
    stuck: str = ""  # why runs that broke off, or whose clock does not count, were not repeated

    def carry_out(self) -> Decision:
        """Take all looks and return the decision of the last. With `dry_run`, one look, and what would follow."""
        if not self.dry_run:
            self.make_again()  # first, so that its runs count
            self.go_on()
        while True:
            if not self.dry_run:
                self.record_runs()  # including runs that a killed process had made
            decision = gate(
                self.client,
                self.model,
                self.version,
                self.policy,
                dry_run=self.dry_run,
                by_plan=True,
                promote=self.promote,
                remarks=self.remarks,
            )
            if self.dry_run or self.ended or self.step is None or self.step.look is None:
                return decision
            before, missing = self.made(), self.missing(self.step.candidate_runs)
            self.make(missing)
            self.stop_if_ended()
            if missing.seeds and self.made() <= before and not self.broke_off:
                raise CanaryError(
                    f"{self.model} version {self.version}: the runs that were made are not evidence; expected runs "
                    f"that say how they ended ({tags.COMPLETED}); look at the last run of its session"
                )
            self.make_again()

    def go_on(self) -> None:
        """If the plan was stopped on its way to a look, make the runs that the look lacks: with fewer, it would be
        spent. Raises CanaryError if they cannot be made."""
        sides = self.sides()
        found = self.unfinished(sides)
        if found is None:
            return
        wanted, missing = found
        try:
            self.added.prepare()
        except NoSource as error:
            raise NoSource(f"{NO_MORE}: {error}; to judge what is there: canary gate without --top-up") from error
        self.prepare_fresh(sides.champion, sides.baseline)
        self.stop_if_ended()
        self.say(f"going on to the look at {counted(wanted, 'candidate run')}")
        self.make(missing)
        self.stop_if_ended()
        self.make_again()

    def unfinished(self, sides: Versions) -> tuple[int, Missing] | None:
        """The look before which the plan was stopped, by its number of runs, and what it lacks; None if the next look
        needs no more runs."""
        is_at = self.progress(sides)
        left = self.looks(sides).left([look.runs for look in is_at.taken])
        if not (is_at.taken and left) or is_at.seen or is_at.now.runs > left[0]:
            return None
        champion, baseline, candidate = sides
        if baseline is None or champion == self.version or in_vain(self.policy, baseline, candidate):
            return None  # it is refused, or decided
        self.with_fresh = not self.lost and fresh_is_due(self.client, self.runner, self.policy, baseline)
        missing = self.missing(left[0], sides)
        return (left[0], missing) if missing.count else None

    def remarks(self, decision: Decision) -> Sequence[str]:
        """What to note on a look's verdict. Also decides on the `step` that follows, and prepares its code."""
        verdict, owing = decision.verdict, owed(decision)
        champion, baseline, candidate = sides = self.sides()
        policy = replace(self.policy, looks=self.looks(sides))
        again = self.again(sides)
        if self.dry_run and (found := self.unfinished(sides)):
            return self.would_go_on(candidate, again, *found)
        self.with_fresh = not self.lost and fresh_is_due(self.client, self.runner, self.policy, baseline)
        self.step = next_look(policy, verdict, fresh=self.with_fresh, again=bool(again), owing=owing)
        said = [f"{NO_MORE}: {self.stuck}"] if self.stuck else []
        if self.step.look is not None:
            try:
                said = [f"more runs are made from {self.added.prepare()}"]
            except NoSource as error:
                self.step = None
                return [f"{NO_MORE}: {error}"]
            self.prepare_fresh(champion, baseline)
            if self.ended:
                return [self.lost]
            self.step = next_look(policy, verdict, fresh=self.with_fresh, again=bool(again), owing=owing)
        if self.dry_run and again:
            said.append(would_make_again(again))
        said += [self.lost] if self.lost else []
        if verdict.reason_code is ReasonCode.NO_BASELINE and owing is None:
            return said
        looks = f"look {verdict.look} of {len(policy.looks.runs)}"
        what = f", {self.in_words(candidate, self.missing(self.step.candidate_runs, sides))}" if self.step.look else ""
        said.append(f"{looks}: {self.step.reason}{what}")
        return said

    def would_go_on(self, candidate: Version, again: Mapping[int, str], wanted: int, missing: Missing) -> list[str]:
        """What a dry run says about a plan that was stopped on its way to a look."""
        try:
            source = f"more runs are made from {self.added.prepare()}"
        except NoSource as error:
            return [f"{NO_MORE}: {error}"]
        words = f"on the way to the look at {counted(wanted, 'candidate run')}: {self.in_words(candidate, missing)}"
        first = [would_make_again(again)] if again else []
        return [source, *first, f"{words}; this verdict covers the runs that exist"]

    def in_words(self, candidate: Version, missing: Missing) -> str:
        """What will be made, and how long that takes."""
        minutes = minutes_of_runs(self.client, candidate.runs[0].session) if candidate.runs else None
        time = f", {lasting(missing.count * minutes)}" if minutes is not None else ""
        return f"{'would make' if self.dry_run else 'making'} {missing.words()}{time}"

    def sides(self) -> Versions:
        """The champion and the candidate as they are now."""
        champion = champion_number(self.client, self.model)
        found = find_version(self.client, self.model, self.version)
        baseline, candidate = read_sides(self.client, self.model, champion, found)
        return Versions(champion, orders.counted(baseline)[0], candidate)

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
            self.added.prepare_fresh(champion, baseline.runs)
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
        first = seeds_without_fresh(self.client, self.runner, evidence, fresh) if self.with_fresh else ()
        there = seeds_of([run for run in fresh if run.finished])
        return Missing(seeds=tuple(seeds), with_fresh=self.with_fresh, first=tuple(first), there=tuple(there))

    def make(self, missing: Missing) -> None:
        """Make the runs of the next look; the ledger names each of them, even one that broke off."""
        left = missing.count
        try:
            for spec, result in self.runner.make(self.specs(missing)):
                left -= 1
                if spec.role != "baseline" and not self.ended:
                    result.require_end(spec)
                elif spec.role == "baseline" and self.with_fresh:
                    self.take_fresh(spec, result)
                if not self.runner.at_once:  # else a fresh run may have ended that its own turn has yet to mark as one
                    self.record_runs()
                if self.policy.fail_fast and left > 0 and spec.role != "baseline" and self.is_certain(left):
                    break
        except BrokeOff as error:  # it is repeated first
            self.broke_off = True
            self.say(str(error))
        finally:
            self.record_runs()

    def is_certain(self, missing: int) -> bool:
        """Whether the candidate fails whatever the missing runs show, which is said."""
        _, baseline, candidate = self.sides()
        accepted = accepted_facts(registry_of(self.client), self.model)
        why = certain(self.policy, baseline, candidate, missing, accepted, by_plan=True)
        if why:
            self.say(f"{why} blocks already: {counted(missing, 'run')} not made")
        return bool(why)

    def specs(self, missing: Missing) -> Iterator[RunSpec]:
        """The missing runs in order, as long as the plan needs them."""
        champion = self.prepared
        for role, seed in missing.turns():
            if role == "run" and not self.ended:
                self.say(f"making a run of the candidate, seed {seed}")
                yield self.added.candidate(seed)
            elif role == "baseline" and self.with_fresh and champion is not None:
                self.say(f"making a run of champion version {champion}, seed {seed}")
                try:
                    spec = self.added.fresh(champion, seed)
                except NoSource as error:
                    self.go_without(error)
                else:
                    yield spec

    def take_fresh(self, spec: RunSpec, result: Result) -> None:
        """Let a run of the champion's code count, or go on without."""
        assert self.prepared is not None
        try:
            self.added.take_fresh(self.prepared, spec, result)
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
                self.added.prepare()
            except CanaryError as error:
                self.stuck = str(error)
                self.say(f"{NO_MORE}: {error}")
                return
            for seed, reason in again.items():
                self.say(f"making the run of seed {seed} again: it {reason}")
                tried = len(self.sides().candidate.runs)
                try:
                    spec = self.added.candidate(seed)
                    make_one(self.runner, spec).require_end(spec)
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
            if lost := run_champion(self.added, self.runner, champion, baseline.runs, seed):
                self.stuck = lost
                self.say(lost)

    def again(self, sides: Versions) -> dict[int, str]:
        """The seeds whose runs should be repeated, and why; empty if there is no champion to compare with, or no look
        left."""
        champion, baseline, candidate = sides
        left = self.looks(sides).left([look.runs for look in self.progress(sides).taken])
        if baseline is None or champion == self.version or not left:
            return {}
        today = baseline.fresh if fresh_is_due(self.client, self.runner, self.policy, baseline) else None
        return to_run_again(self.policy, baseline.runs, candidate, today)


def owed(decision: Decision) -> int | None:
    """The number of runs that a version needs before it is promoted, if only that holds it back; else None."""
    return decision.holds[0].runs if [hold.by for hold in decision.holds] == [HeldBy.RUNS] else None


def would_make_again(again: Mapping[int, str]) -> str:
    """What a dry run says about runs that are repeated before the look."""
    return f"would first make again {'; '.join(f'seed {seed}: it {why}' for seed, why in again.items())}"


def top_up(
    client: MlflowClient,
    model: str,
    version: str,
    policy: Policy,
    say: Callable[[str], None],
    *,
    dry_run: bool = False,
    promote: bool | None = None,
    launcher: str = "local",
) -> Decision:
    """Carry out the plan for a registered version, with runs launched through MLflow Projects. `promote`: see `gate`;
    `launcher`: local or ray.

    Raises NoSource if the candidate's code is not available, UsageError for a version without runs of a canary.
    """
    found = find_version(client, model, version)
    session, made = session_of(found), read_version(client, model, version, metrics=()).runs
    if session is None or not made or is_own_script(client, found):
        raise UsageError(
            f"version {version} of {model!r}: it has no session that `canary run` made; expected one; another "
            "script must make its own runs: in a session with more seeds, registered as a new version"
        )
    subject = f"{model} version {version}"
    where = "local" if dry_run else launcher
    with (
        AddedRuns(client, session, subject, made) as added,
        runner_at(where, client, lambda: configuration_of(client, made[0].run_id), say) as runner,
    ):
        return Plan(
            client=client,
            model=model,
            version=version,
            policy=policy,
            added=added,
            runner=runner,
            say=say,
            dry_run=dry_run,
            promote=promote,
        ).carry_out()
