"""What a search means: part of a name, an id, and terms such as `lr>1e-2 eval_loss<1.2` about settings and metrics."""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse
from typing import Any

import sqlalchemy as sa

from canary_mlflow import tags
from canary_mlflow.gates.model.metrics import METRICS
from canary_mlflow.gates.model.wording import figure
from canary_mlflow.reports.charts import GIVEN
from canary_mlflow.reports.naming import SHORT
from canary_mlflow.tracking.describing.schema import CONFIG_PREFIX, mlflow_key
from canary_mlflow.tracking.reading.database import SHORTEST, read_pairs
from canary_mlflow.tracking.stores.read_only import LATEST, PARAMS, RUNS, TAGS

MATCHES = 5000  # runs that one word or term may match
ALL = (1 << 31) - 1  # a limit that is none: without one, databases do not sort a subquery
Found = tuple[Mapping[str, Any], Sequence[sa.Select[Any]]]  # run → value; and queries of what is too much to read
IDS = 50  # that may begin with a word
SIGNS: Mapping[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge, "<=": operator.le, "!=": operator.ne, ">": operator.gt, "<": operator.lt, "=": operator.eq,
}  # fmt: skip
TERM = re.compile(rf"([^\s=<>!]+)\s*({'|'.join(SIGNS)})\s*(\S+)")
PACKED = tuple(f"{tags.MORE}settings{part}" for part in ("", ".2", ".3"))  # where settings at their default are
SUMMARY = "session/"  # a session's means of its runs


@dataclass(frozen=True, kw_only=True)
class Term:
    """`name sign value`; the name in full, as `given` it may be short."""

    given: str
    sign: str
    value: str

    @property
    def name(self) -> str:
        """The name of the setting or metric."""
        return next((name for name, short in SHORT.items() if short == self.given), self.given)

    @property
    def names(self) -> tuple[str, ...]:
        """What a setting of this name may be called where it was recorded."""
        return tuple({self.given: None, self.name: None, SHORT.get(self.name, self.name): None})

    @property
    def text(self) -> str:
        """As it was written, without blanks."""
        return f"{self.given}{self.sign}{self.value}"

    def fits(self, text: str) -> bool:
        """Whether a recorded value is what was asked for; two numbers are compared as such."""
        try:
            return bool(SIGNS[self.sign](float(text), float(self.value)))
        except ValueError:
            return self.sign in ("=", "!=") and bool(SIGNS[self.sign](text, self.value))


@dataclass(frozen=True, kw_only=True)
class Matched:
    """The runs that a search found, with their sessions. `keys`: by term, the params that it was about. `values`: by
    term, what each run or session has."""

    ids: Sequence[str]
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def terms_in(words: str) -> tuple[list[Term], str]:
    """The terms of a search, and the words beside them."""
    found = [Term(given=name, sign=sign, value=value) for name, sign, value in TERM.findall(words)]
    return found, " ".join(TERM.sub(" ", words).split())


def matching(connection: sa.Connection, words: str) -> Matched:
    """What a search finds: all its terms, in one run, and the words beside them as one part of a name. A term about
    nothing that is known is a word. The database intersects; only the values of what is found are read."""
    terms, rest = terms_in(words)
    keys: dict[str, Sequence[str]] = {}
    asked: dict[str, Found] = {}
    for term in terms:
        known, found = with_setting(connection, term)
        if not any(found) and term.name in METRICS and term.name not in GIVEN:
            found = with_metric(connection, term)
        elif not known and not any(found):
            rest = f"{rest} {term.text}".strip() if len(terms) > 1 else words
            continue
        keys[term.text], asked[term.text] = known, found
    every = sa.select(RUNS.c.run_uuid, RUNS.c.start_time).where(RUNS.c.lifecycle_stage == "active")
    of = every.order_by(RUNS.c.start_time.desc()).limit(ALL).subquery()  # sorted first: SQLite stops when it has enough
    newest = sa.select(of.c.run_uuid).limit(MATCHES)
    for few, many in asked.values():
        each = [sa.exists(one.where(one.selected_columns.run_uuid == of.c.run_uuid).correlate(of)) for one in many]
        newest = newest.where(sa.or_(of.c.run_uuid.in_(few), *each))
    if rest:
        newest = newest.where(of.c.run_uuid.in_(set(named(connection, rest))))
    if connection.dialect.name != "sqlite":  # where the outer query may be in another order
        newest = newest.order_by(of.c.start_time.desc())
    both = connection.execute(newest).scalars().all()
    parents, values = parents_of(connection, both), {}
    for text, (few, many) in asked.items():
        rows = [row for one in many for row in connection.execute(one.where(one.selected_columns.run_uuid.in_(both)))]
        told = {one: written_out(value) for one, value in [*few.items(), *rows]}
        values[text] = {**told, **of_sessions(told, parents)}
    return Matched(ids=[*both, *dict.fromkeys(parents.values())], keys=keys, values=values)


def written_out(value: str | float) -> str:
    """A setting as it was given, or a metric's value as people read it."""
    return value if isinstance(value, str) else figure(value)


def of_sessions(found: Mapping[str, str], parents: Mapping[str, str]) -> dict[str, str]:
    """The values of each session's runs, each once."""
    several: dict[str, dict[str, None]] = defaultdict(dict)
    for run_id, parent in parents.items():
        if run_id in found:
            several[parent][found[run_id]] = None
    return {parent: ", ".join(list(one)[:3]) for parent, one in several.items()}


def named(connection: sa.Connection, word: str) -> Iterator[str]:
    """The runs with the word in their name or their model's, or whose id begins with it."""
    like = f"%{escaped(word)}%"
    query = sa.select(RUNS.c.run_uuid).where(RUNS.c.name.like(like, escape="\\"), RUNS.c.lifecycle_stage == "active")
    yield from connection.execute(query.order_by(RUNS.c.start_time.desc()).limit(MATCHES)).scalars()
    of_model = sa.select(TAGS.c.run_uuid).where(TAGS.c.key == tags.MODEL_NAME, TAGS.c.value.like(like, escape="\\"))
    yield from connection.execute(of_model.limit(MATCHES)).scalars()
    if len(word) >= SHORTEST and word.isalnum():
        begins = sa.select(RUNS.c.run_uuid).where(RUNS.c.run_uuid.like(f"{word.lower()}%"))
        yield from connection.execute(begins.limit(IDS)).scalars()


def escaped(word: str) -> str:
    """A word escaped for LIKE."""
    return word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def sought(connection: sa.Connection, query: sa.Select[Any]) -> Found:
    """What a query of runs and values finds: all of it, or the query if that is much."""
    rows = connection.execute(query.limit(MATCHES + 1)).all()
    return ({}, (query,)) if len(rows) > MATCHES else ({run_id: value for run_id, value in rows}, ())


def with_metric(connection: sa.Connection, term: Term) -> Found:
    """The runs and sessions whose last value of the metric fits, with that."""
    try:
        bound = float(term.value)
    except ValueError:
        return {}, ()
    of_keys = LATEST.c.key.in_((mlflow_key(term.name), f"{SUMMARY}{term.name}"))
    fits = SIGNS[term.sign](LATEST.c.value, bound)
    return sought(connection, sa.select(LATEST.c.run_uuid, LATEST.c.value).where(of_keys, ~LATEST.c.is_nan, fits))


def with_setting(connection: sa.Connection, term: Term) -> tuple[list[str], Found]:
    """The params that a term names; and the runs where one fits, also at its default, which is no param."""
    keys = params_named(connection, term.names)
    of_keys = sa.select(PARAMS.c.run_uuid, PARAMS.c.value).where(PARAMS.c.key.in_(keys))
    every = of_keys.with_only_columns(PARAMS.c.value).distinct()
    known = [] if term.sign == "=" else connection.execute(every).scalars().all()
    fitting = written(term.value) if term.sign == "=" else [*filter(term.fits, known)]
    fits = PARAMS.c.value.in_(fitting)
    if len(fitting) > MATCHES:  # databases take a limited number of values
        others = [*filterfalse(term.fits, known)]
        fits = ~PARAMS.c.value.in_(others) if len(others) <= MATCHES else PARAMS.c.value.in_(fitting[:MATCHES])
    few, many = sought(connection, of_keys.where(fits))
    names = [name.removeprefix(CONFIG_PREFIX) for name in term.names]
    inside = re.compile(rf'"{CONFIG_PREFIX}(?:[^"]*\.)?(?:{"|".join(map(re.escape, names))})": "([^"]*)"')
    there = sa.or_(*(TAGS.c.value.like(f'%{escaped(name)}": "%', escape="\\") for name in names))
    packed = sa.select(TAGS.c.run_uuid, TAGS.c.value).where(TAGS.c.key.in_(PACKED), there).limit(MATCHES)
    at_default = {run_id: one[1] for run_id, text in connection.execute(packed)
                  if (one := inside.search(text)) is not None and term.fits(one[1])}  # fmt: skip
    return keys, ({**at_default, **few}, many)


def params_named(connection: sa.Connection, names: Sequence[str]) -> list[str]:
    """The params with one of these names, or whose name ends with one after a dot or a slash. One index lookup for each
    key."""
    first = sa.select(sa.func.min(PARAMS.c.key).label("key")).cte("keys", recursive=True)
    after = sa.select(sa.func.min(PARAMS.c.key)).where(PARAMS.c.key > first.c.key).scalar_subquery()
    keys = first.union_all(sa.select(after).where(first.c.key.is_not(None)))
    found = [key for key in connection.execute(sa.select(keys.c.key)).scalars() if key is not None]
    ends = tuple(f"{before}{name}" for name in names for before in "./")
    return [key for key in found if key in names or key.endswith(ends)]


def written(value: str) -> list[str]:
    """The usual ways to write a number, such as 2e-2, 0.02, 2e-02 and 2.0e-2."""
    try:
        number = float(value)
    except ValueError:
        return [value]
    mantissa, _, power = f"{number:e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    powers = (power, power.replace("-0", "-").replace("+0", "").replace("+", ""))
    ways = [value, repr(number), f"{number:g}", *(f"{mantissa}{point}e{one}" for one in powers for point in ("", ".0"))]
    return list(dict.fromkeys([*ways, *([str(int(number))] if number.is_integer() and abs(number) < 1e15 else [])]))


def parents_of(connection: sa.Connection, ids: Sequence[str]) -> dict[str, str]:
    """Run → its session, of those that have one."""
    found = read_pairs(connection, ids, (tags.PARENT_RUN,))[0] if ids else {}
    return {run_id: parent for run_id, one in found.items() if (parent := one.get(tags.PARENT_RUN))}
