"""Observers receive a run's rows as they close: the sinks that keep them, the watch that judges them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from canary_mlflow.errors import one_line
from canary_mlflow.gates.model.records import Raised

if TYPE_CHECKING:
    from canary_mlflow.tracking.delivery.recorder import Recorder


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run ended. failure: "" | instability | oom | timeout | interrupted | error."""

    failure: str = ""
    reason: str = ""
    raised: Raised | None = None  # the exception that ended it
    last_step: int = 0  # the last optimizer step that was ended

    @property
    def completed(self) -> bool:
        """Training reached its end."""
        return not self.failure


class Observer:
    """Does nothing; an observer overrides what it needs.

    It is called in the training's own thread, so each call must be short. One that raises does not stop the training
    and is called again for the next row; the rows that it missed are counted, and reported with the first error at the
    end.
    """

    name = "observer"

    def begin(self, recorder: Recorder | None) -> None:
        """Training begins. `recorder` takes tags and artifacts for the run; None when there is no store."""

    def row_closed(self, step: int, row: Mapping[str, float]) -> None:
        """The row of an optimizer step is complete: canonical name → value. It never changes afterwards."""

    def late(self, step: int, row: Mapping[str, float]) -> None:
        """Values logged after the end, such as an evaluation's."""

    def finish(self, ending: Ending) -> Mapping[str, str]:
        """No more rows: close what is open. Returns tags for the run."""
        return {}


class RunningObservers:
    """The observers of one run, called in order; one that raises stops nothing."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._all = tuple(observers)
        self._first: dict[str, str] = {}  # observer → what it raised first
        self._times: dict[str, int] = {}
        self._of_rows = [(one, one.row_closed) for one in self._all if type(one).row_closed is not Observer.row_closed]

    def call_each(self, what: str, act: Callable[[Observer], object]) -> None:
        """Let each observer act. What one misses by raising is counted, and it still receives the next row."""
        for observer in self._all:
            try:
                act(observer)
            except Exception as error:  # noqa: BLE001 - watching and keeping must not stop what is watched
                self._broke(observer, what, error)

    def row_closed(self, step: int, row: Mapping[str, float]) -> None:
        """The same for a row, without a call more than needed: this is done in every step."""
        for observer, act in self._of_rows:
            try:
                act(step, row)
            except Exception as error:  # noqa: BLE001 - as above
                self._broke(observer, "row_closed", error)

    @property
    def troubles(self) -> dict[str, str]:
        """What broke → why, with the number of times."""
        times = {name: f" ({count} times)" for name, count in self._times.items() if count > 1}
        return {name: why + times.get(name, "") for name, why in self._first.items()}

    def _broke(self, observer: Observer, what: str, error: Exception) -> None:
        self._times[observer.name] = self._times.get(observer.name, 0) + 1
        self._first.setdefault(observer.name, f"{what}: {type(error).__name__}: {one_line(error)}")

    def __contains__(self, name: str) -> bool:
        return any(observer.name == name for observer in self._all)
