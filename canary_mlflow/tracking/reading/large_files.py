"""Finds and removes the large files of a run that no verdict is computed from: weights, samples, traces.

A store may refuse to delete, and S3 may do so silently: so removal asks first, and checks afterwards.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from canary_mlflow.errors import StoreError, one_line
from canary_mlflow.tracking.reading.profile import TRACE
from canary_mlflow.tracking.reading.samples import FILE as SAMPLES
from canary_mlflow.tracking.stores.places import local_folder, without_password

if TYPE_CHECKING:
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

LARGE = ("model", SAMPLES, TRACE)
"""Paths among a run's artifacts: its weights, its samples, its profiler's trace."""
PROBE = ".canary-prune"


@dataclass(frozen=True, kw_only=True)
class Large:
    """One file. `root`: where its run's artifacts are. `path`: relative to `root`. `size`: in bytes."""

    run_id: str
    root: str
    path: str
    size: int

    @property
    def place(self) -> str:
        """Its full address."""
        return f"{self.root.rstrip('/')}/{self.path}"


def find_large(run_id: str, root: str, tracking_uri: str, more: Iterable[str] = ()) -> list[Large]:
    """The large files of a run. `more`: other folders below `root` that count as large. Raises StoreError."""
    found: dict[str, int] = {}
    with plain_errors(root):
        for name in (*LARGE, *more):
            here = local_folder(root)
            found |= _in_folder(here, name) if here is not None else _in_store(_repository(root, tracking_uri), name)
    return [Large(run_id=run_id, root=root, path=path, size=size) for path, size in sorted(found.items())]


def refuse_undeletable(files: Sequence[Large], tracking_uri: str) -> None:
    """Raise StoreError if the store does not let files be deleted, before any is. A bucket is tried with an empty file,
    which it must accept and delete."""
    for root in sorted({file.root for file in files}):
        here = local_folder(root)
        if here is None:
            _probe(root, tracking_uri)
            continue
        for folder in sorted({(here / file.path).parent for file in files if file.root == root}):
            if not os.access(folder, os.W_OK | os.X_OK):
                raise _kept(str(folder), "it is read-only")


def remove(files: Sequence[Large], tracking_uri: str) -> None:
    """Delete the files and the folders that they leave empty. Raises StoreError if a file is still there."""
    for root in sorted({file.root for file in files}):
        mine, here = [file for file in files if file.root == root], local_folder(root)
        repository = _repository(root, tracking_uri)
        with plain_errors(root):
            for file in mine:
                repository.delete_artifacts(file.path)
                if here is not None:
                    _tidy(here, (here / file.path).parent)
        left = {one.path for one in find_large(mine[0].run_id, root, tracking_uri, {_top(file) for file in mine})}
        if still := sorted(left & {file.path for file in mine}):
            raise _kept(root, f"{still[0]} is still there")


def _top(file: Large) -> str:
    return posixpath.dirname(file.path) or file.path


def _in_folder(root: Path, name: str) -> dict[str, int]:
    """Path → size of the files in a folder. Links are not followed: what they point to is not the run's."""
    top = root / name
    if any(place.is_symlink() for place in (root, top, *top.parents) if place == root or root in place.parents):
        return {}
    if top.is_file():
        return {name: top.stat().st_size}
    files = (Path(folder, one) for folder, _, names in os.walk(top) for one in names)
    return {one.relative_to(root).as_posix(): one.stat().st_size for one in files if not one.is_symlink()}


def _in_store(repository: ArtifactRepository, name: str) -> dict[str, int]:
    above = posixpath.dirname(name)
    listed = repository.list_artifacts(above or None)
    return dict(_below(repository, [one for one in listed if one.path.strip("/") == name]))


def _below(repository: ArtifactRepository, listed: Iterable[Any]) -> Iterator[tuple[str, int]]:
    for one in listed:
        if one.is_dir:
            yield from _below(repository, repository.list_artifacts(one.path))
        else:
            yield one.path, int(one.file_size or 0)


def _probe(root: str, tracking_uri: str) -> None:
    repository = _repository(root, tracking_uri)
    with TemporaryDirectory() as folder, plain_errors(root):
        Path(folder, PROBE).touch()
        repository.log_artifact(str(Path(folder, PROBE)))
        repository.delete_artifacts(PROBE)
        left = any(one.path == PROBE for one in repository.list_artifacts())
    if left:
        raise _kept(root, "it deletes nothing")


def _repository(root: str, tracking_uri: str) -> ArtifactRepository:
    return get_artifact_repository(root, tracking_uri=tracking_uri)


def _tidy(root: Path, folder: Path) -> None:
    with suppress(OSError):  # one that is not empty
        while root in folder.parents:
            folder.rmdir()
            folder = folder.parent


@contextmanager
def plain_errors(place: str) -> Iterator[None]:
    """Turn whatever a store raises into a StoreError of one line. Each kind has its own errors: boto's are no
    OSError."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        raise _kept(place, one_line(error)) from error


def _kept(place: str, what: str) -> StoreError:
    return StoreError(
        f"{without_password(place)}: {what}; expected an artifact store that lists and deletes files; let this account "
        "delete there, then run canary prune again"
    )
