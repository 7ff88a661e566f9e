"""Where a store and a run's files lie, and how the store's address may be shown."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from mlflow import MlflowClient


def cache_dir() -> Path:
    """The folder for what can be made again: CANARY_CACHE, else canary-mlflow in the XDG cache folder."""
    if chosen := os.environ.get("CANARY_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "canary-mlflow"


def without_password(uri: str) -> str:
    """A store's address without its password, fit to be shown and written down. Parsed by hand: SQLAlchemy accepts
    passwords with `#`, `/` and `[`, which the standard library takes for other parts or an error."""
    uri = re.sub(r"^sqlite\+pysqlite:///file:([^?]*)\?mode=ro.*", r"sqlite:///\1", uri)  # opened read-only
    word = "[^@/]*" if uri.startswith("http") else "[^@]*"
    shown = re.sub(rf"^([\w+.-]+://[^:/@]*:){word}@", r"\1***@", uri)
    return re.sub(r"([?&]password=)[^&]*", r"\1***", shown)


def sqlite_file(uri: str) -> Path | None:
    """The absolute path of a SQLite URI's database; None for any other store, or one in memory."""
    scheme, _, path = uri.partition(":///")
    path = path.partition("?")[0].removeprefix("file:")  # how SQLite spells a read-only database
    if scheme.partition("+")[0] != "sqlite" or path in ("", ":memory:"):
        return None
    return Path(unquote(path)).absolute()


def artifact_folder(client: MlflowClient, run_id: str) -> Path | None:
    """The folder of the run's artifacts on this machine; None if they are behind a server or in a bucket."""
    from mlflow.exceptions import MlflowException

    try:
        uri: str = client.get_run(run_id).info.artifact_uri
    except MlflowException:
        return None  # a server that has just died
    return None if client.tracking_uri.startswith("http") else local_folder(uri)


def local_folder(uri: str) -> Path | None:
    """The folder that an artifact URI names; None for a bucket or a server."""
    from mlflow.utils.file_utils import local_file_uri_to_path

    return Path(local_file_uri_to_path(uri)) if urlsplit(uri).scheme in ("", "file") else None
