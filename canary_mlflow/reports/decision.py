"""What was decided about a candidate: everything that a report shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from canary_mlflow.gates.model.items import Flip
from canary_mlflow.gates.model.verdict import Check, CheckOutcome, Outcome, Verdict, verdict_from_dict, verdict_to_dict
from canary_mlflow.gates.watch import WatchWarning
from canary_mlflow.shown import as_html

EXIT_CODES = {Outcome.PASS: 0, Outcome.BLOCK: 1, Outcome.INCONCLUSIVE: 3}


class Question(StrEnum):
    """What was asked."""

    GATE = "gate"  # may this version become champion?
    SESSION = "session"  # what went wrong in a session that left no version?
    CHANGE = "change"  # is what a session was made with safe? Judged against the champion, but nothing is registered.
    COMPARISON = "comparison"  # how do these two differ? Read-only.
    REVISIONS = "revisions"  # how do runs of two revisions of the code differ?
    FILES = "files"  # what would the gate say about these files? Nothing is written.


LABELLED = (Question.COMPARISON, Question.REVISIONS, Question.FILES)  # their sides are not versions


class HeldBy(StrEnum):
    """What keeps a version from being promoted, whatever its verdict."""

    LOAD = "not-promotable"  # a deliberate fault, a profiler: never promoted, and never a baseline
    OLDER = "older"  # older than the champion, and nobody asked to promote it
    ASKED = "asked"  # only a verdict was asked for
    RUNS = "too-few-runs"  # fewer than a champion must have
    CODE = "code-in-files"  # what loading it can run, where the policy refuses that
    UNCHECKED = "unchecked"  # nobody knows that its weights are what its session trained
    SHORT = "too-short"  # a first one whose runs no later ones could be judged against


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Something that keeps a version from being promoted, and why.

    `runs`: how many a champion must have, if it has too few.
    """

    by: HeldBy
    reason: str
    runs: int | None = None


SLOW_DRIFT = "Slow drift, against the anchor"
"""How the reason begins of a version that the anchor blocks."""


@dataclass(frozen=True, kw_only=True)
class RunWarning:
    """A warning of the watch during one of the candidate's runs. `run`: that run's display name."""

    run: str
    warning: WatchWarning


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A verdict and what followed from it.

    `champion_before` and `champion_after` are version numbers, or None while there is no champion. `bootstrapped`
    says that the policy lets a version without a baseline become the first champion; that is never a PASS. `holds`:
    what keeps the version from being promoted. After a dry run nothing has been written, `promoted` is False and
    `champion_after` equals `champion_before`.
    """

    verdict: Verdict
    model: str
    version: str | None = None
    question: Question = Question.GATE
    promoted: bool = False
    bootstrapped: bool = False
    dry_run: bool = False
    evidence_only: bool = False  # the version has no weights to load, and says so
    own_script: bool = False  # the version's runs are those of a user's own script, which nobody else can make
    champion_before: str | None = None
    champion_after: str | None = None
    session_id: str | None = None
    store: str = ""  # the tracking URI, for the way into the UI
    page: str = ""  # the path in the UI
    baseline_label: str = ""
    candidate_label: str = ""
    warnings: tuple[RunWarning, ...] = ()
    run_minutes: float | None = None  # what one more run of the candidate takes
    holds: tuple[Hold, ...] = ()
    broken: Mapping[str, tuple[Flip, ...]] = field(default_factory=dict)  # benchmark → its worst items

    def hold(self, by: HeldBy) -> Hold | None:
        """The hold of this kind; None if there is none."""
        return next((hold for hold in self.holds if hold.by is by), None)

    def having(self, outcome: CheckOutcome) -> list[Check]:
        """The checks with this outcome."""
        return [check for check in self.verdict.checks if check.outcome is outcome]

    @property
    def good(self) -> bool:
        """Whether its verdict lets it be champion: a PASS, or a bootstrap by the policy."""
        return self.bootstrapped or self.verdict.outcome is Outcome.PASS

    @property
    def grants(self) -> bool:
        """Whether it may be champion now or later, without another verdict."""
        return self.good and not barred(self.holds)

    @property
    def moves(self) -> bool:
        """Whether it becomes champion."""
        return self.good and not self.holds

    @property
    def word(self) -> str:
        """PASS, BLOCK, INCONCLUSIVE or bootstrap: the value of the tag `canary.verdict`."""
        return "bootstrap" if self.bootstrapped else str(self.verdict.outcome)

    @property
    def exit_code(self) -> int:
        """0 PASS or bootstrap, 1 BLOCK, 3 INCONCLUSIVE."""
        return 0 if self.bootstrapped else EXIT_CODES[self.verdict.outcome]

    def frame(self) -> Any:
        """The checks as a pandas frame, one row each, with the numbers behind it: `baseline` and `candidate` in `unit`,
        `change` and its interval as fractions if `relative`, NaN where nothing was compared."""
        import pandas

        numbers = ("baseline", "candidate", "unit", "change", "change_low", "change_high", "margin", "relative")
        rows = [
            {"metric": one.metric, "role": str(one.role), "outcome": str(one.outcome),
             **{name: getattr(one.evidence, name, None) for name in numbers}, "reason": one.reason}
            for one in self.verdict.checks
        ]  # fmt: skip
        return pandas.DataFrame(rows)

    def _repr_html_(self) -> str:
        """In a notebook: the verdict, and every check with its reason; what decides comes first."""
        order = (CheckOutcome.BLOCK, CheckOutcome.INCONCLUSIVE, CheckOutcome.WARN)
        checks = [one for outcome in order for one in self.having(outcome)]
        checks += [one for one in self.verdict.checks if one.outcome not in order]
        what = self.candidate_label or (f"{self.model} version {self.version}" if self.version else self.model)
        rows = [(one.outcome, one.named, one.reason) for one in checks]
        return as_html(f"{self.word}  {what}", ("", "check", "why"), rows, self.verdict.reason)


BARRING = (HeldBy.LOAD, HeldBy.RUNS, HeldBy.SHORT, HeldBy.CODE, HeldBy.UNCHECKED)


def barred(holds: tuple[Hold, ...]) -> bool:
    """Whether these holds bar promotion until there is another verdict."""
    return any(hold.by in BARRING for hold in holds)


def decision_to_dict(decision: Decision) -> dict[str, Any]:
    """The decision as plain JSON values; the verdict as `gates` writes it, so that it can be read back."""
    broken = {name: [asdict(one) for one in some] for name, some in decision.broken.items()}
    return {
        "question": str(decision.question),
        "decision": decision.word,
        "exit_code": decision.exit_code,
        "model": decision.model,
        "version": decision.version,
        "baseline": decision.baseline_label or decision.champion_before,
        "candidate": decision.candidate_label or decision.version,
        "session_id": decision.session_id,
        "promoted": decision.promoted,
        "bootstrapped": decision.bootstrapped,
        "dry_run": decision.dry_run,
        "held_back": holds_to_list(decision.holds),
        "evidence_only": decision.evidence_only,
        "own_script": decision.own_script,
        "champion_before": decision.champion_before,
        "champion_after": decision.champion_after,
        "run_minutes": decision.run_minutes,
        "store": decision.store,
        "warnings": [{"run": one.run, **one.warning.to_dict()} for one in decision.warnings],
        "verdict": verdict_to_dict(decision.verdict),
        **({"broken": broken} if broken else {}),
    }


def holds_to_list(holds: tuple[Hold, ...]) -> list[dict[str, Any]]:
    """The holds as plain JSON values."""
    return [{"by": str(hold.by), "reason": hold.reason, "runs": hold.runs} for hold in holds]


def holds_from_list(found: Any) -> tuple[Hold, ...]:
    """The inverse of `holds_to_list`."""
    return tuple(Hold(by=HeldBy(one["by"]), reason=str(one["reason"]), runs=one["runs"]) for one in found or ())


def decision_from_dict(found: Mapping[str, Any]) -> Decision:
    """The inverse of `decision_to_dict`, without warnings, which are read from the runs."""
    return Decision(
        verdict=verdict_from_dict(found["verdict"]),
        model=str(found["model"]),
        version=found["version"],
        question=Question(found["question"]),
        promoted=bool(found["promoted"]),
        bootstrapped=bool(found["bootstrapped"]),
        dry_run=bool(found.get("dry_run")),
        evidence_only=bool(found.get("evidence_only")),
        own_script=bool(found.get("own_script")),
        holds=holds_from_list(found.get("held_back")),
        broken={name: tuple(Flip(**one) for one in some) for name, some in found.get("broken", {}).items()},
        champion_before=found["champion_before"],
        champion_after=found["champion_after"],
        session_id=found["session_id"],
        baseline_label=str(found["baseline"] or "") if found["question"] in LABELLED else "",
        candidate_label=str(found["candidate"] or "") if found["question"] in LABELLED else "",
        run_minutes=found.get("run_minutes"),
    )
