"""The watch: rows of a running training go in, warnings come out. No files, no clock, no random numbers."""

from __future__ import annotations

from canary_mlflow.gates.watch.limits import Band, band_of, bands_of
from canary_mlflow.gates.watch.policy import OnCritical, WatchPolicy, parse_watch
from canary_mlflow.gates.watch.warning import Level, WatchWarning
from canary_mlflow.gates.watch.watching import HEALTHY, Watch

__all__ = [
    "HEALTHY",
    "Band",
    "Level",
    "OnCritical",
    "Watch",
    "WatchPolicy",
    "WatchWarning",
    "band_of",
    "bands_of",
    "parse_watch",
]
