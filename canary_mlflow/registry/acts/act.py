"""A champion made by hand, or asked for, as a value: who did it, for which version, why, and over which verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from canary_mlflow.ledger.chain import Kind, Row
from canary_mlflow.shown import in_markdown
from canary_mlflow.tags import BASELINE_VERSION, OURS, VERDICT, VERDICT_REASON

DONE = {
    Kind.BLESS: "blessed",
    Kind.OVERRIDE: "overridden",
    Kind.ROLLBACK: "rolled_back",
    Kind.ADOPT: "adopted",
}
WITHOUT = "; its weights were not checked"
WORDS = {Kind.BLESS: "blessed", Kind.OVERRIDE: "override", Kind.ROLLBACK: "rollback", Kind.ADOPT: "adopted"}


@dataclass(frozen=True, kw_only=True)
class Act:
    """Who made which version champion, why, and over which verdict. `asked_by`: who asked for it in `request_row` of
    the ledger, if it took two people. `evidence`: what is missing or changed among the runs that the ledger names for
    the version's session, in words; a verdict would be refused for it."""

    kind: Kind
    model: str
    version: str
    alias: str
    reason: str
    who: str
    when: str  # ISO 8601, UTC
    champion_before: str | None  # the version that held the alias
    verdict_before: str  # the version's own verdict until now, or "none"
    without_weights: bool = False  # accepted although its weights cannot be loaded
    asked_by: str = ""
    request_row: int | None = None
    evidence: str = ""

    KEY: ClassVar[str] = "act"  # under which a server sends it

    @property
    def word(self) -> str:
        """What the version's tag `canary.verdict` says from now on."""
        return WORDS[self.kind]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"decision": self.word, **asdict(self)}


def act_from(plain: Mapping[str, Any]) -> Act:
    """An act as a server reports it."""
    return Act(
        **{field.name: plain[field.name] for field in fields(Act) if field.name != "kind"}, kind=Kind(plain["kind"])
    )


def tags_of(act: Act) -> Mapping[str, str]:
    """The version's tags for the act. An override has separate tags, which no later verdict replaces."""
    done = DONE[act.kind]
    return {
        VERDICT: act.word,
        VERDICT_REASON: act.reason,
        BASELINE_VERSION: act.champion_before or "none",
        f"{OURS}{act.kind}_reason": act.reason,
        f"{OURS}{done}_by": act.who,
        f"{OURS}{done}_at": act.when,
        f"{OURS}{done}_over": act.verdict_before,
    }


def as_markdown(act: Act) -> str:
    """The act as a paragraph of Markdown."""
    without = WITHOUT if act.without_weights else ""
    before = f"version {act.champion_before}" if act.champion_before else "none"
    asked = f" (asked for by {in_markdown(act.asked_by)})" if act.asked_by else ""
    evidence = f"\n\nIts evidence does not hold: {in_markdown(act.evidence)}" if act.evidence else ""
    return (
        f"**{act.word.upper()}** by {in_markdown(act.who)}{asked} at {act.when}: {in_markdown(act.reason)} "
        f"(gate's verdict until then: {in_markdown(act.verdict_before)}; "
        f"{in_markdown(act.alias)} until then: {before}{without}){evidence}"
    )


JUDGED = (Kind.VERDICT, Kind.BOOTSTRAP)


@dataclass(frozen=True, kw_only=True)
class Request:
    """An override that somebody has asked for. `row`: its number in the ledger."""

    model: str
    version: str
    alias: str
    reason: str
    who: str
    row: int

    KEY: ClassVar[str] = "request"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"decision": "requested", **asdict(self)}


def request_from(plain: Mapping[str, Any]) -> Request:
    """A request as a server reports it."""
    return Request(**{field.name: plain[field.name] for field in fields(Request)})


def blocked_by(rows: Iterable[Row], about: tuple[int, int]) -> Row | None:
    """The row of the last verdict on a version (number, creation time), if that is a BLOCK."""
    judged = [row for row in rows if row.kind in JUDGED and (row.version, row.version_created) == about]
    return judged[-1] if judged and judged[-1].word == "BLOCK" else None
