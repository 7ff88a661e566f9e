"""An upgrade tried before it is made: facts of both sets of packages, and where they block, which package it is, since
which release, and which default to set back."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.version import Version

from canary_mlflow.bisecting.search import Answer, first_bad, smallest
from canary_mlflow.errors import UsageError
from canary_mlflow.gates.facts.exact import bare
from canary_mlflow.gates.model.sides import ABSENT
from canary_mlflow.gates.model.wording import listed
from canary_mlflow.tracking.signals import waiting
from canary_mlflow.upgrading import environments, subprocess_guard
from canary_mlflow.upgrading.inside import OLD_DEFAULTS
from canary_mlflow.upgrading.judging import CRASH, Diagnosis, compare, json_or_text
from canary_mlflow.upgrading.outcome import Culprit, Default, Environments, PackageSets, Upgrade
from canary_mlflow.upgrading.pins import Change, Pins, Unresolvable, lock, moved
from canary_mlflow.upgrading.probing import MISUSED, Probe, Prober
from canary_mlflow.upgrading.run_comparison import COSTS, REPEATS
from canary_mlflow.upgrading.uv import SECONDS, Unbuildable, pip_environment

LIKELY = ("trl", "transformers", "peft", "accelerate", "torch", "datasets", "tokenizers", "bitsandbytes", "numpy")
"""Where regressions of trainings came from, the commonest first (docs/why.md)."""
BY_FACT = (
    (("parameters.", "adapter.", "outcome.trainable"), ("peft", "trl", "transformers")),
    (("first.tokens", "first.labels", "data."), ("trl", "tokenizers", "transformers", "datasets")),
    (("first.loss", "first.grad_norm", "logged.", "training."), ("transformers", "trl", "accelerate", "peft")),
    (("saved.text", "saved.keys", "saved.emptied"), ("transformers", "tokenizers", "peft")),
    (("saved.",), ("peft", "transformers", "safetensors", "torch")),
    (("cost.outside",), ("transformers", "datasets", "tokenizers")),
    (("cost.step", "cost.memory"), ("trl", "transformers", "accelerate", "datasets")),
)
CHAINED = re.compile(r"\bat (trl|transformers|peft|accelerate|torch|datasets|tokenizers)/")
Say = Callable[[str], None]


def plan(at_hand: Pins, asked: Pins, *, whole: bool) -> PackageSets:
    """Both sets, locked. `whole`: `asked` is a whole set (a lock file), of which only what is at hand counts: the rest
    follows. Raises UsageError, Unresolvable, CanaryError."""
    before = dict(at_hand)
    exact = {name: version for name, version in asked.items() if name in before or not whole}
    if not exact:
        raise Unresolvable("none of the packages asked for is installed here")
    if not moved({name: before.get(name, "") for name in exact}, exact):
        return PackageSets(before=before, now=before)
    return PackageSets(before=before, now=lock(exact, before, before))


@dataclass
class Trial:
    """The probes of one upgrade."""

    plan: PackageSets
    prober: Prober
    say: Say
    tried: list[dict[str, Any]] = field(default_factory=list)
    baseline: tuple[Probe, ...] = ()  # and once more where something blocks, twice where something costs more
    order: list[str] = field(default_factory=list)  # the packages that move, the likeliest culprit first
    _answers: dict[str, Diagnosis | str] = field(default_factory=dict)

    def judged(self, pins: Pins, what: str, *, costs: bool = True, prober: Prober | None = None) -> Diagnosis:
        """A set beside the baseline. What seems to cost more is tried again, in turn with the baseline, if `costs`."""
        candidate = self.probe(pins, what, prober)
        finding = compare(self.baseline, [candidate])
        if finding.blocks and not candidate.ended:
            finding = compare(self.repeated(2), [candidate])
        if finding.blocks or not finding.suspects or not costs:
            return finding
        more = [candidate]
        for at in range(1, REPEATS):
            self.repeated(at + 1)
            more.append(self.probe(pins, f"{what}, for its costs ({at} of {REPEATS - 1})", prober, repeat=at))
        return compare(self.baseline, more)

    def confirmed(self, finding: Diagnosis) -> Diagnosis:
        """What blocks and does so a second time: what a training shows now and then would be laid on a package. Costs
        were repeated already."""
        if not finding.blocks or dear(finding):
            return finding
        again = compare(self.baseline, [self.probe(self.plan.now, "the packages asked for once more", repeat=1)])
        found = {one.key for one in again.symptoms}
        kept = tuple(one for one in finding.symptoms if one.key in found)
        once = f"what blocks came once in two trainings with the same packages ({finding.symptoms[0].said})"
        return replace(finding, symptoms=kept, open=finding.open if kept else once)

    def repeated(self, times: int) -> tuple[Probe, ...]:
        """The baseline, tried at least so many times."""
        for at in range(len(self.baseline), times):
            again = self.probe(self.plan.before, "the packages at hand once more", repeat=at)
            self.baseline = (*self.baseline, again)
        return self.baseline

    def probe(self, pins: Pins, what: str, prober: Prober | None = None, repeat: int = 0) -> Probe:
        """One set, tried; said and kept."""
        prober = prober or self.prober
        known = prober.known(pins, repeat) is not None
        builds = not known and not environments.is_there(pins)
        self.say(f"{what}: {'known' if known else 'building an environment' if builds else 'trying'}")
        began = time.monotonic()
        if builds:
            environments.build(pins)
        building = round(time.monotonic() - began, 1)
        found = prober.try_(pins, repeat)
        self.tried.append({"what": what, "key": found.key, "seconds": found.seconds, "ended": found.ended,
                           "known": known, "built": builds, "building": building})  # fmt: skip
        return found

    def used(self) -> Environments:
        """The environments of the sets that were tried now."""
        built = {one["key"] for one in self.tried if one["built"]}
        return Environments(
            built=len(built),
            reused=len({one["key"] for one in self.tried if not one["known"]} - built),
            seconds=round(sum(float(one["building"]) for one in self.tried), 1),
        )

    def finding(self, moves: Sequence[Change], what: str, wanted: Diagnosis) -> Diagnosis | str:
        """What moving these packages alone does; why that cannot be tried, as text. Costs count where they are what is
        looked for."""
        try:
            pins = self.set_of(moves)
            if not moved(self.plan.before, pins):  # the newest release, tried for one that goes back, may be at hand
                return Diagnosis(symptoms=(), differences=())
            key = environments.key_of(pins)
            if key not in self._answers:
                self._answers[key] = self.judged(pins, what, costs=dear(wanted))
            return self._answers[key]
        except (Unresolvable, Unbuildable) as error:
            self.say(f"{what}: skipped, {error}")
            return str(error)

    def set_of(self, moves: Sequence[Change]) -> dict[str, str]:
        """The packages at hand with these moved, and what has to move with them. Raises Unresolvable."""
        wanted = {one.name: one.now for one in moves if one.now}
        moving = {one.name for one in moves}
        kept = {one.name: one.before for one in self.plan.changes if one.name not in moving and one.before}
        try:
            found = lock({**wanted, **kept}, self.plan.before, self.plan.before)
        except Unresolvable:
            found = lock(wanted, self.plan.before, self.plan.before)
            if self.likelier(moving, found):
                raise
        lost = {one.name for one in moves if not one.now}
        return {name: version for name, version in found.items() if name not in lost}

    def needed(self, moving: Collection[str], pins: Pins) -> list[Change]:
        """What moves in a set besides what was to be moved: a new release may not work with its old companions."""
        return [one for one in moved(self.plan.before, pins) if one.name not in moving and one.before]

    def likelier(self, moving: Collection[str], pins: Pins) -> bool:
        """Whether a likelier culprit had to move too: then the set tells nothing about those that were to be moved."""
        first = min((at for at, name in enumerate(self.order) if name in moving), default=0)
        return any(one.name in self.order[:first] for one in self.needed(moving, pins))

    def carry_out(self, *, bisect: bool = True, releases: bool = True) -> Upgrade:
        """Both ends; then, where the candidate blocks, which package it is, and since which of its `releases`."""
        if not self.plan.changes:
            return Upgrade(outcome="PASS", changes=(), finding=Diagnosis(symptoms=(), differences=()))
        self.baseline = (self.probe(self.plan.before, "the packages at hand"),)
        finding = compare(self.baseline, self.baseline)  # a command that fails or records nothing need not go on
        if finding.open:  # tried again the next time: whoever reads this mends something
            self.prober.forget(self.plan.before)
            if (said := self.baseline[0].ended).startswith(MISUSED):
                raise UsageError(said.removeprefix(MISUSED))
        else:
            finding = self.confirmed(self.judged(self.plan.now, "the packages asked for"))
        result = Upgrade(outcome=outcome_of(finding), changes=tuple(self.plan.changes), finding=finding)
        if finding.blocks and bisect:
            culprit = self.culprit(finding, releases=releases)
            result = replace(result, culprit=culprit, defaults=self.defaults(finding))
        else:
            result = replace(result, defaults=tuple(map(_default, finding.flipped)))
        spent = sum(float(one["seconds"]) for one in self.tried)
        return replace(result, probes=tuple(self.tried), seconds=round(spent, 1), environments=self.used())

    def culprit(self, finding: Diagnosis, *, releases: bool) -> Culprit:
        """The smallest set of packages that shows the symptom, and the release of a single one."""
        order = likeliest(finding, self.plan.changes)
        self.order = [one.name for one in order]

        def test(moves: Sequence[Change]) -> Answer:
            if len(moves) == len(order):
                return Answer.BAD
            return self.answer(self.finding(moves, alone(moves), finding), finding)

        packages = smallest(order, test)
        names = {one.name for one in packages}
        needs = self.needed(names, self.set_of(packages)) if len(packages) < len(order) else []
        found = Culprit(packages=tuple(packages), needs=tuple(needs), unexplained=self.unexplained(packages, finding))
        single = len(packages) == 1 and packages[0].before and packages[0].now
        return self.release(found, finding) if single and releases else found

    def unexplained(self, packages: Sequence[Change], finding: Diagnosis) -> tuple[str, ...]:
        """The symptoms that these packages alone do not show; none where they are all that move."""
        if len(packages) == len(self.order):
            return ()
        found = self.finding(packages, alone(packages), finding)
        if isinstance(found, str) or any(one.key.startswith(CRASH) for one in found.symptoms):  # nothing came after it
            return ()
        shown = {one.key for one in found.symptoms}
        return tuple(one.said for one in finding.symptoms if one.key not in shown)

    def answer(self, found: Diagnosis | str, wanted: Diagnosis) -> Answer:
        """BAD where it has a symptom of the candidate's; a failure of another kind says nothing."""
        if isinstance(found, str) or found.open:
            return Answer.UNTESTABLE
        if found.shows(wanted.symptoms):
            return Answer.BAD
        return Answer.UNTESTABLE if any(one.key.startswith(CRASH) for one in found.symptoms) else Answer.GOOD

    def release(self, found: Culprit, finding: Diagnosis) -> Culprit:
        """The first bad release of the package, and whether the newest one is fine again."""
        (package,) = found.packages
        known = known_releases(package.name)
        if not known:
            self.say(f"{package.name}: pip lists no releases of it here, so those between are not tried")
        between = releases(package, known)
        others = [replace(package, now=version) for version in between]

        def test(one: Change) -> Answer:
            return Answer.BAD if one == package else self.answer(self.finding([one], str(one), finding), finding)

        first, skipped = first_bad(others, test)
        before = [package.before, *between]
        good = before[before.index(first.now) - len(skipped) - 1]
        fixed = self.newest_is_fine(package, next(iter(known), package.now), finding)
        return replace(
            found, release=first.now, good_release=good, fixed_in=fixed, skipped=tuple(one.now for one in skipped)
        )

    def newest_is_fine(self, package: Change, newest: str, finding: Diagnosis) -> str:
        """The newest release, where it is later than the one asked for and does not show it any more."""
        if Version(newest) <= Version(package.now):
            return ""
        one = replace(package, now=newest)
        return newest if self.answer(self.finding([one], str(one), finding), finding) is Answer.GOOD else ""

    def defaults(self, finding: Diagnosis) -> tuple[Default, ...]:
        """What flipped, and the fewest of it that explain what blocks when they are set back to their old values."""
        flipped = list(map(_default, finding.flipped))
        known = [one for one in flipped if bare(one.key).startswith("arguments.") and one.before != ABSENT]
        if not known:
            return tuple(flipped)
        together = self.set_back(known, finding)
        guilty = smallest(known, lambda some: self.set_back(some, finding)) if together is Answer.BAD else []
        explains = {Answer.BAD: True, Answer.GOOD: False, Answer.UNTESTABLE: None}[together]
        return tuple(replace(one, explains=explains and one in guilty) if one in known else one for one in flipped)

    def set_back(self, some: Sequence[Default], finding: Diagnosis) -> Answer:
        """BAD where these defaults are it: the candidate's packages with the old values block no more."""
        old = {one.name: json_or_text(one.before) for one in some}
        given = {OLD_DEFAULTS: json.dumps(old, sort_keys=True)}
        again = replace(self.prober, overrides={**self.prober.overrides, **given})
        other = self.judged(self.plan.now, f"{given[OLD_DEFAULTS]} set back", costs=dear(finding), prober=again)
        if other.open or any(one.key.startswith(CRASH) for one in other.symptoms):
            return Answer.UNTESTABLE
        return Answer.GOOD if other.shows(finding.symptoms) else Answer.BAD


def dear(finding: Diagnosis) -> bool:
    """Whether it blocks for what it costs."""
    return any(one.key in COSTS for one in finding.symptoms)


def outcome_of(finding: Diagnosis) -> str:
    """PASS where every fact is equal or differs by rounding alone, BLOCK where one is shown to be worse."""
    if finding.blocks:
        return "BLOCK"
    differs = finding.work or finding.besides or any(not one.rounding for one in finding.differences)
    return "INCONCLUSIVE" if finding.open or differs else "PASS"


def likeliest(finding: Diagnosis, changes: Sequence[Change]) -> list[Change]:
    """What moved, the package first that a traceback lies in, then by the kind of fact, then by experience."""
    said = " ".join(one.said for one in finding.symptoms)
    named = [found[1] for found in CHAINED.finditer(said)]
    by_fact = [name for heads, names in BY_FACT if any(bare(one.key).startswith(heads) for one in finding.symptoms)
               for name in names]  # fmt: skip
    order = list(dict.fromkeys([*named, *by_fact, *LIKELY]))
    return sorted(changes, key=lambda one: (order.index(one.name) if one.name in order else len(order), one.name))


def known_releases(package: str) -> list[str]:
    """Its final releases, the newest first, as pip tells them. Empty where it does not."""
    command = [sys.executable, "-m", "pip", "index", "versions", package, "--disable-pip-version-check"]
    with waiting():
        done = subprocess_guard.run(command, pip_environment(os.environ), SECONDS)
    line = next((line for line in done.stdout.splitlines() if line.startswith("Available versions:")), "")
    return [word.strip() for word in line.partition(":")[2].split(",") if word.strip()]


def releases(package: Change, known: Sequence[str]) -> list[str]:
    """Those after its version at hand, up to the one asked for, in order. `known`: all, the newest first."""
    low, high = Version(package.before), Version(package.now)
    found = [one for one in reversed(known) if low < Version(one) < high]
    return [*found, package.now]


def alone(moves: Sequence[Change]) -> str:
    """`trl 1.14.2 → 1.15.0 and 2 more alone`."""
    return f"{listed([*map(str, moves)], 1)} alone"


def _default(one: Any) -> Default:
    return Default(key=one.key, before=one.baseline, now=one.candidate)
