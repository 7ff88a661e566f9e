"""Reads training histories from files into series, without MLflow and torch."""

from __future__ import annotations

from canary_mlflow.files.history import History
from canary_mlflow.files.reading import read_history

__all__ = ["History", "read_history"]
