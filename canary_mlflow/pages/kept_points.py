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

from canary_mlflow.tracking.reading.points import Points, points_over
from canary_mlflow.tracking.stores.places import cache_dir

METRICS = sa.table("metrics", *map(sa.column, ("run_uuid", "key", "step")))
WORTH = 5_000  # rows; with fewer, a database is as fast
MORE = 20  # written again when it has grown by a 20th: in total, each row is written at most 20 times
LATE = 100  # steps at the end that are not stored: a slow rank's values arrive after those of later steps
COMPARED = 32  # steps of each run whose rows are compared with the database
MOST = 1 << 30  # bytes of all files, and what stays free on the disk; the file that was used longest ago goes first

Keys = Mapping[str, Sequence[str]]
Found = dict[tuple[str, str], Points]


def kept_points(connection: sa.Connection, keys: Keys, after: int | None = None, until: int | None = None) -> Found:
    """What `points_over` returns, from the files as far as they have it."""
    store = connection.engine.url.render_as_string(hide_password=True)
    files = {(run_id, key): file_of(store, run_id, key) for run_id, names in keys.items() for key in names}
    parts: Found = {}
    for one, file in files.items():
        part = between(load(file), after, until)
        if len(part) >= WORTH:
            parts[one] = part
    parts = confirmed(connection, parts, after)
    found = rest_of(connection, keys, parts, after, until)
    if after is None and until is None:
        grown = [one for one, rows in found.items() if worth_keeping(rows, parts.get(one))]
        for one in grown:
            keep(files[one], found[one])
        if grown:
            make_room(root())
    return found


def rest_of(connection: sa.Connection, keys: Keys, parts: Found, after: int | None, until: int | None) -> Found:
    """The parts followed by the later rows from the database; all rows of a series without a part."""
    from_where: dict[tuple[str, int | None], list[str]] = defaultdict(list)
    for run_id, names in keys.items():
        for key in names:
            part = parts.get((run_id, key))
            from_where[run_id, after if part is None else int(part[-1, 0])].append(key)
    found: Found = {}
    for (run_id, start), names in from_where.items():
        if start is None or until is None or start < until:
            found |= points_over(connection, {run_id: names}, start, until)
    for one, part in parts.items():
        later = found.get(one)
        found[one] = part if later is None or not len(later) else np.concatenate([part, later])
    return found


def confirmed(connection: sa.Connection, parts: Found, after: int | None) -> Found:
    """The parts that still match the database, as far as can be told without reading it all again."""
    by_run: dict[str, list[str]] = defaultdict(list)
    for run_id, key in parts:
        by_run[run_id].append(key)
    good: Found = {}
    for run_id, names in by_run.items():
        steps = np.random.default_rng().choice(parts[run_id, names[0]][:, 0], COMPARED).astype(np.int64)
        rows = points_over(connection, {run_id: names}, at=sorted(set(steps.tolist())))
        for key in names:
            part = parts[run_id, key]
            here = part[np.isin(part[:, 0], steps)]
            there = rows[run_id, key]
            there = there[there[:, 0] <= part[-1, 0]]
            if np.array_equal(in_order(there), here, equal_nan=True) and len(part) == counted(
                connection, run_id, key, after, int(part[-1, 0])
            ):
                good[run_id, key] = part
    return good


def counted(connection: sa.Connection, run_id: str, key: str, after: int | None, last: int) -> int:
    """How many rows the database has after step `after` (None: from the first) up to step `last`."""
    mine = [METRICS.c.run_uuid == run_id, METRICS.c.key == key, METRICS.c.step <= last]
    if after is not None:
        mine.append(METRICS.c.step > after)
    return connection.execute(sa.select(sa.func.count()).select_from(METRICS).where(*mine)).scalar_one()


def in_order(points: Points) -> Points:
    """The rows by step, then by time, then by value."""
    return points[np.lexsort((points[:, 2], points[:, 1], points[:, 0]))]


def between(points: Points, after: int | None, until: int | None) -> Points:
    """The rows after step `after` up to step `until` (None: no bound)."""
    start = 0 if after is None else int(np.searchsorted(points[:, 0], after, side="right"))
    end = len(points) if until is None else int(np.searchsorted(points[:, 0], until, side="right"))
    return points[start:end]


def worth_keeping(points: Points, kept: Points | None) -> bool:
    """Whether enough rows are settled, and enough of those are new."""
    known = 0 if kept is None else len(kept)
    return len(points) > WORTH and settled(points) - known > max(known // MORE, WORTH // MORE)


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
        return np.empty((0, 3))
    sound = found.dtype == np.float64 and found.ndim == 2 and len(found) == 3 and (np.diff(found[0]) >= 0).all()
    return found.T if sound else np.empty((0, 3))


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
