"""A run as its record, tags and last values show it: how far it is, what the watch said, when it was last heard
from."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from canary_mlflow.errors import StoreError
from canary_mlflow.gates.watch.warning import WatchWarning
from canary_mlflow.tags import (
    FAILURE,
    FAILURE_REASON,
    MAX_STEPS,
    PARENT_RUN,
    ROLE,
    SEED,
    WATCH_FOUND,
    WATCH_LEVEL,
    WATCH_WARNINGS,
)
from canary_mlflow.tracking.stores.session import EVERY, name_in_cell

OPEN = ("RUNNING", "SCHEDULED")
PARENTS = ("session", "sweep")
"""The roles of what has runs below it."""
SILENT = EVERY  # seconds without news after which a page says so


@dataclass(frozen=True, kw_only=True)
class Latest:
    """The last value of one series; `timestamp` in ms."""

    step: int
    value: float
    timestamp: int


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run as its record, tags and last values show it; times in ms since 1970."""

    run_id: str
    name: str
    status: str
    started: int
    ended: int | None
    deleted: bool
    experiment: str
    artifacts: str
    tags: Mapping[str, str] = field(default_factory=dict)
    latest: Mapping[str, Latest] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.status in OPEN and not self.deleted

    @property
    def parent(self) -> str:
        """The session's id; empty for a run on its own."""
        return self.tags.get(PARENT_RUN, "")

    @property
    def step(self) -> int:
        """The last step that any series has; 0 before the first."""
        return max((one.step for one in self.latest.values()), default=0)

    @property
    def max_steps(self) -> int | None:
        """The optimizer steps that were planned, where the run says so."""
        text = self.tags.get(MAX_STEPS, "")
        return count(text) or None

    @property
    def news(self) -> int:
        """When the run was last heard from."""
        return max((one.timestamp for one in self.latest.values()), default=self.started)

    @property
    def seed(self) -> str:
        """The seed as text."""
        return self.tags.get(SEED, "")

    @property
    def short(self) -> str:
        """What to call it beside its siblings."""
        return name_in_cell(f"seed {self.seed}", self.tags) if self.seed else self.name or self.run_id[:8]

    @property
    def parental(self) -> bool:
        """Whether it is a session or a sweep, and so may have runs below it."""
        return self.tags.get(ROLE) in PARENTS

    @property
    def level(self) -> str:
        """What the watch says: healthy, warned, critical, stopped; empty if the run was not watched."""
        return self.tags.get(WATCH_LEVEL, "")

    @property
    def warnings(self) -> tuple[WatchWarning, ...]:
        """What the watch said; the tag holds the most serious ones."""
        try:
            return warnings_in(self.tags)
        except StoreError:  # somebody else's tag
            return ()

    @property
    def warned(self) -> int:
        """The number of warnings."""
        text = self.tags.get(WATCH_WARNINGS, "")
        return max(count(text), len(self.warnings))

    @property
    def failure(self) -> str:
        """Why the run broke off, in a sentence; empty if it did not."""
        kind, why = self.tags.get(FAILURE, ""), self.tags.get(FAILURE_REASON, "")
        return ": ".join(part for part in (kind, why) if part)

    def seconds_left(self, now: int) -> float | None:
        """Seconds until the end at the pace so far; None if that cannot be told."""
        if not self.running or self.max_steps is None or not 0 < self.step <= self.max_steps:
            return None
        elapsed = max(self.news - self.started, 1) / 1000
        return max(0.0, elapsed / self.step * (self.max_steps - self.step) - max(0, now - self.news) / 1000)

    def silent_for(self, now: int) -> float | None:
        """Seconds without news from a run that should be going on; None while they are too few to mention."""
        silence = (now - self.news) / 1000
        return silence if self.running and silence > SILENT else None


# ---- the watch's warnings in a tag -----------------------------------------------------------------------------------


IN_TAG = 8  # number of warnings in the tag; all are in the file


def warnings_in(said: Mapping[str, str]) -> tuple[WatchWarning, ...]:
    """The warnings in a run's tags; none for a run that was not watched. Raises StoreError for foreign JSON."""
    text = said.get(WATCH_FOUND, "[]")
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


# ---- whole numbers in tags, which anybody can set to anything --------------------------------------------------------


LONGEST = len(str(sys.maxsize))  # digits, which a database's integers have: longer than any step, seed or time


def whole(text: str) -> int | None:
    """The whole number that a text holds, with or without a minus; None for any other text. Python calls `²` a digit,
    but it is not a number."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < LONGEST else None


def count(text: str) -> int:
    """The same for a number that is never negative; 0 for any other text."""
    return max(whole(text) or 0, 0)
