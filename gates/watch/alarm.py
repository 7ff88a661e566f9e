"""Turns findings, row by row, into warnings without repeats."""

from __future__ import annotations

from gates.watch.policy import RowRules
from gates.watch.warning import Detection, Detector, Level


class Alarm:
    """One detector with what it has already said.

    A level is said once, and again only after the detector was silent for `quiet` rows, a number that doubles each
    time; STOP is never repeated. A CRITICAL that lasts for `hold` rows becomes STOP; with -1, never.
    """

    __slots__ = ("_held", "_hold", "_quiet", "_said", "_silent", "detector", "held_stop", "live")

    def __init__(self, detector: Detector, rows: RowRules, hold: int) -> None:
        self.detector = detector
        self.live = False  # whether a row without a finding still has to be noted
        self.held_stop = False  # whether STOP came from a CRITICAL that lasted
        self._quiet, self._hold = rows.quiet, hold
        self._said = 0
        self._silent = self._held = 0

    def note(self, finding: Detection | None) -> Detection | None:
        """Take what the detector found at one row; returns what is to be said."""
        if finding is None:
            self._held = 0
            self._silent += 1
            if self._silent >= self._quiet:
                self.live = False
                if self._said < Level.STOP:
                    self._said = 0
                self._quiet *= 2
            return None
        self.live = True
        self._silent = 0
        self._held = self._held + 1 if finding.level >= Level.CRITICAL else 0
        if self._held == self._hold and finding.level is Level.CRITICAL and self._said < Level.STOP:
            self._said = Level.STOP
            self.held_stop = True
            return Detection(Level.STOP, f"CRITICAL for {self._hold} rows: {finding.seen}")
        if finding.level > self._said:
            self._said = finding.level
            return finding
        return None
