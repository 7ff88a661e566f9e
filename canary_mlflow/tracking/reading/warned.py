"""The watch's warnings as a run's tags keep them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from canary_mlflow.errors import StoreError
from canary_mlflow.tags import WATCH_FOUND
from gates.watch.warning import WatchWarning

IN_TAG = 8  # number of warnings in the tag; all are in the file


def warnings_in(tags: Mapping[str, str]) -> tuple[WatchWarning, ...]:
    """The warnings in a run's tags; none for a run that was not watched. Raises StoreError for foreign JSON."""
    text = tags.get(WATCH_FOUND, "[]")
    try:
        return tuple(WatchWarning.from_dict(item) for item in json.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"tag {WATCH_FOUND}: {text[:80]!r}; expected a JSON list of warnings; delete the tag"
        ) from error


def worst_of(warnings: Iterable[WatchWarning], most: int = IN_TAG) -> list[WatchWarning]:
    """The most serious warnings, preferring each level's earliest, in the order in which they came."""
    ordered = list(warnings)
    kept = sorted(ordered, key=lambda one: (-one.level, one.step))[:most]
    return [one for one in ordered if one in kept]


def brief(warning: WatchWarning) -> str:
    """`WARN kl at step 40`."""
    return f"{warning.level.name} {warning.stream} at step {warning.step}"


def sentence(warning: WatchWarning) -> str:
    """One line for a screen."""
    return f"{brief(warning)}: {warning.seen}. Usually: {warning.meaning}. Try: {warning.advice}"
