"""Guards against trying until it passes: how often the same code was tried against the same champion, and the outcomes.

A try is a session of the model that has ended, or a second judgement of a session that has other runs by now. Only
another commit is other code: where edits counted as such, whoever touches a file would begin a new count. The looks of
a plan are not counted again: they share one level (gates/model/policy.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from canary_mlflow.gates.facts.check import UNKNOWN, recipe
from canary_mlflow.gates.model.policy import Policy
from canary_mlflow.gates.model.records import Version
from canary_mlflow.gates.model.sides import candidate_side
from canary_mlflow.gates.model.verdict import Verdict
from canary_mlflow.gates.model.wording import counted, listed
from canary_mlflow.ledger.chain import Kind, Row, digest
from canary_mlflow.registry.sessions.rows import Word

if TYPE_CHECKING:
    from canary_mlflow.registry.backends.registry import Registry
    from canary_mlflow.registry.guard.order import Standing

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
SHOWN = 5  # earlier tries that a note lists
SHORT = 8  # characters of a session's id


@dataclass(frozen=True, kw_only=True)
class Tries:
    """`number`: which try this is, counted from 1. `earlier`: the outcomes of the tries before it, each in a few words.
    `stopped`: sessions of this code that somebody ended before they told anything. `open`: sessions of the model that
    have begun but not ended, each with its day. Neither counts as a try, but both are shown: stopping a session because
    it goes badly is trying too."""

    number: int = 1
    earlier: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    open: tuple[str, ...] = ()

    def first(self, policy: Policy) -> Policy:
        """The policy of a first try. `policy`: the one of this try."""
        return replace(policy, alpha_pass=policy.alpha_pass / policy.looks.share_of_try(self.number))

    def leads(self, verdict: Verdict) -> Verdict:
        """The verdict on what would pass as a first try, which its reason says before all else."""
        said = f"As a first try it would pass, but it is the {ordinal(self.number)}."
        return replace(verdict, reason=f"{said} {verdict.reason}")

    def notes(self, champion: str | None, policy: Policy) -> list[str]:
        """What a reader must know about the tries. `policy`: the one that led to the verdict."""
        said = []
        if self.number > 1:
            said.append(
                f"{ordinal(self.number)} try of this code against version {champion}, before it: "
                f"{listed(list(self.earlier), most=SHOWN)}; PASS at {100 * policy.alpha_pass:.2g} % instead of "
                f"{100 * self.first(policy).alpha_pass:.2g} %"
            )
        if self.stopped:
            what = "session of this code was" if len(self.stopped) == 1 else "sessions of this code were"
            said.append(f"{len(self.stopped)} {what} stopped by hand: {listed(list(self.stopped), most=SHOWN)}")
        if self.open:
            what = "session has" if len(self.open) == 1 else "sessions have"
            said.append(f"{len(self.open)} {what} begun and not ended: {listed(list(self.open), most=SHOWN)}")
        return said


def count(
    registry: Registry, rows: Sequence[Row], session_id: str | None, candidate: Version, champion: Standing
) -> Tries:
    """The tries of this code since the champion became champion. `rows`: those about the model."""
    since = champion.row or 0  # a champion from before the ledger: count all rows
    after = registry.rows(kind=Kind.SESSION, after=since)
    ended = [row for row in after if row.word == Word.ENDED]
    begun = unended(after, session_id, candidate.model)
    if champion.version is None:
        return Tries(open=begun)
    mine = next((row for row in ended if row.alias == session_id), None)
    if mine is None:
        mine = next((row for row in registry.session_rows(session_id or "") if row.word == Word.ENDED), None)
    commit = next((run.environment.get("git_commit") for run in candidate.runs), UNKNOWN)
    facts = mine.facts if mine else {"code": digest(recipe(candidate.runs)), "commit": commit}
    same = [
        row
        for row in ended
        if row.alias != session_id
        and (mine is None or row.seq < mine.seq)
        and row.model == candidate.model  # who may not write the model could spend its level under another name
        and is_same_code(row.facts, facts)
    ]
    before = [row for row in same if has_evidence(row)]
    stopped = tuple(called(row) for row in same if not has_evidence(row))
    judged = [row for row in rows if row.kind == Kind.VERDICT and row.seq > since]
    earlier = [f"session {row.alias[:SHORT]} ({said_of(row.alias, judged)})" for row in before]
    evidence = {run.run_id for run in candidate_side(candidate.runs).evidence}
    evals = {str(row.seq) for row in rows if row.kind == Kind.EVALS and row.version == int(candidate.version or 0)}
    earlier += looks_before(session_id, judged, evidence, evals)
    return Tries(number=len(earlier) + 1, earlier=tuple(earlier), stopped=stopped, open=begun)


def is_same_code(here: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Whether the rows of two sessions tell of the same recipe, and not of two commits. A commit that is not known may
    be any."""
    commits = {facts.get("commit") or UNKNOWN for facts in (here, there)} - {UNKNOWN}
    return here.get("code") == there.get("code") and len(commits) < 2


def unended(after: Sequence[Row], session_id: str | None, model: str) -> tuple[str, ...]:
    """The model's sessions that have begun and not ended, except this one."""
    over = {row.alias for row in after if row.word == Word.ENDED}
    return tuple(
        called(row)
        for row in after
        if row.word == Word.BEGUN and row.model == model and row.alias not in {*over, session_id}
    )


def called(row: Row) -> str:
    """A session, with the day of its row."""
    return f"{row.alias[:SHORT]} on {str(row.facts.get('time', ''))[:10]}"


def has_evidence(row: Row) -> bool:
    """Whether any run of an ended session tells something about its code; a run that was only stopped does not."""
    made = [run for run in (row.facts.get("runs") or {}).values() if run.get("role") == "run"]
    return any(run.get("failure") != "interrupted" for run in made)


def said_of(session_id: str, judged: Sequence[Row]) -> str:
    """The last verdict on a session."""
    found = [row for row in judged if row.facts.get("session") == session_id]
    return f"version {found[-1].version}: {found[-1].word}" if found else "not judged"


def looks_before(session_id: str | None, judged: Sequence[Row], now: set[str], evals: set[str]) -> list[str]:
    """Earlier judgements of this session when it had other runs, outside a plan of looks, or other evaluations.
    `evals`: the rows on those of the version; a judgement without any has not looked at them."""
    sets: dict[frozenset[str], str] = {}
    for row in judged:
        verdict = row.facts.get("verdict") or {}
        had = frozenset(verdict.get("candidate_runs") or ())
        if row.facts.get("session") != session_id:
            continue
        looked_at = evals & set(row.facts.get("evals") or ())
        if verdict.get("look") is None and had != now:
            sets[had] = f"its own {counted(len(had), 'run')}: {row.word}"
        elif looked_at and looked_at != evals:
            sets[frozenset(looked_at)] = f"{counted(len(looked_at), 'row')} on its evaluations: {row.word}"
    return list(sets.values())


def ordinal(number: int) -> str:
    """`third`, `11th`."""
    return ORDINALS[number - 1] if number <= len(ORDINALS) else f"{number}th"
