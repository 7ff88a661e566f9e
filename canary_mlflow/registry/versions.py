"""Model versions whose evidence is a session, and the champion among them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

from mlflow.exceptions import MlflowException

from canary_mlflow import tags
from canary_mlflow.errors import NoSuchModel, NoSuchVersion
from canary_mlflow.gates.model.wording import listed
from canary_mlflow.ledger.chain import Kind, Row

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

CHAMPION = "champion"
ANCHOR = "anchor"
SHOWN = 10  # names listed in an error
EVIDENCE_ONLY = "evidence only: no weights to load"  # a note of the verdict


class Weights(StrEnum):
    """What a version says about its weights."""

    FILES = "files"  # they are among its files
    NONE = "none"  # kept elsewhere, too large, or nowhere: the version is evidence only


def is_evidence_only(found: ModelVersion) -> bool:
    """Whether the version says that it has no weights."""
    return bool((found.tags or {}).get(tags.WEIGHTS) == Weights.NONE)


def ensure_model(client: MlflowClient, model_name: str) -> None:
    """Create the registered model unless it already exists."""
    about = f"Each version's description is its verdict against the champion then. All: canary audit log {model_name}"
    try:
        client.create_registered_model(model_name, description=about)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def champion_number(client: MlflowClient, model: str) -> str | None:
    """As `champion`, but only the number."""
    return holder_of(client, model, CHAMPION)


def holder_of(client: MlflowClient, model: str, alias: str) -> str | None:
    """The number of the version that an alias names; None if it names none. Raises NoSuchModel."""
    try:
        number = client.get_registered_model(model).aliases.get(alias)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise NoSuchModel(no_such_model(client, model)) from error
    return None if number is None else str(number)


def seal_of(rows: Iterable[Row], found: ModelVersion) -> Row | None:
    """The row that sealed the version: the first one, whatever came later."""
    about = int(found.version), int(found.creation_timestamp)
    return next((row for row in rows if row.kind == Kind.SEAL and (row.version, row.version_created) == about), None)


def find_model(client: MlflowClient, model: str) -> None:
    """Raise NoSuchModel, which lists the existing models, unless the model exists."""
    champion_number(client, model)


def find_version(client: MlflowClient, model: str, version: str) -> ModelVersion:
    """The model version. Raises NoSuchModel or NoSuchVersion, which list what exists."""
    try:
        return client.get_model_version(model, version)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        champion_number(client, model)  # raises if the model itself is unknown
        numbers = sorted(
            (int(found.version) for found in client.search_model_versions(f"name={tags.quoted(model)}")), reverse=True
        )
        there = listed([str(number) for number in numbers], SHOWN) or "none yet"
        raise NoSuchVersion(f"version {version!r} of {model!r}: not in the registry; versions: {there}") from error


def no_such_model(client: MlflowClient, model: str) -> str:
    """One line that lists the existing models, nearest names first."""
    names = [found.name for found in client.search_registered_models(max_results=1000)]
    near = difflib.get_close_matches(model, names, n=3)
    rest = [name for name in names if name not in near]
    there = listed(near + rest, SHOWN) or "none yet: `canary run` or `canary register` makes the first"
    return f"model {model!r}: not in the registry; models: {there}"


def no_such_alias(client: MlflowClient, model: str, alias: str) -> str:
    """One line that lists the existing aliases."""
    aliases = sorted(client.get_registered_model(model).aliases)
    return f"alias {alias!r} of {model!r}: names no version; aliases: {listed(aliases, SHOWN) or 'none yet'}"


def session_of(version: ModelVersion) -> str | None:
    """The parent run whose children are the evidence; for a version registered by other means, its source run."""
    said: dict[str, str] = version.tags or {}
    return said.get(tags.SESSION_ID) or version.run_id or None


def aliases_of(client: MlflowClient, found: ModelVersion) -> list[str]:
    """The aliases that the version holds."""
    named = client.get_registered_model(found.name).aliases
    return [alias for alias, number in named.items() if str(number) == str(found.version)]
