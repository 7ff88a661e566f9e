"""The search for the first commit that shows what the bad end shows: both ends, then ever fewer commits between."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count, pairwise
from statistics import fmean
from typing import Any

from canary_mlflow.bisecting.commits import Commit
from canary_mlflow.bisecting.search import Answer, first_bad
from canary_mlflow.bisecting.symptoms import Symptom, hard_answer, metric_answer, symptom_of, verdict_on
from canary_mlflow.bisecting.trying import Trainer
from canary_mlflow.errors import CanaryError
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.model.verdict import Outcome
from canary_mlflow.upgrading.probing import RESULT, Probe, known_at

ROUGHLY, SURELY = ((1, 0.0), (2, 0.5), (4, 0.5)), ((4, 0.5), (8, 0.5))
"""Trainings of a commit after which a noisy metric is judged, and the share of the chance of error that each look has.
One tells only that nothing changed, and two seldom how noisy it is."""
MOST = SURELY[-1][0]
LOOSE = 0.1
"""The chance of error of one step on the way, which in the end goes where it seems to: only the two commits between
which the harm begins have to be told for sure, and a step that went astray is found out by that."""
ATTEMPTS = 3  # after which a noisy search ends, as it would train them all
AGAIN = "again"
FACTS_AGAIN, OTHERS_AGAIN = (1, 4), (3, 5)
"""The fewest more trainings of the bad end that tell how often it shows, and the most, if not each time: facts follow
from the seed."""
ENDS = 4  # trainings of both ends, of which the last two confirm what blocks
Looks = tuple[tuple[int, float], ...]
Told = tuple[Answer, str]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A commit that was tried. `answer`: bad, good, or untestable for what it `said`."""

    commit: Commit
    answer: str
    said: str
    trainings: int


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """What came of it. `outcome`: BLOCK if a commit is named, PASS if the bad end is no worse, else INCONCLUSIVE, and
    `why`. `skipped`: between `last_good` and the commit, which is one of them or itself. `chance`: of a wrong answer in
    the whole search; 0 if what is looked for repeats exactly."""

    outcome: str
    commits: int
    why: str = ""
    commit: Commit | None = None
    last_good: Commit | None = None
    skipped: tuple[Commit, ...] = ()
    evidence: str = ""
    chance: float = 0.0
    steps: tuple[Step, ...] = ()
    trainings: int = 0
    minutes: float = 0.0

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
    after which no training begins; None for no limit. `again`: for each further
    training of a bad commit, whether it showed the harm once more. `halted`: why nothing more is tried. `sure`: whether
    the last metric was told."""

    trainer: Trainer
    good: Commit
    commits: Sequence[Commit]
    policy: Policy
    chance: float
    say: Callable[[str], None]
    minutes: float | None = None
    halted: str = ""
    sure: bool = False
    again: list[bool] = field(default_factory=list)
    steps: dict[str, Step] = field(default_factory=dict)
    made: dict[str, float] = field(default_factory=dict)  # the folders of trainings, and their seconds
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.bad, self.many = self.commits[-1], math.ceil(math.log2(len(self.commits)))

    def planned(self) -> dict[str, Any]:
        """How many trainings where no commit is skipped, and no step goes astray: for what repeats exactly, and for
        what is noisy and close. `minutes`: of one; None if none was made."""
        known = (known_at(self.trainer.place(end, 0)) for end in (self.good, self.bad))
        most = 4 * MOST + 2 * ROUGHLY[-1][0] * self.many
        return {"commits": len(self.commits), "least": ENDS + self.many, "most": most,
                "minutes": max((one.seconds / 60 for one in known if one), default=None)}  # fmt: skip

    def carry_out(self) -> Bisection:
        """Both ends, then the commits between. Raises CanaryError if the good one does not train."""
        symptom = self.ends()
        if not isinstance(symptom, Symptom):
            return symptom
        if not symptom.noisy and (odd := self.confirmed(symptom)):
            return self.ended(Outcome.INCONCLUSIVE, odd)
        self.say(f"looking for: {symptom.said}")
        order = [self.good, *self.commits]
        for attempt in count(1):
            if symptom.noisy and attempt > ATTEMPTS:
                self.halted = f"too noisy: {MOST} trainings of a commit do not tell"
            found, skipped = first_bad(self.commits, lambda one: self.answer(symptom, one))
            last_good = order[order.index(found) - len(skipped) - 1]
            if skipped or self.is_sure(symptom, last_good, found, attempt):
                break
        why = self.halted or "the commits between could not be told"
        return self.ended(
            Outcome.INCONCLUSIVE if skipped else Outcome.BLOCK, why if skipped else "", commit=found,
            last_good=last_good, skipped=tuple(skipped),
            evidence=self.steps[found.sha].said if found.sha in self.steps else symptom.said,
            chance=self.chance if symptom.noisy or self.clean(symptom) else 0.0,
        )  # fmt: skip

    def ends(self) -> Symptom | Bisection:
        """What the bad end shows."""
        good, bad = list[Run](), list[Run]()
        planned = self.policy.looks.runs
        for look, (before, runs) in enumerate(pairwise((0, *planned, *(MOST,) * (planned[-1] < MOST))), 1):
            for seed in range(before, runs):
                if self.made and (over := self.over()):
                    return self.ended(Outcome.INCONCLUSIVE, over)
                for commit in in_turn(seed, self.good, self.bad):
                    found = self.train(commit, seed)
                    if found.ended and commit is self.good:
                        expected = "expected a commit that trains to its end; the same command trains it again"
                        raise CanaryError(f"GOOD {commit}: {found.ended}; {expected}; output: {found.folder}")
                    if found.ended:
                        return Symptom(key=found.kind, said=found.ended, policy=self.policy, seed=seed, crash=True)
                    (good if commit is self.good else bad).extend(found.runs)
            verdict = verdict_on(self.policy, good, bad, min(look, len(planned)))
            if (symptom := symptom_of(self.policy, good, bad, verdict)) is not None:
                return symptom
            if verdict.outcome is Outcome.PASS:
                break
        return self.ended(verdict.outcome, f"BAD is not shown to be worse than GOOD: {verdict.reason}")

    def confirmed(self, symptom: Symptom) -> str:
        """Find out how often it shows at the bad end, and so how many trainings tell that a commit does not show it.
        Returns why nothing can be told, or ''."""
        if self.shows(symptom, self.good, 1)[0] is not Answer.GOOD:
            return self.halted or f"GOOD does not train twice without it: {symptom.said}"
        least, most = FACTS_AGAIN if symptom.facts else OTHERS_AGAIN
        while len(self.again) < least or (not all(self.again) and len(self.again) < most):
            self.again.append(self.shows(symptom, self.bad, 1 + len(self.again))[0] is Answer.BAD)
        if self.halted:
            return self.halted
        if not any(self.again):
            return f"BAD shows it once and in none of {len(self.again)} more trainings: {symptom.said}"
        return ""

    def clean(self, symptom: Symptom) -> int:
        """How many more trainings without it tell that the last good commit is good."""
        if not self.again or (symptom.facts and all(self.again)):
            return 0
        shown = (sum(self.again) - 0.5) / len(self.again)  # few trainings tell it roughly, so half a time less
        return round(math.log(self.chance) / math.log1p(-shown))

    def answer(self, symptom: Symptom, commit: Commit) -> Answer:
        """Whether a commit shows it, or seems to."""
        if commit == self.bad:
            return Answer.BAD
        if commit.sha in self.steps:
            return Answer(self.steps[commit.sha].answer)
        before = len(self.made)
        if symptom.noisy:
            answer, said = self.measured(symptom, self.good, commit, LOOSE, ROUGHLY, 0)
        else:
            answer, said = self.shows(symptom, commit, 0)
        return self.told(commit, answer, said, before)

    def told(self, commit: Commit, answer: Answer, said: str, before: int) -> Answer:
        """Keep what a commit showed after `before` trainings."""
        trainings = len(self.made) - before + (self.steps[commit.sha].trainings if commit.sha in self.steps else 0)
        self.steps[commit.sha] = Step(commit=commit, answer=answer, said=said, trainings=trainings)
        if trainings:
            self.say(f"{commit}: {answer}{f', {said}' if said and answer is not Answer.GOOD else ''}")
        return answer

    def is_sure(self, symptom: Symptom, last_good: Commit, found: Commit, attempt: int) -> bool:
        """Whether the harm begins between two neighbours, which are trained again for it. If not, another answer of
        theirs sends the search on; what nobody can tell is skipped."""
        before, tried = len(self.made), [one for one in (found, last_good) if one.sha in self.steps]
        if not symptom.noisy:
            for at in range(1, 1 + self.clean(symptom) * (last_good in tried)):
                answer, said = self.shows(symptom, last_good, at)
                if answer is not Answer.GOOD:
                    self.again += [False] * at + [True] if answer is Answer.BAD else []
                    self.told(last_good, answer, said, before)
                    return False
            return True
        if not tried:  # both ends
            return True
        seeds = MOST * attempt  # those that led here would agree with themselves
        trial = (self.chance / 2**attempt, SURELY, seeds)
        answer, said = self.measured(symptom, last_good, found, *trial)
        if answer is Answer.BAD and self.sure:
            if found in tried:
                self.told(found, answer, said, before)
            return True
        now = [self.told(one, *self.measured(symptom, self.good, one, *trial), len(self.made)) for one in tried]
        if now == [Answer.BAD if one == found else Answer.GOOD for one in tried]:
            for one in tried:
                self.told(one, Answer.UNTESTABLE, f"cannot be told in {MOST} trainings: {said}", len(self.made))
        return False

    def shows(self, symptom: Symptom, commit: Commit, at: int) -> Told:
        """One training of a commit; `at`: how many were before it."""
        if over := self.over():
            return Answer.UNTESTABLE, over
        found = self.train(commit, *turn_of(symptom, at))
        if found.ended:
            same = symptom.crash and found.kind == symptom.key
            return (Answer.BAD if same else Answer.UNTESTABLE), found.ended
        if symptom.crash:
            return Answer.GOOD, ""
        twice = range(1 + (commit != self.good))  # what two trainings of GOOD do not share tells nothing
        good = [run for each in twice for run in self.train(self.good, *turn_of(symptom, each)).runs]
        return hard_answer(symptom, good, found.runs)

    def measured(self, symptom: Symptom, good: Commit, commit: Commit, level: float, looks: Looks, first: int) -> Told:
        """A noisy metric of a commit, in turns with a good one, until it can be told (`sure`), or what is likelier
        at the last of the `looks`. `first`: the first seed."""
        theirs, mine, self.sure = list[Run](), list[Run](), False
        turns = {good: commit.sha, commit: "" if good == self.good else good.sha} if symptom.timed else {}
        for (before, _), (trainings, share) in pairwise(((0, 0.0), *looks)):
            for seed in range(first + before, first + trainings):
                if over := self.over():
                    return Answer.UNTESTABLE, over
                for each in in_turn(seed, good, commit):
                    found = self.train(each, seed, turns.get(each, ""))
                    if found.ended:
                        return Answer.UNTESTABLE, found.ended
                    (theirs if each == good else mine).extend(found.runs)
            answer, self.sure, said = metric_answer(symptom, theirs, mine, level * share)
            if self.sure or answer is Answer.UNTESTABLE:
                break
        return answer or Answer.UNTESTABLE, said

    def train(self, commit: Commit, seed: int, turn: str = "") -> Probe:
        """One training, counted once. A failure of GOOD is not kept: somebody mends what was amiss."""
        found = self.trainer.train(commit, seed, turn)
        if found.ended and commit == self.good:
            (self.trainer.place(commit, seed, turn) / RESULT).unlink(missing_ok=True)
        self.made[found.folder] = found.seconds
        return found

    def over(self) -> str:
        """Why no training may begin any more; '' if one may."""
        spent, one = (time.monotonic() - self.began) / 60, fmean(self.made.values()) / 60
        if self.minutes is not None and spent + one > self.minutes:
            self.halted = f"the budget of {self.minutes:g} minutes is spent; the same command goes on"
        return self.halted

    def ended(self, outcome: str, why: str, **found: Any) -> Bisection:
        """The result with what it took."""
        return Bisection(
            outcome=str(outcome), why=why, commits=len(self.commits),
            steps=tuple(self.steps.values()), trainings=len(self.made),
            minutes=round(sum(self.made.values()) / 60, 1), **found,
        )  # fmt: skip


def turn_of(symptom: Symptom, at: int) -> tuple[int, str]:
    """The seed and turn of a repeat: another seed, but for facts, which follow from the seed."""
    return (symptom.seed, f"{AGAIN} {at}" if at else "") if symptom.facts else (symptom.seed + at, "")


def in_turn(seed: int, good: Commit, other: Commit) -> Iterator[Commit]:
    """Both, so that neither always comes first: good other, other good."""
    yield from (good, other) if seed % 2 == 0 else (other, good)
