"""Caches long series as columns in files beside the database, so that a page need not read a million rows again.

A file is never trusted: each read counts its rows in the database, which an index answers, and compares some of them,
chosen at random. Rows that came late or were removed change the count. Equal numbers of both, or a value changed in
place, for which MLflow has no call, are found once they are among those compared. Whatever differs is read and stored
again.
Every file may be removed at any time; if none can be written, everything is read from the database.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from canary_mlflow.tracking.reading.database import Found, Keys, points_over
from canary_mlflow.tracking.reading.records import NONE, Points, in_order
from canary_mlflow.tracking.stores.places import cache_dir
from canary_mlflow.tracking.stores.tables import POINTS

LONG = 5_000  # rows; with fewer, a database is as fast
GROWN = 20  # made again when it is a 20th longer: in total, each row is written at most 20 times
LATE = 100  # steps at the end that are not stored: a slow rank's values arrive after those of later steps
COMPARED = 32  # steps of each run whose rows are compared with the database
MOST = 1 << 30  # bytes of all files, and what stays free on the disk; the file that was used longest ago goes first


def cached_points(connection: sa.Connection, keys: Keys, after: int | None = None, until: int | None = None) -> Found:
    """What `points_over` returns, from the files as far as they have it."""
    return {run_id: points_of(connection, run_id, names, after, until) for run_id, names in keys.items()}


def points_of(
    connection: sa.Connection, run_id: str, keys: Sequence[str], after: int | None, until: int | None
) -> dict[str, Points]:
    """One run's points by key: those of the files, and behind them the later ones from the database."""
    store = connection.engine.url.render_as_string(hide_password=True)
    files = {key: file_of(store, run_id, key) for key in keys}
    parts = {key: between(load(file), after, until) for key, file in files.items()}
    parts = confirmed(connection, run_id, {key: part for key, part in parts.items() if len(part) >= LONG}, after)
    from_where: dict[int | None, list[str]] = defaultdict(list)
    for key in keys:
        from_where[int(parts[key][-1, 0]) if key in parts else after].append(key)
    found = dict(parts)
    for start, names in from_where.items():
        if start is None or until is None or start < until:
            for key, rows in points_over(connection, {run_id: names}, start, until)[run_id].items():
                found[key] = np.concatenate([parts[key], rows]) if key in parts else rows
    if after is None and until is None:
        grown = [key for key in keys if worth_keeping(found[key], len(parts.get(key, NONE)))]
        for key in grown:
            keep(files[key], found[key])
        if grown:
            make_room(root())
    return found


def confirmed(
    connection: sa.Connection, run_id: str, parts: Mapping[str, Points], after: int | None
) -> dict[str, Points]:
    """The parts that still match the database, as far as can be told without reading it all again."""
    if not parts:
        return {}
    some = next(iter(parts.values()))[:, 0]
    steps = sorted(set(np.random.default_rng().choice(some, COMPARED).astype(np.int64).tolist()))
    rows = points_over(connection, {run_id: list(parts)}, at=steps)[run_id]
    good = {}
    for key, part in parts.items():
        last = int(part[-1, 0])
        here, there = part[np.isin(part[:, 0], steps)], rows[key][rows[key][:, 0] <= last]
        same = np.array_equal(in_order(there), here, equal_nan=True)
        if same and len(part) == counted(connection, run_id, key, after, last):
            good[key] = part
    return good


def counted(connection: sa.Connection, run_id: str, key: str, after: int | None, last: int) -> int:
    """How many rows the database has after step `after` (None: from the first) up to step `last`."""
    mine = [POINTS.c.run_uuid == run_id, POINTS.c.key == key, POINTS.c.step <= last]
    if after is not None:
        mine.append(POINTS.c.step > after)
    return connection.execute(sa.select(sa.func.count()).select_from(POINTS).where(*mine)).scalar_one()


def between(points: Points, after: int | None, until: int | None) -> Points:
    """The rows after step `after` up to step `until` (None: no bound)."""
    start = 0 if after is None else int(np.searchsorted(points[:, 0], after, side="right"))
    end = len(points) if until is None else int(np.searchsorted(points[:, 0], until, side="right"))
    return points[start:end]


def worth_keeping(points: Points, known: int) -> bool:
    """Whether enough rows are settled, and enough of those are new."""
    return len(points) > LONG and settled(points) - known > max(known, LONG) // GROWN


def settled(points: Points) -> int:
    """How many of the rows, sorted by step, are at least LATE steps before the last."""
    return int(np.searchsorted(points[:, 0], points[-1, 0] - LATE, side="right"))


def root() -> Path:
    """The folder of all files."""
    return cache_dir() / "points"


def file_of(store: str, run_id: str, key: str) -> Path:
    """The file of one series."""
    name = hashlib.sha256("\0".join((store, run_id, key)).encode()).hexdigest()[:32]
    return root() / f"{name}.npy"


def load(file: Path) -> Points:
    """The rows of a file; empty if it is missing or damaged."""
    try:
        found = np.load(file, allow_pickle=False)
        os.utime(file)
    except (OSError, ValueError, EOFError):
        return NONE
    sound = found.dtype == np.float64 and found.ndim == 2 and len(found) == 3 and (np.diff(found[0]) >= 0).all()
    return found.T if sound else NONE


def keep(file: Path, points: Points) -> None:
    """Write the settled rows, all or none; a folder that cannot be written is no error."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if shutil.disk_usage(file.parent).free < MOST:
            return
        handle, name = tempfile.mkstemp(dir=file.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as made:
                np.save(made, np.ascontiguousarray(in_order(points[: settled(points)]).T))
            Path(name).replace(file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def make_room(folder: Path) -> None:
    """Remove the least recently used files until the rest is within MOST."""
    with contextlib.suppress(OSError):
        files = sorted((one.stat().st_mtime, one.stat().st_size, one) for one in folder.iterdir() if one.is_file())
        size = sum(one[1] for one in files)
        for _, own, file in files:
            if size <= MOST:
                return
            file.unlink(missing_ok=True)
            size -= own
