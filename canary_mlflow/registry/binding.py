"""What a verdict was about, as digests: the runs as they were judged and the files of the version."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from canary_mlflow.errors import StoreError, UsageError, one_line
from canary_mlflow.files.source import open_regular
from canary_mlflow.ledger.canonical import digest

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from canary_mlflow.registry.seal import Sealed
    from gates.model.records import Run, Series

CHUNK = 1 << 20  # bytes read at once


@dataclass(frozen=True, kw_only=True)
class Binding:
    """`version_created`: milliseconds since 1970. `artifact`: digest over names and contents of the version's files,
    with their number. `runs`: run id → digest of all that a judge reads of it, both sides. `seal_row`: the row of the
    ledger that sealed the files; None where nobody asked for it."""

    version_created: int
    source: str
    artifact: str
    runs: Mapping[str, str]
    seal_row: int | None = None

    def to_facts(self) -> dict[str, Any]:
        """As it stands in the ledger."""
        runs = dict(sorted(self.runs.items()))
        return {"source": self.source, "artifact": self.artifact, "runs": runs, "seal_row": self.seal_row}


def bind(client: MlflowClient, version: ModelVersion, runs: Iterable[Run], sealed: Sealed | None = None) -> Binding:
    """The binding of a version as it is now. `sealed`: its files, where they have been read and checked already.

    Raises StoreError when its files cannot be read.
    """
    place = client.get_model_version_download_uri(version.name, version.version)
    return Binding(
        version_created=int(version.creation_timestamp),
        source=str(version.source),
        artifact=sealed.artifact if sealed else artifact_digest(place),
        runs=run_digests(runs),
        seal_row=sealed.row if sealed else None,
    )


def run_digests(runs: Iterable[Run]) -> dict[str, str]:
    """Run id → digest."""
    return {run.run_id: run_digest(run) for run in runs}


def run_digest(run: Run) -> str:
    """sha256 over the run's series, bit for bit, and the facts beside them that decide a verdict; after a dot that of
    its environment: the host by which speeds are compared, the memory, the commit that a report names; after another
    that of its configuration, any difference in which makes other facts a change on purpose."""
    return f"{measured_digest(run)}.{digest(dict(run.environment))}.{digest(dict(run.configuration))}"


def is_same_run(then: str, now: str) -> bool:
    """Whether two digests of a run say the same. One of a row from before environments, or configurations, were part of
    it says nothing of them."""
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
            **({"facts": dict(run.facts)} if run.facts else {}),  # none in runs that were judged before there were any
        }
    )


def series_digest(series: Series) -> str:
    """sha256 over steps and values; every NaN counts as the same, databases keep but one."""
    values = np.where(np.isnan(series.values), np.nan, series.values)
    return hashlib.sha256(series.steps.astype("<i8").tobytes() + values.astype("<f8").tobytes()).hexdigest()


def artifact_digest(uri: str, destination: str = "") -> str:
    """`N files, sha256:…` over the relative names and contents of everything under `uri`.

    A folder that is not there has no files, which is a digest too: files that turn up later are a change.
    `destination`: where a server keeps what it serves under `mlflow-artifacts:`.
    """
    with files_at(uri, destination) as place:
        return digest_of_all(file_digests(place))


@contextmanager
def files_at(uri: str, destination: str = "") -> Iterator[Path]:
    """The files under `uri`, for as long as the block lasts: their own place, or a copy. Raises StoreError."""
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException
    from mlflow.utils.file_utils import local_file_uri_to_path
    from mlflow.utils.uri import is_local_uri

    from canary_mlflow.registry.server_files import behind_server

    place = behind_server(uri, destination)
    if is_local_uri(place):
        yield Path(local_file_uri_to_path(place))
        return
    with tempfile.TemporaryDirectory(prefix="canary-artifact-") as folder:
        try:
            found = download_artifacts(artifact_uri=place, dst_path=folder)
        except (MlflowException, OSError, ImportError) as error:  # a store's own package may be missing here
            if nothing_at(place):
                yield Path(folder)
                return
            raise StoreError(f"{uri}: {one_line(error)}; expected files of a version that can be read") from error
        yield Path(found)


def nothing_at(place: str) -> bool:
    """Whether a store answers, and has nothing there: where files were removed, a bucket has no folder either."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    try:
        return not get_artifact_repository(place).list_artifacts()
    except Exception:  # noqa: BLE001  # each kind of store has errors of its own
        return False


def file_digests(place: Path, known: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Relative name → sha256 of a local file, or of all in a folder. `known`: of those that were read already. Raises
    StoreError; UsageError for a link to outside: what is there may change behind it, and may be nobody's to show."""
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
    """The folders of a run that lead to a place among its artifacts, which MLflow makes itself: from there up to the
    run's. None for a place elsewhere, and nothing of what lies above a run: a store may be linked to a larger disk."""
    above = [place, *place.parents]
    roots = [at for at, folder in enumerate(above) if folder.name == "artifacts"]
    yield from above[: roots[0] + 2] if roots else ()


def digest_of_all(digests: Mapping[str, str]) -> str:
    """The digest of a version's files from theirs."""
    return f"{len(digests)} files, sha256:{digest(dict(digests))}"


def file_digest(file: Path) -> str:
    """sha256 of a file's bytes."""
    found = hashlib.sha256()
    with open_regular(file) as stream:
        while chunk := stream.read(CHUNK):
            found.update(chunk)
    return found.hexdigest()


def changes(facts: Mapping[str, Any], now: Binding) -> list[str]:
    """What differs from what a ledger row says, in words."""
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
