"""Training histories as files become series; no MLflow and no torch."""

from __future__ import annotations

from canary_mlflow.files.history import History
from canary_mlflow.files.reading import read_history

__all__ = ["History", "read_history"]
