"""All sessions, or all runs, a page at a time: searched, filtered and sorted in their database.

MLflow's tables have no index over times, names or values. So nothing is counted, and a page reads only what it needs:
either the runs in order until it is full, or those found by a tag, a param or a name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import sqlalchemy as sa
from flask import request, url_for

from canary_mlflow import tags
from canary_mlflow.errors import UsageError
from canary_mlflow.gates.model.verdict import Outcome
from canary_mlflow.pages.filters import Matched, matching, terms_in
from canary_mlflow.pages.models import names_of_models, with_words
from canary_mlflow.pages.requests import readers, registry_database, rendered, runs_database, whole_number
from canary_mlflow.policies import policy_names
from canary_mlflow.tracking.reading.database import read_facts, read_pairs
from canary_mlflow.tracking.reading.facts import OPEN, PARENTS, RunFacts
from canary_mlflow.tracking.stores.read_only import EXPERIMENTS, RUNS, TAGS

PAGE = 50
CHUNKS = (400, 2000, 4000)  # runs read at once in the search for one page
LEAD = 4 * PAGE  # runs before a page that may be children of its sessions
KEYS = (tags.ROLE, tags.WATCH_LEVEL, tags.VERDICT, tags.MODEL_NAME, tags.TIER, tags.PARENT_RUN)
SHOWN = (*KEYS, tags.VERSION, tags.CHANGED, tags.VERDICT_REASON, tags.ALGO, tags.MODEL, tags.SEED,
         tags.WATCH_WARNINGS, tags.WATCHED, tags.FAILURE, tags.FAILURE_REASON, tags.RUN_NAME)  # fmt: skip
WARNED = ("warned", "critical", "stopped")
NOT_JUDGED, RUNNING = "none", "RUNNING"
ORDERS: dict[str, tuple[Any, ...]] = {
    "new": (RUNS.c.start_time.desc(), RUNS.c.run_uuid),
    "old": (RUNS.c.start_time, RUNS.c.run_uuid),
    "long": ((RUNS.c.end_time - RUNS.c.start_time).desc(), RUNS.c.run_uuid),
    "name": (RUNS.c.name, RUNS.c.run_uuid),
}
GROUPS = {"model": tags.MODEL_NAME, "seed": tags.SEED, "changed": tags.CHANGED}
for order, tag in GROUPS.items():  # by a tag, under a heading for each value
    said = sa.select(TAGS.c.value).where(TAGS.c.run_uuid == RUNS.c.run_uuid, TAGS.c.key == tag).scalar_subquery()
    ORDERS[order] = (said.nulls_last(), *ORDERS["new"])


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What to look for. `what`: sessions or runs. `q`: part of a name, an id or a model's name, and terms as in
    `lr>1e-2` (pages/filters.py). `skip`: how many runs or matches come before the page."""

    what: str = "sessions"
    q: str = ""
    verdict: str = ""
    model: str = ""
    tier: str = ""
    warned: bool = False
    sort: str = "new"
    skip: int = 0


@dataclass(frozen=True, kw_only=True)
class Line:
    """One session or run. `warned`: how many of its runs the watch warned about, None if that was not looked up."""

    head: RunFacts
    warned: int | None


@dataclass(frozen=True, kw_only=True)
class Index:
    """One page. `further`: where the next begins, None if this is the last. `full`: whether this one is full; if not,
    the search reached its bound or the end. `found`: what the words of the search matched."""

    asked: Asked
    lines: Sequence[Line]
    further: int | None
    full: bool
    found: Matched
    models: Sequence[str] = ()


def read_index(asked: Asked) -> Index:
    """The page that was asked for, of what the reader may see."""
    connection, registry = runs_database(), registry_database()
    every = list(connection.execute(sa.select(EXPERIMENTS.c.experiment_id)).scalars())
    may = [one for one in every if readers().experiment(str(one))]
    query, walk, words = source(connection, asked)
    if len(may) < len(every):
        query = query.where(RUNS.c.experiment_id.in_(may))
    lines, further, full = collected(connection, asked, query, walk=walk)
    heads = with_words(registry, [line.head for line in lines])
    lines = [replace(line, head=heads[line.head.run_id]) for line in lines]
    models = [name for name in names_of_models(registry) if readers().model(name)]
    return Index(asked=asked, lines=lines, further=further, full=full, found=words, models=models)


def source(connection: sa.Connection, asked: Asked) -> tuple[sa.Select[Any], bool, Matched]:
    """A query of the ids to search, in order; whether it covers all runs, so that children are near their session; and
    what the words of the search matched."""
    query = sa.select(RUNS.c.run_uuid).where(RUNS.c.lifecycle_stage == "active").order_by(*ORDERS[asked.sort])
    if asked.verdict == RUNNING:
        query = query.where(RUNS.c.status.in_(OPEN))
    if asked.q:
        found = matching(connection, asked.q)
        return query.where(RUNS.c.run_uuid.in_(found.ids)), False, found
    if asked.what == "sessions" and not asked.warned:
        for name, value in ((tags.MODEL_NAME, asked.model), (tags.VERDICT, asked.verdict)):
            if value and value not in (NOT_JUDGED, RUNNING):
                tagged = sa.select(TAGS.c.run_uuid).where(TAGS.c.key == name, TAGS.c.value == value)
                return query.where(RUNS.c.run_uuid.in_(tagged)), False, Matched(ids=())
    return query, True, Matched(ids=())


def collected(
    connection: sa.Connection, asked: Asked, query: sa.Select[Any], *, walk: bool
) -> tuple[list[Line], int | None, bool]:
    """The lines of a page, where the next begins (None for none), and whether this one is full."""
    near = walk and asked.sort == "new" and asked.what == "sessions"
    children: dict[str, int] = defaultdict(int)
    if near and asked.skip:
        before = query.limit(min(LEAD, asked.skip)).offset(max(0, asked.skip - LEAD))
        earlier = list(connection.execute(before).scalars())
        count_warned(read_pairs(connection, earlier, (tags.WATCH_LEVEL, tags.PARENT_RUN))[0], children)
    kept: dict[str, int | None] = {}
    at: int | None = asked.skip
    for size in CHUNKS:
        assert at is not None
        ids = list(connection.execute(query.limit(size).offset(at)).scalars())
        found = read_pairs(connection, ids, KEYS)[0] if ids else {}
        for number, run_id in enumerate(ids, 1):
            own = found.get(run_id, {})
            if near:
                count_warned({run_id: own}, children)
            warned = children[run_id] if near else None
            if wanted(asked, own, warned):
                kept[run_id] = warned if asked.what == "sessions" else int(own.get(tags.WATCH_LEVEL, "") in WARNED)
            if len(kept) == PAGE:
                return lines_of(connection, kept), at + number, True
        at = None if len(ids) < size else at + size
        if at is None:
            break
    return lines_of(connection, kept), at, False


def count_warned(runs: Mapping[str, Mapping[str, str]], children: dict[str, int]) -> None:
    """Count, in `children`, the runs of each session that the watch warned about."""
    for own in runs.values():
        if own.get(tags.WATCH_LEVEL, "") in WARNED and (parent := own.get(tags.PARENT_RUN)):
            children[parent] += 1


def wanted(asked: Asked, said: Mapping[str, str], warned: int | None) -> bool:
    """Whether a run is of the kind that was asked for and passes the filters."""
    if said.get(tags.ROLE) not in (PARENTS if asked.what == "sessions" else ("run",)):
        return False
    if asked.warned and not (warned if asked.what == "sessions" else said.get(tags.WATCH_LEVEL, "") in WARNED):
        return False
    word = RUNNING if asked.verdict == RUNNING else said.get(tags.VERDICT, "") or NOT_JUDGED
    named = ((asked.verdict, word), (asked.model, said.get(tags.MODEL_NAME, "")), (asked.tier, said.get(tags.TIER, "")))
    return all(not given or given == own for given, own in named)


def lines_of(connection: sa.Connection, kept: Mapping[str, int | None]) -> list[Line]:
    """The lines of the runs that were kept."""
    found = read_facts(connection, list(kept), tags=SHOWN)
    return [Line(head=run, warned=kept[run_id]) for run_id, run in found.items()]


# ---- route -----------------------------------------------------------------------------------------------------------


def sessions() -> str:
    """All sessions, or all runs, as they are asked for."""
    asked = asked_index()
    kept = {key: value for key, value in vars(asked).items() if value and key not in ("skip", "warned")}
    kept |= {"warned": "1"} if asked.warned else {}
    page, found = partial(url_for, "canary_pages.sessions", **kept), read_index(asked)
    tiers = sorted({*policy_names(), *filter(None, (asked.tier,))})
    return rendered(
        "canary/sessions.html", page=found, chips=chips_of(asked, page), first=page(), tiers=tiers,
        further=page(skip=found.further), group=GROUPS.get(asked.sort),
        verdicts=(*(word.value for word in Outcome), NOT_JUDGED, RUNNING),
    )  # fmt: skip


def chips_of(asked: Asked, page: Callable[..., str]) -> list[tuple[str, str]]:
    """Each term of the search, with the address of the page without it."""
    terms, rest = terms_in(asked.q)
    left = {one.text: " ".join([*(other.text for other in terms if other != one), rest]).strip() for one in terms}
    return [(text, page(q=others or None)) for text, others in left.items()]


def asked_index() -> Asked:
    """What the query parameters ask of the index. Raises UsageError."""
    given = {name: request.args.get(name, "") for name in ("what", "q", "verdict", "model", "tier", "sort")}
    for name, value in given.items():
        if len(value) > 200 or "\x00" in value:
            raise UsageError(f"{name}: {len(value)} characters; expected at most 200, of text")
    for name, known in (("what", ("sessions", "runs")), ("sort", tuple(ORDERS))):
        if given[name] and given[name] not in known:
            raise UsageError(f"{name}: found {given[name]!r}; expected one of {', '.join(known)}")
    warned, skip = request.args.get("warned") == "1", whole_number("skip") or 0
    return Asked(**{name: value.strip() for name, value in given.items() if value.strip()}, warned=warned, skip=skip)
