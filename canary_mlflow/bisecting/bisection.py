"""The search for the first commit that shows what the bad end shows: both ends, then ever fewer commits between."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
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

PLAN = ((1, 0.0), (2, 0.2), (4, 0.3), (8, 0.5))
"""Trainings of a commit after which a noisy step is judged, and the share of its chance of error that each look has.
One tells only that nothing changed."""
MOST = PLAN[-1][0]
AGAIN = "again"
REPEATS = 4  # trainings of the bad end that tell how often it shows what does not come each time
NOISY = 2
"""Commits that may stay open for noise: with more the search ends, as it would train them all."""
ENDS = 4  # trainings of both ends, of which the last two confirm what blocks
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
    after which no training begins; None for no limit. `clean`: trainings without what is looked for after which a
    commit counts as good. `halted`: why nothing more is tried."""

    trainer: Trainer
    good: Commit
    commits: Sequence[Commit]
    policy: Policy
    chance: float
    say: Callable[[str], None]
    minutes: float | None = None
    clean: int = 1
    halted: str = ""
    steps: dict[str, Step] = field(default_factory=dict)
    made: dict[str, float] = field(default_factory=dict)  # the folders of trainings, and their seconds
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.bad, self.many = self.commits[-1], math.ceil(math.log2(len(self.commits)))
        self.level = self.chance / max(1, self.many)  # that one step may take

    def planned(self) -> dict[str, Any]:
        """The fewest and the most trainings where no commit is skipped: for what repeats exactly, and for what is noisy
        and close. `minutes`: of one; None if none was made."""
        known = (known_at(self.trainer.place(end, 0)) for end in (self.good, self.bad))
        most = 2 * self.policy.looks.runs[-1] + 2 * MOST * self.many
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
        found, skipped = first_bad(self.commits, lambda one: self.answer(symptom, one))
        order = [self.good, *self.commits]
        why = self.halted or "the commits between could not be told"
        return self.ended(
            Outcome.INCONCLUSIVE if skipped else Outcome.BLOCK, why if skipped else "", commit=found,
            last_good=order[order.index(found) - len(skipped) - 1], skipped=tuple(skipped),
            evidence=self.steps[found.sha].said if found.sha in self.steps else symptom.said,
            chance=self.chance if symptom.noisy or self.clean > 1 else 0.0,
        )  # fmt: skip

    def ends(self) -> Symptom | Bisection:
        """What the bad end shows."""
        good, bad = list[Run](), list[Run]()
        for look, (before, runs) in enumerate(pairwise((0, *self.policy.looks.runs)), 1):
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
            verdict = verdict_on(self.policy, good, bad, look)
            if (symptom := symptom_of(self.policy, good, bad, verdict)) is not None:
                return symptom
            if verdict.outcome is Outcome.PASS:
                break
        return self.ended(verdict.outcome, f"BAD is not shown to be worse than GOOD: {verdict.reason}")

    def confirmed(self, symptom: Symptom) -> str:
        """Find out how often it shows at the bad end, and so how many trainings tell that a commit does not show it.
        Returns why nothing can be told, or ''."""
        if self.shows(symptom, self.good, AGAIN)[0] is not Answer.GOOD:
            return f"GOOD does not train twice without it: {symptom.said}"
        shown = [True, self.shows(symptom, self.bad, AGAIN)[0] is Answer.BAD]
        while not all(shown) and len(shown) < REPEATS:
            shown.append(self.shows(symptom, self.bad, f"{AGAIN} {len(shown)}")[0] is Answer.BAD)
        if not all(shown):
            self.clean = math.ceil(math.log(self.level) / math.log1p(-sum(shown) / len(shown)))
            self.say(f"it shows in {sum(shown)} of {len(shown)}: a commit is good after {self.clean} without it")
        return ""

    def answer(self, symptom: Symptom, commit: Commit) -> Answer:
        """Whether a commit shows it."""
        if commit == self.bad:
            return Answer.BAD
        before, why = len(self.made), self.halted or self.over()
        answer, said = (Answer.UNTESTABLE, why) if why else self.told(symptom, commit)
        self.steps[commit.sha] = Step(commit=commit, answer=answer, said=said, trainings=len(self.made) - before)
        if len(self.made) > before:
            self.say(f"{commit}: {answer}{f', {said}' if said and answer is not Answer.GOOD else ''}")
        return answer

    def told(self, symptom: Symptom, commit: Commit) -> Told:
        """The same, with what it said."""
        if symptom.noisy:
            return self.measured(symptom, commit)
        for at in range(self.clean):
            answer, said = self.shows(symptom, commit, f"{AGAIN} {at}" if at else "")
            if answer is not Answer.GOOD:
                break
        return answer, said

    def shows(self, symptom: Symptom, commit: Commit, turn: str) -> Told:
        """One training of a commit."""
        found = self.train(commit, symptom.seed, turn)
        if found.ended:
            same = symptom.crash and found.kind == symptom.key
            return (Answer.BAD if same else Answer.UNTESTABLE), found.ended
        if symptom.crash:
            return Answer.GOOD, ""
        turns = ("",) if commit is self.good else ("", AGAIN)  # what two trainings of GOOD do not share tells nothing
        good = [run for each in turns for run in self.train(self.good, symptom.seed, each).runs]
        return hard_answer(symptom, good, found.runs)

    def measured(self, symptom: Symptom, commit: Commit) -> Told:
        """A noisy metric of a commit, in turns with GOOD, until it can be told."""
        good, other = list[Run](), list[Run]()
        for (before, _), (trainings, share) in pairwise(((0, 0.0), *PLAN)):
            if over := self.over():
                return Answer.UNTESTABLE, over
            for seed in range(before, trainings):
                for each in in_turn(seed, self.good, commit):
                    found = self.train(each, seed, commit.sha if symptom.timed and each is self.good else "")
                    if found.ended:
                        return Answer.UNTESTABLE, found.ended
                    (good if each is self.good else other).extend(found.runs)
            answer, said = metric_answer(symptom, good, other, self.level * share)
            if answer is not None:
                return answer, said
        if sum(step.trainings > 0 and step.answer == Answer.UNTESTABLE for step in self.steps.values()) + 1 >= NOISY:
            self.halted = f"too noisy: {MOST} trainings of a commit do not tell"
        return Answer.UNTESTABLE, f"cannot be told in {MOST} trainings: {said}"

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


def in_turn(seed: int, good: Commit, other: Commit) -> Iterator[Commit]:
    """Both, so that neither always comes first: good other, other good."""
    yield from (good, other) if seed % 2 == 0 else (other, good)
