"""A verdict as every report says it: finished text, made once, so that two formats cannot differ. Terminal, Markdown,
HTML, pages, JSON and JUnit only lay it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from canary_mlflow.gates.model.items import Flip
from canary_mlflow.gates.model.rules import Role
from canary_mlflow.gates.model.verdict import Check, CheckOutcome, Difference, RootCause
from canary_mlflow.reports import differences, instabilities
from canary_mlflow.reports.decision import Decision, Question
from canary_mlflow.reports.differences import SHOWN
from canary_mlflow.reports.formatting import counted, sentence
from canary_mlflow.reports.links import Link, links_of
from canary_mlflow.reports.next_step import next_step
from canary_mlflow.reports.rows import ORDER, Row, better, how_to_read, is_judged, rows_of
from canary_mlflow.shown import visible

WIDEST = 200  # characters of a question or an answer


@dataclass(frozen=True, kw_only=True)
class View:
    """What is said of a decision.

    The card: `word` (PASS, BLOCK, INCONCLUSIVE or bootstrap, for colours), the verdict and its reason; what differs
    exactly, what changed and the measured cause, each a sentence or ''; the rows that decide; the `steps` to take in
    pieces, (text, whether it is a command); and where to look. `then`: the steps tell what has already happened.

    Behind it: all rows; the hard gates, those that failed first; what else makes a comparison impossible; the metrics
    that the policy names but these runs lack; `broken`, the worst items by benchmark; `runs`, how much was compared by
    which policy; `note`, how to read it.
    """

    word: str
    heading: str
    title: str
    reason: str
    exact: str
    changed: str
    because: str
    causes: tuple[RootCause, ...]
    deciding: tuple[Row, ...]
    steps: tuple[tuple[str, bool], ...]
    then: bool
    links: tuple[Link, ...]
    rows: tuple[Row, ...]
    hard_gates: tuple[Check, ...]
    obstacles: tuple[str, ...]
    not_judged: tuple[Check, ...]
    warnings: tuple[instabilities.Group, ...]
    notes: tuple[str, ...]
    differences: tuple[Difference, ...]
    broken: Mapping[str, tuple[Flip, ...]]
    runs: str
    note: str

    @property
    def paragraphs(self) -> tuple[str, ...]:
        """The paragraphs under the verdict that are not empty, in reading order."""
        return tuple(filter(None, (self.reason, self.exact, self.changed, self.because)))

    @property
    def shown(self) -> tuple[Row, ...]:
        """The rows of the card."""
        return self.deciding[:SHOWN]

    @property
    def others(self) -> list[Row]:
        """The rows that are not on the card."""
        return [row for row in self.rows if row not in self.shown]

    @property
    def next(self) -> str:
        """The next step as one sentence."""
        return "".join(piece for piece, _ in self.steps)

    @property
    def label(self) -> str:
        """The label before the next step."""
        return "Then" if self.then else "Next"

    @property
    def not_judged_by_reason(self) -> list[tuple[str, str]]:
        """(metrics, the reason that they share as a sentence): one line for each cause."""
        found: dict[str, list[str]] = {}
        for check in self.not_judged:
            found.setdefault(check.reason, []).append(check.metric)
        return [(", ".join(names), sentence(why)) for why, names in found.items()]

    def hard_with(self, outcome: str) -> list[Check]:
        """The hard gates with this outcome."""
        return [check for check in self.hard_gates if check.outcome == outcome]

    def card_to_dict(self) -> dict[str, Any]:
        """The card as plain JSON values: the texts that every format shows."""
        said = {name: getattr(self, name) for name in ("word", "heading", "title", "reason", "exact", "changed")}
        return {
            **said,
            "because": self.because,
            "causes": [{"rule": one.rule, "said": one.said, "share": one.share} for one in self.causes],
            "rows": [row.to_dict() for row in self.deciding],
            "next": self.next,
            "commands": [piece for piece, command in self.steps if command],
            "links": [asdict(one) for one in self.links],
        }


def view_of(decision: Decision, *, then: bool = False) -> View:
    """What is said of a decision. `then`: it was made earlier, so its next step is what happened then."""
    verdict, rows = decision.verdict, tuple(rows_of(decision))
    hard = sorted((one for one in verdict.checks if one.role is Role.HARD), key=lambda one: ORDER.index(one.outcome))
    in_the_way = [check for check in hard if check.outcome is CheckOutcome.INCONCLUSIVE]  # of the comparison itself
    runs = runs_note(decision)
    session = f", session {decision.session_id}" if decision.session_id else ""
    return View(
        word=decision.word,
        heading=heading(decision),
        title=title(decision),
        reason=reason(decision),
        exact=differences.exact(decision),
        changed=differences.changed(verdict),
        because=differences.because(verdict),
        causes=verdict.causes,
        deciding=tuple(deciding(decision, rows)),
        steps=next_step(decision),
        then=then,
        links=links_of(decision),
        rows=rows,
        hard_gates=tuple(one for one in hard if one.outcome is not CheckOutcome.INCONCLUSIVE),
        obstacles=tuple(sentence(check.reason) for check in in_the_way[1:]),  # the verdict's reason names the first
        not_judged=tuple(one for one in verdict.checks if one.role is not Role.HARD and not is_judged(one)),
        warnings=tuple(instabilities.of_warnings(decision.warnings)),
        notes=verdict.notes,
        differences=verdict.differences,
        broken={name: tuple(map(shortened, some)) for name, some in decision.broken.items()},
        runs=runs,
        note=f"{runs}{session}.{how_to_read(decision)}",
    )


def shortened(one: Flip) -> Flip:
    """A broken item with its texts as they are shown."""
    texts: Any = {name: visible(getattr(one, name), most=WIDEST) for name in ("item", "asked", "before", "after")}
    return replace(one, **texts)


def title(decision: Decision) -> str:
    """The verdict and what it is about, in one line."""
    model, version = decision.model, decision.version
    if decision.question is Question.COMPARISON:
        return f"{decision.candidate_label} (candidate) against {decision.baseline_label} (baseline)"
    if decision.question is Question.SESSION:
        return f"{model}, session {decision.session_id}"
    if decision.question is Question.CHANGE:
        against = f"champion version {decision.champion_before}" if decision.champion_before else "no champion"
        return f"{model}, session {decision.session_id} against {against}"
    if decision.question in (Question.FILES, Question.REVISIONS):
        return f"{decision.candidate_label} against {decision.baseline_label}"
    if decision.champion_before is None:
        return f"{model} version {version}, no champion to compare with"
    return f"{model} version {version} against champion version {decision.champion_before}"


def heading(decision: Decision) -> str:
    """The first word of the report; for a comparison, a phrase."""
    if decision.question is Question.COMPARISON:
        return f"COMPARISON, a gate would say {decision.verdict.outcome}"
    return decision.word.upper()


def reason(decision: Decision) -> str:
    """The verdict's reason as a sentence; a bootstrap is explained, because nothing was compared."""
    if decision.bootstrapped:
        return (
            "The hard gates found nothing wrong, and there is no champion yet. Nothing was compared, so this is no "
            "PASS: the version becomes the baseline for later ones."
        )
    return sentence(decision.verdict.reason) + better(decision)


def deciding(decision: Decision, rows: tuple[Row, ...]) -> list[Row]:
    """The rows that the verdict rests on: those that block, else those that leave it open, else all that passed. Empty
    if a hard gate or an obstacle decided without them."""
    gates = [row for row in rows if not row.advisory]
    for outcome in (CheckOutcome.BLOCK, CheckOutcome.INCONCLUSIVE):
        if found := [row for row in gates if row.outcome is outcome]:
            return found
    asking = [*decision.having(CheckOutcome.BLOCK), *decision.having(CheckOutcome.INCONCLUSIVE)]
    return [] if any(check.role is Role.HARD for check in asking) else gates


def runs_note(decision: Decision) -> str:
    """`3 candidate runs against 3 baseline runs, policy smoke`."""
    verdict = decision.verdict
    policy = f"policy {verdict.policy.get('name', '?')}"
    if not verdict.candidate_runs and decision.question is Question.FILES:
        return policy  # of benchmarks alone
    runs = counted(len(verdict.candidate_runs), "candidate run")
    against = f" against {counted(len(verdict.baseline_runs), 'baseline run')}" if verdict.baseline_runs else ""
    return f"{runs}{against}, {policy}"
