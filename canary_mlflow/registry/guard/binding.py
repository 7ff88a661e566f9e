"""What a verdict was about, as digests: of the runs as they were judged, and of the version's files."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.utils.file_utils import local_file_uri_to_path
from mlflow.utils.uri import is_local_uri

from canary_mlflow.errors import StoreError, UsageError, one_line
from canary_mlflow.files.source import open_regular
from canary_mlflow.ledger.chain import digest
from canary_mlflow.registry.guard.order import Binding
from canary_mlflow.registry.guard.origin import behind_server, out_of_reach, server_of

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.gates.model.records import Run, Series
    from canary_mlflow.registry.backends.registry import Registry

CHUNK = 1 << 20  # bytes read at once


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """A seal that held when it was checked. `row`: its number in the ledger; None without a ledger."""

    artifact: str
    row: int | None = None


def bind(registry: Registry, found: ModelVersion, runs: Iterable[Run], sealed: Sealed | None = None) -> Binding:
    """The binding of a version as it is now; without digests where nothing is signed. `sealed`: its files, if they were
    already read and checked.

    Raises StoreError if its files cannot be read.
    """
    created, source = int(found.creation_timestamp), str(found.source)
    if not registry.signs:
        return Binding(version_created=created, source=source, artifact="", runs={})
    place = registry.client.get_model_version_download_uri(found.name, found.version)
    return Binding(
        version_created=created,
        source=source,
        artifact=sealed.artifact if sealed else artifact_digest(place),
        runs=run_digests(runs),
        seal_row=sealed.row if sealed else None,
    )


def run_digests(runs: Iterable[Run]) -> dict[str, str]:
    """Run id → digest."""
    return {run.run_id: run_digest(run) for run in runs}


def run_digest(run: Run) -> str:
    """Three sha256 digests joined by dots: over the run's series, bit for bit, with the facts that decide a verdict;
    over its environment (the host by which speeds are compared, the memory, the commit that a report names); and over
    its configuration, in which a difference may explain differing facts."""
    return f"{measured_digest(run)}.{digest(dict(run.environment))}.{digest(dict(run.configuration))}"


def is_same_run(then: str, now: str) -> bool:
    """Whether two digests of a run agree. Digests in rows from before environments, or configurations, were part of
    them are compared without these."""
    parts = then.split(".")
    return now.split(".")[: len(parts)] == parts


def measured_digest(run: Run) -> str:
    """sha256 of what was measured."""
    return digest(
        {
            "run": run.run_id,
            "completed": run.completed,
            "failure": run.failure,
            "raised": asdict(run.raised) if run.raised else None,
            "learned": run.learned,
            "invariants": run.invariants,
            "critical_held": run.critical_held,
            "not_promotable": run.not_promotable,
            "seed": run.seed,
            "nan_steps": run.nan_steps,
            "inf_steps": run.inf_steps,
            "last_step": run.last_step,
            "workload": dict(run.workload),
            "hardware": dict(run.hardware),
            "series": {name: series_digest(series) for name, series in run.series.items()},
            **({"facts": dict(run.facts)} if run.facts else {}),  # left out if empty, as in older runs
        }
    )


def series_digest(series: Series) -> str:
    """sha256 over steps and values. All NaNs count as the same one, as databases keep only one kind."""
    values = np.where(np.isnan(series.values), np.nan, series.values)
    return hashlib.sha256(series.steps.astype("<i8").tobytes() + values.astype("<f8").tobytes()).hexdigest()


def artifact_digest(uri: str) -> str:
    """`N files, sha256:…` over the relative names and contents of everything under `uri`. A missing folder has no
    files, which is also a digest: files that turn up later are a change."""
    with files_at(uri) as place:
        return digest_of_all(file_digests(place))


@contextmanager
def files_at(uri: str, destination: str = "", store: str = "") -> Iterator[Path]:
    """The files under `uri`, for the length of a block: in their own place, or as a copy. `destination`: where a server
    keeps what it serves under `mlflow-artifacts:`; `store`: where the version is recorded. Raises StoreError."""
    if said := out_of_reach(uri, destination, store):
        raise StoreError(said)
    place, server = behind_server(uri, destination), server_of(store) or None
    if is_local_uri(place):
        yield Path(local_file_uri_to_path(place))
        return
    with tempfile.TemporaryDirectory(prefix="canary-artifact-") as folder:
        try:
            found = download_artifacts(artifact_uri=place, dst_path=folder, tracking_uri=server)
        except (MlflowException, OSError, ImportError) as error:  # a store's own package may be missing here
            if nothing_at(place, server):
                yield Path(folder)
                return
            raise StoreError(f"{uri}: {one_line(error)}; expected files of a version that can be read") from error
        yield Path(found)


def nothing_at(place: str, server: str | None) -> bool:
    """Whether a store answers and has nothing there: once its files are removed, a bucket has no folder either."""
    try:
        return not get_artifact_repository(place, server).list_artifacts()
    except Exception:  # noqa: BLE001  # each kind of store has errors of its own
        return False


def file_digests(place: Path, known: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Relative name → sha256 of a local file, or of all files in a folder. `known`: digests of files already read.
    Raises StoreError; UsageError for a link that leads outside: its target may change unseen, and may be private."""
    if linked := next((folder for folder in own_folders(place) if folder.is_symlink()), None):
        raise UsageError(f"{linked.name}: a link; expected the run's own folder; copy what it links to in its place")
    links = (found for found in place.rglob("*") if found.is_symlink())
    if linked := next((found for found in links if not found.resolve().is_relative_to(place.resolve())), None):
        name = linked.relative_to(place)
        raise UsageError(f"{name}: a link to outside; expected files of the version; copy them in its place")
    files = [place] if place.is_file() else sorted(found for found in place.rglob("*") if found.is_file())
    try:
        named = {found.relative_to(place).as_posix(): found for found in files}
        return {name: known[name] if name in known else file_digest(found) for name, found in named.items()}
    except OSError as error:
        raise StoreError(f"{error.filename}: {error.strerror}; expected a file of the version, readable") from error


def own_folders(place: Path) -> Iterator[Path]:
    """The folders that MLflow itself makes on the way to a place among a run's artifacts: from there up to the run's.
    Empty for a place elsewhere. Folders above a run's are left out: a store may be linked to a larger disk."""
    above = [place, *place.parents]
    roots = [at for at, folder in enumerate(above) if folder.name == "artifacts"]
    yield from above[: roots[0] + 2] if roots else ()


def digest_of_all(digests: Mapping[str, str]) -> str:
    """The digest of a version's files, from the digests of the files."""
    return f"{len(digests)} files, sha256:{digest(dict(digests))}"


def folder_digests(digests: Mapping[str, str]) -> dict[str, str]:
    """Folder → the digest of the files in and below it, by the digests of all files; `.` is the whole."""
    below: dict[str, dict[str, str]] = {}
    for name, one in digests.items():
        for folder in PurePosixPath(name).parents:
            below.setdefault(str(folder), {})[str(PurePosixPath(name).relative_to(folder))] = one
    return {folder: digest_of_all(files) for folder, files in below.items()}


def file_digest(file: Path) -> str:
    """sha256 of a file's bytes."""
    found = hashlib.sha256()
    with open_regular(file) as stream:
        while chunk := stream.read(CHUNK):
            found.update(chunk)
    return found.hexdigest()


def changes(facts: Mapping[str, Any], now: Binding) -> list[str]:
    """What differs now from what a ledger row says, in words."""
    found = []
    if facts.get("source") != now.source:
        found.append("the version's source is another")
    if facts.get("artifact") != now.artifact:
        found.append(f"its files changed ({facts.get('artifact')} then, {now.artifact} now)")
    then: Mapping[str, str] = facts.get("runs") or {}
    found += [f"run {run_id} is gone" for run_id in then if run_id not in now.runs]
    found += [
        f"the metrics or facts of run {run_id} changed"
        for run_id, value in then.items()
        if run_id in now.runs and not is_same_run(value, now.runs[run_id])
    ]
    return found
