"""The URIs of guarded databases, whose registry MLflow asks the guard's plugin for (registry/plugin.py)."""

from __future__ import annotations

from urllib.parse import urlsplit

from canary_mlflow.mlflow_internals import can_guard

SHORT = "canary"  # canary:sqlite:///…
PREFIX = f"{SHORT}+"  # canary+sqlite:///…; the same names stand as entry points in pyproject.toml
SCHEMES = (
    SHORT,
    *(f"{PREFIX}{name}" for name in ("sqlite", "postgresql", "postgresql+psycopg", "postgresql+psycopg2")),
)


def plain_uri(uri: str) -> str:
    """The database behind a guarded URI; any other URI unchanged."""
    for start in (PREFIX, f"{SHORT}:"):
        if uri.startswith(start):
            return uri.removeprefix(start)
    return uri


def is_guarded(uri: str) -> bool:
    """Whether the plugin handles the URI."""
    return urlsplit(uri).scheme in SCHEMES


def guarded_uri(uri: str) -> str:
    """The guarded URI of a database; for anything else (a server, a database without triggers), the URI itself. So for
    any URI where this MLflow is too old for a guard."""
    return f"{PREFIX}{uri}" if can_guard() and f"{PREFIX}{urlsplit(uri).scheme}" in SCHEMES else uri
