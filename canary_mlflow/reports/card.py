"""The verdict card: what every report says first, from one source. Terminal, pages, HTML and Markdown only lay it out.

It holds finished text, so that the numbers in two formats cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from canary_mlflow.reports import advice, changes, facts, root_causes, wording
from canary_mlflow.reports.decision import Decision
from canary_mlflow.reports.forest import in_letters
from gates.model.rules import Role
from gates.model.verdict import CheckOutcome, RootCause

SHOWN = 6  # rows on the card of a format that has all of them below it


@dataclass(frozen=True, kw_only=True)
class Link:
    """Where to look. `command`: what serves that address, '' if a server does. `needs`: what that server must be."""

    name: str
    address: str
    command: str = ""
    needs: str = ""


@dataclass(frozen=True, kw_only=True)
class Card:
    """The verdict and its sentence; what differs exactly, what changed and the measured cause, each a sentence or '';
    the rows that decide; the next step in pieces, (text, whether it is a command); and where to look.

    `word`: PASS, BLOCK, INCONCLUSIVE or bootstrap, for colours. `then`: the steps tell what has already happened.
    """

    word: str
    heading: str
    title: str
    reason: str
    exact: str
    changed: str
    because: str
    causes: tuple[RootCause, ...]
    rows: tuple[wording.Row, ...]
    steps: tuple[tuple[str, bool], ...]
    links: tuple[Link, ...]
    then: bool = False

    @property
    def paragraphs(self) -> tuple[str, ...]:
        """The paragraphs under the verdict that are not empty, in reading order."""
        return tuple(filter(None, (self.reason, self.exact, self.changed, self.because)))

    @property
    def next(self) -> str:
        """The next step as one sentence."""
        return "".join(piece for piece, _ in self.steps)

    @property
    def label(self) -> str:
        """The label before the next step."""
        return "Then" if self.then else "Next"


def card_of(decision: Decision, *, then: bool = False) -> Card:
    """The card of a decision. `then`: it was made earlier, so its next step is what happened then."""
    return Card(
        word=decision.word,
        heading=wording.heading(decision),
        title=wording.title(decision),
        reason=wording.reason(decision),
        exact=facts.exact(decision),
        changed=changes.changed(decision),
        because=root_causes.because(decision),
        causes=decision.verdict.causes,
        rows=tuple(deciding(decision)),
        steps=advice.in_steps(decision),
        links=links(decision),
        then=then,
    )


def deciding(decision: Decision) -> list[wording.Row]:
    """The rows that the verdict rests on: those that block, else those that leave it open, else all that passed. Empty
    if a hard gate or an obstacle decided without them."""
    rows = [row for row in wording.judged(decision) if not row.advisory]
    for outcome in (CheckOutcome.BLOCK, CheckOutcome.INCONCLUSIVE):
        if found := [row for row in rows if row.outcome is outcome]:
            return found
    hard = any(
        check.role is Role.HARD and check.outcome in (CheckOutcome.BLOCK, CheckOutcome.INCONCLUSIVE)
        for check in decision.verdict.checks
    )
    return [] if hard else rows


def links(decision: Decision) -> tuple[Link, ...]:
    """Our own page, and MLflow's if the store is on a server, which may not have our pages."""
    if not decision.store:
        return ()
    served = decision.store.startswith(("http://", "https://"))
    own, found = advice.page_of(decision), []
    if served and decision.page:
        found.append(Link(name="in MLflow", address=advice.open_ui(decision.store, decision.page)[1]))
    if own or (decision.page and not served):
        command, address = advice.open_ui(decision.store, own or decision.page)
        name, needs = ("page", "a server with --app-name canary" if served else "") if own else ("in MLflow", "")
        found.append(Link(name=name, address=address, command=command, needs=needs))
    return tuple(found)


def card_to_dict(card: Card) -> dict[str, Any]:
    """The card as plain JSON values: the texts that every format shows."""
    return {
        "word": card.word,
        "heading": card.heading,
        "title": card.title,
        "reason": card.reason,
        "exact": card.exact,
        "changed": card.changed,
        "because": card.because,
        "causes": [{"rule": one.rule, "said": one.said, "share": one.share} for one in card.causes],
        "rows": [row_to_dict(row) for row in card.rows],
        "next": card.next,
        "commands": [piece for piece, command in card.steps if command],
        "links": [
            {"name": one.name, "address": one.address, "command": one.command, "needs": one.needs} for one in card.links
        ],
    }


def row_to_dict(row: wording.Row) -> dict[str, str]:
    """A row's cells as plain JSON values."""
    names = ("word", "metric", "baseline", "candidate", "change", "range", "limit", "meaning")
    return {**{name: getattr(row, name) for name in names}, "outcome": str(row.outcome), "plot": in_letters(row.forest)}


def others(decision: Decision, shown: Sequence[wording.Row]) -> list[wording.Row]:
    """The judged rows that are not among `shown`."""
    return [row for row in wording.judged(decision) if row not in shown]
