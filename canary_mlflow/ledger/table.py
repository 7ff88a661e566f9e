"""The ledger's tables beside MLflow's own, in the same database and so in the same transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from canary_mlflow.ledger.chain import Kind, Row

# Not MLflow's Base.metadata: MLflow compares that with the tables it expects.
METADATA = sa.MetaData()

LEDGER = sa.Table(
    "canary_ledger",
    METADATA,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("workspace", sa.String(63), nullable=False),
    sa.Column("model", sa.String(256), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("version_created", sa.BigInteger, nullable=False),
    sa.Column("alias", sa.String(256), nullable=False),
    sa.Column("word", sa.String(20), nullable=False),
    sa.Column("grants", sa.Integer, nullable=False),
    sa.Column("moves", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("key_id", sa.String(64), nullable=False),
    sa.Column("signature", sa.String(128), nullable=False),
    sa.Index("canary_ledger_of_version", "workspace", "model", "version", "seq"),
    sa.Index("canary_ledger_moves", "workspace", "model", "moves", "seq"),
    sa.Index("canary_ledger_of_key", "key_id", "seq"),
    sa.Index("canary_ledger_of_session", "kind", "alias", "seq"),  # a session's rows have its id as alias
    sa.Index("canary_ledger_of_kind", "kind", "workspace", "seq"),
)

GUARDED = sa.Table(
    "canary_guarded",
    METADATA,
    sa.Column("alias", sa.String(256), primary_key=True),
    sa.Column("models", sa.String(256), primary_key=True),  # as a person wrote it: * and ?
    sa.Column("models_like", sa.String(600), nullable=False),  # the same for SQL's LIKE
)

OPERATORS = sa.Table("canary_operators", METADATA, sa.Column("name", sa.String(256), primary_key=True))

_NAMES = LEDGER.c.keys()

# Every promotion runs these under the lock, where the time to build a statement counts too.
_INSERT = LEDGER.insert()
_NEWEST_FIRST = sa.select(LEDGER).order_by(LEDGER.c.seq.desc())
_THIS_ALIAS = _NEWEST_FIRST.where(*(LEDGER.c[name] == sa.bindparam(name) for name in ("workspace", "model", "alias")))
_MOVES = _THIS_ALIAS.where(LEDGER.c.moves == 1)
# Rows about keys have no model and no workspace, so the index of versions finds them.
_ABOUT_NOTHING = {"workspace": "", "model": "", "version": 0}
_KEY_ROWS = (
    sa.select(LEDGER)
    .where(*(LEDGER.c[name] == sa.bindparam(name) for name in _ABOUT_NOTHING), LEDGER.c.kind == "key")
    .order_by(LEDGER.c.seq)
)
_TAIL = (
    sa.select(LEDGER)
    .where(
        sa.or_(
            LEDGER.c.seq == sa.select(sa.func.max(LEDGER.c.seq)).scalar_subquery(),
            sa.and_(*(LEDGER.c[name] == sa.bindparam(name) for name in _ABOUT_NOTHING), LEDGER.c.kind == "key"),
        )
    )
    .order_by(LEDGER.c.seq)
)
_FIRST_OF_KEY = sa.select(sa.func.min(LEDGER.c.seq)).where(LEDGER.c.key_id == sa.bindparam("key_id"))
_LAST, _LATEST_MOVE = (query.limit(1) for query in (_NEWEST_FIRST, _MOVES))

_NAMED = sa.select(LEDGER.c.seq).where(*(LEDGER.c[name] == sa.bindparam(name) for name in ("workspace", "model")))
_NAMED = _NAMED.limit(1)


@dataclass(frozen=True, kw_only=True)
class Bearing:
    """Every row that decides what a version may become. `last`: the end of the chain. `keys`: about keys, oldest first.
    `policies`: those that set policies, oldest first. `newest`: the newest about this version under this alias. `move`:
    the one that last moved the alias. `pruned`: the one that gave up the version's files."""

    last: Row | None
    keys: Sequence[Row]
    policies: Sequence[Row]
    newest: Row | None
    move: Row | None
    pruned: Row | None = None


AT_ONCE = 1000  # rows fetched at a time
ADVISORY_LOCK = 6_371_820_315  # any number that nobody else on the server uses
_LOCKS = {
    "postgresql": sa.text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"),
    "sqlite": sa.text("UPDATE registered_models SET name = name WHERE 1 = 0"),
}


def lock(connection: Any) -> None:
    """Become the only writer of the ledger until the transaction ends. The first statement of a promotion.

    SQLite takes its only write lock at the first write, even of no rows; if they began with a read, two transactions
    that both want to write would block each other.
    """
    connection.execute(_LOCKS[connection.get_bind().dialect.name])


def append(connection: Any, row: Row) -> None:
    """Write one row; under `lock`."""
    connection.execute(_INSERT, asdict(row))


def last(connection: Any) -> Row | None:
    """The row at the end of the chain."""
    return first_of(connection.execute(_LAST))


def bears_on(created: Any) -> sa.ColumnElement[bool]:
    """The condition for every row of a `Bearing`. `created`: SQL for the version's creation time. It keeps out rows
    about an earlier version of the same number."""
    about = {name: sa.bindparam(name) for name in ("workspace", "model", "version")} | {"version_created": created}
    of_version = _NEWEST_FIRST.where(*(LEDGER.c[name] == value for name, value in about.items()))
    one_of_each = (
        of_version.where(LEDGER.c.alias == sa.bindparam("alias")),
        _MOVES,
        of_version.where(LEDGER.c.kind == Kind.PRUNE),
    )
    return sa.or_(
        LEDGER.c.seq == sa.select(sa.func.max(LEDGER.c.seq)).scalar_subquery(),
        *(LEDGER.c.seq == one.with_only_columns(LEDGER.c.seq).limit(1).scalar_subquery() for one in one_of_each),
        sa.and_(
            LEDGER.c.model == sa.bindparam("nothing", ""),
            LEDGER.c.version == 0,
            sa.or_(
                sa.and_(LEDGER.c.workspace == sa.bindparam("nothing", ""), LEDGER.c.kind == "key"),
                sa.and_(LEDGER.c.workspace == sa.bindparam("workspace"), LEDGER.c.kind == "policy"),
            ),
        ),
    )


def bearing(
    found: Sequence[Any], *, workspace: str, model: str, version: int, version_created: int, alias: str
) -> Bearing:
    """What bears on a version under an alias, of the rows that `bears_on` found, in order. Each may go on with columns
    of other tables, and is empty where the ledger has no row at all."""
    rows = [_row(one) for one in found if one[0] is not None]
    about = {"workspace": workspace, "model": model, "alias": alias}
    of_version = {**about, "version": version, "version_created": version_created}
    return Bearing(
        last=newest_of(rows),
        keys=[row for row in rows if row.kind == Kind.KEY],
        policies=[row for row in rows if row.kind == Kind.POLICY],
        newest=newest_of(rows, **of_version),
        move=newest_of(rows, **about, moves=1),
        pruned=newest_of(rows, **{**of_version, "alias": ""}, kind=Kind.PRUNE),
    )


def newest_of(rows: Sequence[Row], **about: Any) -> Row | None:
    """The last of the given rows whose columns have these values."""
    found = (row for row in reversed(rows) if all(getattr(row, name) == value for name, value in about.items()))
    return next(found, None)


def latest_move(connection: Any, workspace: str, model: str, alias: str) -> Row | None:
    """The row that last moved the alias."""
    return first_of(connection.execute(_LATEST_MOVE, {"workspace": workspace, "model": model, "alias": alias}))


def has_rows(connection: Any, workspace: str, model: str) -> bool:
    """Whether any row is about this name."""
    return connection.execute(_NAMED, {"workspace": workspace, "model": model}).first() is not None


def names_with_rows(connection: Any) -> list[tuple[str, str]]:
    """(workspace, model) of every name that a row is about."""
    found = connection.execute(sa.select(LEDGER.c.workspace, LEDGER.c.model).distinct())
    return [(workspace, model) for workspace, model in found]


def key_rows(connection: Any) -> list[Row]:
    """The rows about keys, in order."""
    return [_row(found) for found in connection.execute(_KEY_ROWS, _ABOUT_NOTHING)]


def tail(connection: Any) -> tuple[Row | None, list[Row]]:
    """The row at the end of the chain and the rows about keys: what a writer must know, in one query."""
    found = [_row(one) for one in connection.execute(_TAIL, _ABOUT_NOTHING)]
    return (found[-1] if found else None), [row for row in found if row.kind == "key"]


def first_signed(connection: Any, key_id: str) -> int | None:
    """The number of the first row that names this key as its signer; None if there is none."""
    found = connection.execute(_FIRST_OF_KEY, {"key_id": key_id}).scalar()
    return None if found is None else int(found)


def first_of_keys(connection: Any) -> dict[str, int]:
    """Key → the number of the first row that names it as its signer."""
    found = connection.execute(sa.select(LEDGER.c.key_id, sa.func.min(LEDGER.c.seq)).group_by(LEDGER.c.key_id))
    return {key_id: int(seq) for key_id, seq in found}


def first_of(result: Any) -> Row | None:
    """The first row of an answer."""
    found = result.first()
    return None if found is None else _row(found)


def read(
    connection: Any, model: str | None = None, workspace: str | None = None, *, naming: str = "", after: int = 0,
    most: int | None = None, **about: Any,
) -> Iterator[Row]:  # fmt: skip
    """Rows in the order of the chain: all, or those whose columns have the given values. `naming`: whose text contains
    it, such as a run's id. `after`: only rows with higher numbers. `most`: no more rows than that."""
    columns = {"model": model, "workspace": workspace, **about}
    where = [LEDGER.c[name] == value for name, value in columns.items() if value is not None]
    if naming:
        where.append(LEDGER.c.body.contains(naming))
    query = sa.select(LEDGER).where(LEDGER.c.seq > after, *where).order_by(LEDGER.c.seq).limit(most)
    for found in connection.execute(query, execution_options={"yield_per": AT_ONCE}):
        yield _row(found)


def _row(found: Any) -> Row:
    # SQLite stores bytes in a text column if it is given bytes.
    read = (value.decode(errors="replace") if isinstance(value, bytes) else value for value in found)
    its: dict[str, Any] = dict(zip(_NAMES, read, strict=False))  # `found` may go on with columns of other tables
    return Row(**its)


def row_at(connection: Any, seq: int) -> Row | None:
    """The row with this number."""
    return first_of(connection.execute(sa.select(LEDGER).where(LEDGER.c.seq == seq)))


def heads_of_versions(connection: Any, workspace: str, model: str, most: int) -> list[tuple[int, str]]:
    """(number, digest) of the last rows about the champion of a model, those of the newest versions first."""
    query = sa.select(LEDGER.c.seq, LEDGER.c.digest).where(
        LEDGER.c.workspace == workspace, LEDGER.c.model == model, LEDGER.c.alias == "champion"
    )
    newest = query.order_by(LEDGER.c.version.desc(), LEDGER.c.seq.desc()).limit(most)
    return [(seq, digest) for seq, digest in connection.execute(newest)]


def rows_at(connection: Any, numbers: Sequence[int]) -> list[Row]:
    """The rows with these numbers."""
    found = connection.execute(sa.select(LEDGER).where(LEDGER.c.seq.in_(numbers))) if numbers else ()
    return [_row(one) for one in found]


def numbers_of_versions(connection: Any, workspace: str, models: Sequence[str]) -> dict[tuple[str, int], int]:
    """The number of the newest row about each version of these models of a workspace."""
    newest = sa.select(LEDGER.c.model, LEDGER.c.version, sa.func.max(LEDGER.c.seq)).where(
        LEDGER.c.workspace == workspace, LEDGER.c.model.in_(models), LEDGER.c.alias == "champion"
    )
    found = connection.execute(newest.group_by(LEDGER.c.model, LEDGER.c.version))
    return {(model, version): seq for model, version, seq in found}
