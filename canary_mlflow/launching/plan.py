"""Carries out a plan of looks: judge, make the missing runs, judge again, until it decides or cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from canary_mlflow import tags
from canary_mlflow.errors import CanaryError, NoSource
from canary_mlflow.launching.fresh_runs import fresh_is_due
from canary_mlflow.launching.missing_runs import Missing
from canary_mlflow.launching.planned_runs import PlannedRuns, Versions
from canary_mlflow.registry.judging.gatekeeper import gate
from canary_mlflow.reports.decision import Decision, HeldBy
from canary_mlflow.reports.next_step import NO_MORE, lasting
from canary_mlflow.tracking.stores.session import minutes_of_runs
from gates.model.records import Version
from gates.model.verdict import ReasonCode
from gates.model.wording import counted
from gates.top_up import TopUp, in_vain, next_look


@dataclass
class Plan(PlannedRuns):
    """One version on its way through the looks of a policy."""

    dry_run: bool = False
    promote: bool | None = None  # see `gate`
    step: TopUp | None = None

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
            self.maker.prepare()
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
        self.with_fresh = not self.lost and fresh_is_due(self.client, self.maker, self.policy, baseline)
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
        self.with_fresh = not self.lost and fresh_is_due(self.client, self.maker, self.policy, baseline)
        self.step = next_look(policy, verdict, fresh=self.with_fresh, again=bool(again), owing=owing)
        said = [f"{NO_MORE}: {self.stuck}"] if self.stuck else []
        if self.step.look is not None:
            try:
                said = [f"more runs are made from {self.maker.prepare()}"]
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
            source = f"more runs are made from {self.maker.prepare()}"
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


def owed(decision: Decision) -> int | None:
    """The number of runs that a version needs before it is promoted, if only that holds it back; else None."""
    return decision.holds[0].runs if [hold.by for hold in decision.holds] == [HeldBy.RUNS] else None


def would_make_again(again: Mapping[int, str]) -> str:
    """What a dry run says about runs that are repeated before the look."""
    return f"would first make again {'; '.join(f'seed {seed}: it {why}' for seed, why in again.items())}"
