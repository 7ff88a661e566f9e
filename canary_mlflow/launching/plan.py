"""A plan of looks, carried out: judge, make the missing runs, judge again, until it decides or cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from canary_mlflow.errors import CanaryError, NoSource
from canary_mlflow.launching.circumstances import fresh_is_due
from canary_mlflow.launching.making import Making
from canary_mlflow.registry.gatekeeper import gate
from canary_mlflow.reports.decision import Decision
from canary_mlflow.reports.more_runs import NO_MORE, lasting
from canary_mlflow.tracking.session import minutes_of_runs
from gates.records import Version
from gates.top_up import TopUp, in_vain, next_look
from gates.verdict import Outcome, ReasonCode, Verdict
from gates.wording import runs


@dataclass
class Plan(Making):
    """One version on its way through the looks of a policy."""

    dry_run: bool = False
    step: TopUp | None = None

    def carry_out(self) -> Decision:
        """All looks; the decision of the last. With `dry_run` one look, and what would follow."""
        if not self.dry_run:
            self.go_on()
            self.make_again()
        while True:
            decision = gate(
                self.client,
                self.model,
                self.version,
                self.policy,
                dry_run=self.dry_run,
                by_plan=True,
                remarks=self.remarks,
            )
            if self.dry_run or self.ended or self.step is None or self.step.look is None:
                self.make_a_baseline(decision)
                return decision
            before, missing = self.made(), self.missing(self.step.candidate_runs)
            self.make(missing)
            if missing.seeds and self.made() <= before and not self.ended:
                raise CanaryError(
                    f"{self.model} version {self.version}: the runs that were made are no evidence; expected runs that "
                    "say how they ended (canary.completed); look at the last run of its session"
                )
            self.make_again()

    def go_on(self) -> None:
        """Where the plan was stopped on the way to a look, make what it lacks: to look at less would spend it."""
        champion, baseline, _ = self.sides()
        self.beside = fresh_is_due(self.client, self.policy, baseline)
        wanted = self.on_the_way_to()
        if wanted is None:
            return
        try:
            self.maker.prepare()
        except NoSource:  # what is there is judged, and the verdict's notes say why there is no more
            return
        self.prepare_beside(champion, baseline)
        if not self.ended:
            self.say(f"going on to the look at {runs(wanted, 'candidate')}")
            self.make(self.missing(wanted))

    def on_the_way_to(self) -> int | None:
        """The runs of the look that the plan was stopped before; None where the next look is at what is there."""
        is_at = self.progress()
        left = self.policy.looks.left([look.runs for look in is_at.taken])
        if not (is_at.taken and left) or is_at.seen or is_at.now.runs > left[0]:
            return None
        champion, baseline, candidate = self.sides()
        if baseline is None or champion == self.version or in_vain(self.policy, baseline.runs, candidate):
            return None  # it is refused, or decided
        return left[0] if self.missing(left[0]).count else None

    def remarks(self, verdict: Verdict) -> Sequence[str]:
        """Decide what follows from a look's verdict, and say so on it."""
        champion, baseline, candidate = self.sides()
        self.beside = not self.lost and fresh_is_due(self.client, self.policy, baseline)
        wanted, again = self.on_the_way_to() if self.dry_run else None, self.again()
        self.step = next_look(self.policy, verdict, fresh=self.beside, again=bool(again))
        said: list[str] = []
        if wanted is not None:
            return [f"would first go on to the look at {runs(wanted, 'candidate')}: {self.missing(wanted).words()}"]
        if self.ended:
            return [self.lost]
        if self.step.look is not None:
            try:
                said.append(f"more runs are made from {self.maker.prepare()}")
            except NoSource as error:
                said.append(f"{NO_MORE}: {error}")
                self.step = None
                return said
        if self.step.look is not None and self.beside:
            self.prepare_beside(champion, baseline)
            if not self.beside:
                self.step = next_look(self.policy, verdict, again=bool(again))
        if self.dry_run and again:
            said.append(f"would first make again {'; '.join(f'seed {seed}: it {why}' for seed, why in again.items())}")
        if self.ended:
            return [self.lost]
        said += [self.lost] if self.lost else []
        if verdict.reason_code is ReasonCode.NO_BASELINE:
            return said
        looks = f"look {verdict.look} of {len(self.policy.looks.runs)}"
        what = f", {self.plan_in_words(candidate)}" if self.step.look is not None else ""
        said.append(f"{looks}: {self.step.reason}{what}")
        if self.dry_run and verdict.outcome is Outcome.PASS and (lacking := self.lacking(verdict)):
            said.append(f"would then make {lacking}")
        return said

    def plan_in_words(self, candidate: Version) -> str:
        """What the next look needs."""
        assert self.step is not None
        missing = self.missing(self.step.candidate_runs)
        minutes = minutes_of_runs(self.client, candidate.runs[0].session) if candidate.runs else None
        time = f", {lasting(missing.count * minutes)}" if minutes is not None else ""
        return f"{'would make' if self.dry_run else 'making'} {missing.words()}{time}"

    def lacking(self, verdict: Verdict) -> str:
        """The runs that a version which passed on so few lacks: as a baseline it could block no successor."""
        few = self.policy.min_baseline_runs - (verdict.planned_runs or 0)
        return f"{runs(few, 'more')}, so that the new champion can be a baseline" if few > 0 else ""

    def make_a_baseline(self, decision: Decision) -> None:
        """The runs that the new champion lacks."""
        lacking = self.lacking(decision.verdict)
        if decision.promoted and not decision.bootstrapped and lacking:
            seeds = self.missing(self.policy.min_baseline_runs).seeds
            self.say(lacking)
            try:
                for seed in seeds:
                    self.maker.candidate(seed)
            except CanaryError as error:  # it is champion already, and that is to be reported
                self.say(f"not made: {error}; with so few runs as baseline no version is blocked by statistics")
