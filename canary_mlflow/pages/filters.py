"""What a search means: part of a name, an id, and terms such as `lr>1e-2 eval_loss<1.2` about settings and metrics."""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
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
    nothing that is known is a word."""
    terms, rest = terms_in(words)
    parts: list[set[str]] = []
    keys: dict[str, Sequence[str]] = {}
    values: dict[str, Mapping[str, str | float]] = {}
    for term in terms:
        known, given = with_setting(connection, term)
        found: dict[str, str | float] = {**given}
        if not given and term.name in METRICS and term.name not in GIVEN:
            found = dict(with_metric(connection, term))
        elif not known and not found:
            rest = f"{rest} {term.text}".strip() if len(terms) > 1 else words
            continue
        keys[term.text], values[term.text] = known, found
        parts.append(set(found))
    if rest:
        parts.append(set(named(connection, rest)))
    both = newest_of(connection, set.intersection(*parts)) if parts else []
    parents = parents_of(connection, both)
    told = {text: {one: written_out(found[one]) for one in both if one in found} for text, found in values.items()}
    beside = {text: {**found, **of_sessions(found, parents)} for text, found in told.items()}
    return Matched(ids=[*both, *dict.fromkeys(parents.values())], keys=keys, values=beside)


def written_out(value: str | float) -> str:
    """A setting as it was given, or a metric's value as people read it."""
    return value if isinstance(value, str) else figure(value)


def newest_of(connection: sa.Connection, found: set[str]) -> list[str]:
    """The newest of these runs, as many as one page may search."""
    if len(found) <= MATCHES:
        return sorted(found)
    every = sa.select(RUNS.c.run_uuid).where(RUNS.c.lifecycle_stage == "active").order_by(RUNS.c.start_time.desc())
    return list(islice((one for one in connection.execute(every).scalars().all() if one in found), MATCHES))


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


def with_metric(connection: sa.Connection, term: Term) -> dict[str, float]:
    """Run or session → the metric's last value, where it fits."""
    try:
        bound = float(term.value)
    except ValueError:
        return {}
    keys = (mlflow_key(term.name), f"{SUMMARY}{term.name}")
    fits = SIGNS[term.sign](LATEST.c.value, bound)
    query = sa.select(LATEST.c.run_uuid, LATEST.c.value).where(LATEST.c.key.in_(keys), ~LATEST.c.is_nan, fits)
    return {run_id: value for run_id, value in connection.execute(query).all()}


def with_setting(connection: sa.Connection, term: Term) -> tuple[list[str], dict[str, str]]:
    """The params that a term names; and run → value where it fits: of a param, or at its default, which is no param."""
    keys = params_named(connection, term.names)
    found: dict[str, str] = {}
    if keys:
        query = sa.select(PARAMS.c.run_uuid, PARAMS.c.value).where(PARAMS.c.key.in_(keys))
        if term.sign == "=":
            query = query.where(PARAMS.c.value.in_(written(term.value)))
        rows = connection.execute(query).all()
        fitting = {value for value in {value for _, value in rows} if term.fits(value)}  # few, in many runs
        found = {run_id: value for run_id, value in rows if value in fitting}
    names = [name.removeprefix(CONFIG_PREFIX) for name in term.names]
    inside = re.compile(rf'"{CONFIG_PREFIX}(?:[^"]*\.)?(?:{"|".join(map(re.escape, names))})": "([^"]*)"')
    there = sa.or_(*(TAGS.c.value.like(f'%{escaped(name)}": "%', escape="\\") for name in names))
    packed = sa.select(TAGS.c.run_uuid, TAGS.c.value).where(TAGS.c.key.in_(PACKED), there)
    for run_id, text in connection.execute(packed.limit(MATCHES)):
        if run_id not in found and (one := inside.search(text)) is not None and term.fits(one[1]):
            found[run_id] = one[1]
    return keys, found


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
