"""Checks whether files are those with which a version was sealed. Reads only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from canary_mlflow.errors import UsageError
from canary_mlflow.registry.backends import registry_of
from canary_mlflow.registry.guard.binding import file_digests, files_at
from canary_mlflow.registry.guard.seal import changed_files
from canary_mlflow.registry.pruning.pruned import in_tags, refuse_pruned
from canary_mlflow.registry.versions import EVIDENCE_ONLY, Weights, seal_of
from canary_mlflow.resolve import find_named

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

ADDED_BY_MLFLOW = "registered_model_meta"  # what MLflow writes beside the files that it fetches from models:/…


def named_version(client: MlflowClient, text: str) -> ModelVersion:
    """`models:/M@champion`, `M@champion`, `models:/M/3` or `M/3`. Raises UsageError, NoSuchModel, NoSuchVersion."""
    found = find_named(client, text)
    if found is None:
        raise UsageError(f"{text!r}: expected a version, such as models:/MODEL@champion or models:/MODEL/3")
    return found


def sealed_files(client: MlflowClient, found: ModelVersion) -> dict[str, str]:
    """Relative name → sha256, as the seal of the version says. Raises UsageError where no trusted seal names files."""
    subject = f"version {found.version} of {found.name!r}"
    rows = registry_of(client).checked_rows(str(found.name), int(found.version))
    if rows is None:
        raise UsageError(f"{subject}: its registry keeps no ledger; expected a guarded one; see docs/guard.md")
    row = seal_of((one.row for one in rows), found)
    if row is None:
        raise UsageError(f"{subject}: it has no seal; expected a version that canary registered")
    for what in next(one.problems for one in rows if one.row is row):
        raise UsageError(
            f"{subject}: its seal, row {row.seq} of the ledger: {what}; expected a row that holds; if its key is a "
            "server's or a colleague's: canary keys trust FILE"
        )
    if row.facts.get("weights") == Weights.NONE:
        raise UsageError(f"{subject}: {EVIDENCE_ONLY}; expected one with weights")
    files: dict[str, str] = row.facts["files"]
    return files


def files_of(client: MlflowClient, found: ModelVersion) -> dict[str, str]:
    """The same for the files as they are now in the registry's place. Raises StoreError; UsageError if they were given
    up."""
    refuse_pruned(found, in_tags(found.tags or {}))
    address = client.get_model_version_download_uri(found.name, found.version)
    with files_at(address, store=client.tracking_uri) as place:
        return file_digests(place)


def files_in(folder: Path) -> dict[str, str]:
    """The same for a folder. Raises UsageError, StoreError."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: {'a file' if folder.exists() else 'not there'}; expected a folder with weights")
    return file_digests(folder)


def differing(sealed: dict[str, str], there: dict[str, str]) -> list[str]:
    """`model.safetensors changed`, one for each file that is not as it was sealed; none where all are."""
    beside = {name: found for name, found in there.items() if name != ADDED_BY_MLFLOW or name in sealed}
    return changed_files(sealed, beside)
