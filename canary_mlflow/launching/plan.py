"""A plan of looks, carried out: judge, make the missing runs, judge again, until it decides or cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from canary_mlflow.errors import CanaryError, NoSource
from canary_mlflow.launching.circumstances import fresh_is_due, seeds_of, seeds_without_fresh
from canary_mlflow.launching.makers import Maker
from canary_mlflow.launching.missing_runs import Missing, Turn
from canary_mlflow.registry.gatekeeper import gate
from canary_mlflow.registry.sides import read_sides
from canary_mlflow.registry.versions import champion_number, find_version
from canary_mlflow.reports.decision import Decision
from canary_mlflow.reports.more_runs import NO_FRESH, NO_MORE, lasting
from canary_mlflow.tracking.session import minutes_of_runs
from gates.looks import WithoutSource
from gates.policy import Policy
from gates.records import Version
from gates.sides import broken_off, candidate_side, planned
from gates.top_up import TopUp, next_look, next_seeds, to_run_again
from gates.verdict import Outcome, ReasonCode, Verdict
from gates.wording import runs

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass
class Plan:
    """One version on its way through the looks of a policy. `say` tells people what is being made."""

    client: MlflowClient
    model: str
    version: str
    policy: Policy
    maker: Maker
    say: Callable[[str], None]
    dry_run: bool = False
    step: TopUp | None = None
    beside: bool = False  # the next runs come with fresh ones of the champion
    prepared: str | None = None  # the champion whose code is at hand, whoever has become champion since
    lost: str = ""  # why there are no fresh ones although the policy asks for them; noted on every verdict from then on

    def carry_out(self) -> Decision:
        """All looks; the decision of the last. With `dry_run` one look, and what would follow."""
        if not self.dry_run:
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

    def sides(self) -> tuple[str | None, Version | None, Version]:
        """The champion's number, the champion and the candidate as they are now."""
        champion = champion_number(self.client, self.model)
        found = find_version(self.client, self.model, self.version)
        return champion, *read_sides(self.client, self.model, champion, found)

    def remarks(self, verdict: Verdict) -> Sequence[str]:
        """Decide what follows from a look's verdict, and say so on it."""
        champion, baseline, candidate = self.sides()
        self.beside = not self.lost and fresh_is_due(self.client, self.policy, baseline)
        self.step = next_look(self.policy, verdict, fresh=self.beside)
        said: list[str] = []
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
            assert champion is not None
            assert baseline is not None
            try:
                self.maker.prepare_fresh(champion, baseline.runs)
                self.prepared = champion
            except NoSource as error:
                self.go_without(error)
                self.step = next_look(self.policy, verdict)
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

    def go_without(self, error: NoSource) -> None:
        """The champion's code cannot be had: go on with its stored runs, or stop, as the policy says."""
        self.beside = False
        stops = self.policy.looks.without_source is WithoutSource.INCONCLUSIVE
        what = NO_FRESH if stops else "no fresh baseline, judged against the stored runs"
        self.lost = f"{what}: {error}"
        self.say(self.lost)

    @property
    def ended(self) -> bool:
        """Whether the plan is over because there is no fresh baseline."""
        return bool(self.lost) and self.policy.looks.without_source is WithoutSource.INCONCLUSIVE

    def missing(self, wanted: int) -> Missing:
        """The runs that the candidate lacks for so many, and the champion's that belong to them."""
        _, baseline, candidate = self.sides()
        side = candidate_side(candidate)
        behind, fresh = (baseline.runs, baseline.fresh) if baseline else ((), ())
        # Those of its evidence: the seed of a run that was broken off is made again, and its partner is not alone.
        evidence, count = side.evidence, max(0, wanted - planned(side.evidence))
        seeds = next_seeds(count, seeds_of(behind), seeds_of(evidence), seeds_of(broken_off(side)))
        first = seeds_without_fresh(self.client, evidence, fresh) if self.beside else ()
        return Missing(seeds=tuple(seeds), beside=self.beside, first=tuple(first))

    def make(self, missing: Missing) -> None:
        """The runs of the next look."""
        champion = self.prepared
        for turn, seed in missing.turns():
            if turn is Turn.CANDIDATE and not self.ended:
                self.say(f"making a run of the candidate, seed {seed}")
                self.maker.candidate(seed)
            elif turn is Turn.FRESH and self.beside and champion is not None:
                self.say(f"making a run of champion version {champion}, seed {seed}")
                self.make_fresh(champion, seed)

    def made(self) -> int:
        """How many runs of its plan the candidate has."""
        return planned(candidate_side(self.sides()[2]).evidence)

    def make_fresh(self, champion: str, seed: int) -> None:
        try:
            self.maker.fresh(champion, seed)
        except NoSource as error:
            self.go_without(error)

    def make_again(self) -> None:
        """Run again what broke off or no clock can judge, as often as the policy allows."""
        while True:
            _, baseline, candidate = self.sides()
            if baseline is None:
                return
            due = fresh_is_due(self.client, self.policy, baseline)
            invalid = to_run_again(self.policy, baseline.fresh if due else baseline.runs, candidate)
            if not invalid:
                return
            try:
                self.maker.prepare()
            except NoSource as error:  # what is there is judged all the same
                self.say(f"{NO_MORE}: {error}")
                return
            for seed, reason in invalid.items():
                self.say(f"making the run of seed {seed} again: it {reason}")
                self.maker.candidate(seed)

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
