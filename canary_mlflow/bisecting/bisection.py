"""The search for the first commit that shows what the bad end shows: both ends, then ever fewer commits between."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from statistics import fmean
from typing import Any

from canary_mlflow.bisecting.commits import Commit
from canary_mlflow.bisecting.search import Answer, first_bad
from canary_mlflow.bisecting.symptoms import Symptom, crash_of, hard_answer, metric_answer, symptom_of, verdict_on
from canary_mlflow.bisecting.trying import Trainer, Training
from canary_mlflow.errors import CanaryError
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.verdict import Outcome
from canary_mlflow.gates.stats.power import LEAST_TO_BLOCK

PLAN = ((1, 0.0), (2, 0.2), (3, 0.3), (5, 0.5))
"""Trainings of a commit after which a noisy step is judged, and the share of its chance of error that each look has.
One tells only that nothing changed."""
AGAIN = "again"
REPEATS = 4
"""Trainings of the bad end that tell how often it shows what does not come each time."""
NOISY = 2
"""Commits that may stay open for noise; with more the search ends, as it would train them all."""
ENDS = 4  # trainings of both ends together, of which the last two confirm what blocks


@dataclass(frozen=True, kw_only=True)
class Step:
    """A commit that was tried. `answer`: bad, good, or untestable for what it `said`."""

    commit: Commit
    answer: str
    said: str
    trainings: int


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """What came of it. `outcome`: BLOCK if a commit is named, PASS if the bad end is no worse, else INCONCLUSIVE with
    `why`. `last_good`: of which the commit is the next, but for those `skipped` between: it is one of them or itself.
    `chance`: of a wrong answer in the whole search; 0 if what is looked for repeats exactly."""

    outcome: str
    good: Commit
    bad: Commit
    commits: int
    why: str = ""
    commit: Commit | None = None
    last_good: Commit | None = None
    skipped: tuple[Commit, ...] = ()
    symptom: str = ""
    evidence: str = ""
    chance: float = 0.0
    steps: tuple[Step, ...] = ()
    trainings: int = 0
    minutes: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0, 1 or 3, as for a verdict."""
        return {"PASS": 0, "BLOCK": 1}.get(self.outcome, 3)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "exit_code": self.exit_code}


@dataclass
class Search:
    """`commits`: after the good one, in order, up to the bad one. `chance`: of a wrong answer in all of it. `minutes`:
    after which no training begins; None for no limit."""

    trainer: Trainer
    good: Commit
    commits: Sequence[Commit]
    policy: Policy
    chance: float
    say: Callable[[str], None]
    minutes: float | None = None
    notes: tuple[str, ...] = ()
    steps: dict[str, Step] = field(default_factory=dict)
    made: dict[str, float] = field(default_factory=dict)  # the folders of trainings, and their seconds
    clean: int = 1  # trainings without it after which a commit counts as good
    halted: str = ""  # why nothing more is tried
    began: float = field(default_factory=time.monotonic)

    @property
    def bad(self) -> Commit:
        """The last one."""
        return self.commits[-1]

    @property
    def level(self) -> float:
        """The chance of a wrong answer that one step may take."""
        return self.chance / steps_of(len(self.commits))

    def carry_out(self) -> Bisection:
        """Both ends, then the commits between."""
        symptom = self.ends()
        if not isinstance(symptom, Symptom):
            return symptom
        symptom = self.confirmed(symptom)
        if not isinstance(symptom, Symptom):
            return symptom
        self.say(f"looking for: {symptom.said}")

        def test(commit: Commit) -> Answer:
            return Answer.BAD if commit == self.bad else self.answer(symptom, commit)

        found, skipped = first_bad(self.commits, test)
        order = [self.good, *self.commits]
        before = order[order.index(found) - len(skipped) - 1]
        step = self.steps.get(found.sha)
        sure = not skipped
        return self.ended(
            Outcome.BLOCK if sure else Outcome.INCONCLUSIVE,
            self.halted or ("" if sure else "the commits between could not be told"),
            commit=found,
            last_good=before,
            skipped=tuple(skipped),
            symptom=symptom.said,
            evidence=step.said if step else symptom.said,
            chance=self.chance if symptom.noisy or self.clean > 1 else 0.0,
        )

    def ends(self) -> Symptom | Bisection:
        """What the bad end shows. Raises CanaryError if the good one does not train."""
        good, bad = list[Run](), list[Run]()
        seeds = iter(range(self.policy.looks.runs[-1]))
        for look, runs in enumerate(self.policy.looks.runs, 1):
            for seed in [next(seeds) for _ in range(runs - look_runs(self.policy, look - 1))]:
                if self.made and (over := self.over()):
                    return self.ended(Outcome.INCONCLUSIVE, over)
                for commit in in_turn(seed, self.good, self.bad):
                    found = self.train(commit, seed)
                    if found.crash and commit is self.good:
                        raise CanaryError(f"GOOD {commit}: {found.crash}; expected a commit that trains to its end")
                    if found.crash:
                        return crash_of(found)
                    (good if commit is self.good else bad).extend(found.runs)
            verdict = verdict_on(self.policy, good, bad, look)
            if (symptom := symptom_of(self.policy, good, bad, verdict, seed)) is not None:
                return symptom
            if verdict.outcome is Outcome.PASS:
                break
        return self.ended(verdict.outcome, f"BAD is not shown to be worse than GOOD: {verdict.reason}")

    def confirmed(self, symptom: Symptom) -> Symptom | Bisection:
        """What shows again, and not at the good end; and how many trainings tell that a commit does not show it."""
        if symptom.noisy:
            return symptom
        if self.shows(symptom, self.good, AGAIN)[0] is Answer.BAD:
            return self.ended(Outcome.INCONCLUSIVE, f"GOOD shows it too when it is trained again: {symptom.said}")
        shown = [True, self.shows(symptom, self.bad, AGAIN)[0] is Answer.BAD]
        while not all(shown) and len(shown) < REPEATS:
            shown.append(self.shows(symptom, self.bad, f"{AGAIN} {len(shown)}")[0] is Answer.BAD)
        if not all(shown):
            self.clean = math.ceil(math.log(self.level) / math.log1p(-sum(shown) / len(shown)))
            self.say(f"it shows in {sum(shown)} of {len(shown)}: a commit is good after {self.clean} without it")
        return symptom

    def answer(self, symptom: Symptom, commit: Commit) -> Answer:
        """Whether a commit shows it."""
        before = len(self.made)
        answer, said = Answer.UNTESTABLE, self.halted or self.over()
        if not said:
            answer, said = self.told(symptom, commit)
        step = Step(commit=commit, answer=answer, said=said, trainings=len(self.made) - before)
        self.steps[commit.sha] = step
        if step.trainings or not self.halted:
            self.say(f"{commit}: {answer}{f', {said}' if said and answer is not Answer.GOOD else ''}")
        return answer

    def told(self, symptom: Symptom, commit: Commit) -> tuple[Answer, str]:
        """The same, with what it said."""
        if symptom.noisy:
            return self.measured(symptom, commit)
        for at in range(self.clean):
            answer, said = self.shows(symptom, commit, f"{AGAIN} {at}" if at else "")
            if answer is not Answer.GOOD:
                break
        return answer, said

    def shows(self, symptom: Symptom, commit: Commit, turn: str) -> tuple[Answer, str]:
        """One training of a commit."""
        found = self.train(commit, symptom.seed, turn)
        if found.crash:
            same = symptom.crash and found.kind == symptom.key
            return (Answer.BAD if same else Answer.UNTESTABLE), found.crash
        if symptom.crash:
            return Answer.GOOD, ""
        turns = (
            ("",) if commit is self.good else ("", AGAIN)
        )  # facts that two trainings of GOOD do not share tell nothing
        good = [run for each in turns for run in self.train(self.good, symptom.seed, each).runs]
        return hard_answer(symptom, good, found.runs)

    def measured(self, symptom: Symptom, commit: Commit) -> tuple[Answer, str]:
        """A noisy metric of a commit, in turns with GOOD, until it can be told."""
        good, other, seeds = list[Run](), list[Run](), iter(range(PLAN[-1][0]))
        made = 0
        for trainings, share in PLAN:
            if over := self.over():
                return Answer.UNTESTABLE, over
            for seed in islice(seeds, trainings - made):
                for each in in_turn(seed, self.good, commit):
                    found = self.train(each, seed, commit.sha if symptom.timed and each is self.good else "")
                    if found.crash:
                        return Answer.UNTESTABLE, found.crash
                    (good if each is self.good else other).extend(found.runs)
            made = trainings
            answer, said = metric_answer(symptom, good, other, self.level * share, LEAST_TO_BLOCK)
            if answer is not None:
                return answer, said
        noisy = [step for step in self.steps.values() if step.trainings and step.answer == Answer.UNTESTABLE]
        if len(noisy) + 1 >= NOISY:
            self.halted = f"too noisy: {PLAN[-1][0]} trainings of a commit do not tell"
        return Answer.UNTESTABLE, f"cannot be told in {PLAN[-1][0]} trainings: {said}"

    def train(self, commit: Commit, seed: int, turn: str = "") -> Training:
        """One training, counted once."""
        found = self.trainer.train(commit, seed, turn)
        self.made[found.folder] = found.seconds
        return found

    def over(self) -> str:
        """Why no training may begin any more; '' if one may."""
        if self.minutes is None:
            return ""
        spent, one = (time.monotonic() - self.began) / 60, fmean(self.made.values()) / 60
        if spent + one <= self.minutes:
            return ""
        self.halted = f"the budget of {self.minutes:g} minutes is spent; the same command goes on"
        return self.halted

    def ended(self, outcome: str, why: str, **found: Any) -> Bisection:
        """The result with what it took."""
        return Bisection(
            outcome=str(outcome), why=why, good=self.good, bad=self.bad, commits=len(self.commits),
            steps=tuple(self.steps.values()), trainings=len(self.made),
            minutes=round(sum(self.made.values()) / 60, 1), notes=self.notes, **found,
        )  # fmt: skip


def look_runs(policy: Policy, look: int) -> int:
    """How many runs a side has at a look, counted from 1; none before the first."""
    return policy.looks.runs[look - 1] if look else 0


def in_turn(seed: int, good: Commit, other: Commit) -> Iterator[Commit]:
    """Both, so that neither always comes first: good other, other good."""
    yield from (good, other) if seed % 2 == 0 else (other, good)


def steps_of(commits: int) -> int:
    """How many answers a search among so many commits needs."""
    return max(1, math.ceil(math.log2(commits)))


def planned(commits: int, policy: Policy) -> tuple[int, int]:
    """The fewest and the most trainings that a search makes where no commit is skipped: for what repeats exactly, and
    for what is noisy and close."""
    steps = steps_of(commits) if commits > 1 else 0
    return ENDS + steps, 2 * policy.looks.runs[-1] + 2 * PLAN[-1][0] * steps
