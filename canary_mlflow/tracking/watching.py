"""The watch over a running training: its warnings go to the screen, the run's tags and warnings.jsonl at once."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from canary_mlflow import tags
from canary_mlflow.errors import StoreError, UsageError, one_line
from canary_mlflow.gates.model.records import Run
from canary_mlflow.gates.watch import Band, Level, OnCritical, Watch, WatchPolicy, WatchWarning, bands_of
from canary_mlflow.notify.delivery import tell
from canary_mlflow.notify.events import of_warning
from canary_mlflow.shown import visible
from canary_mlflow.tracking.delivery.lines import LineFile, to_line
from canary_mlflow.tracking.delivery.recorder import Recorder
from canary_mlflow.tracking.describing.compact import compact
from canary_mlflow.tracking.ending import Target
from canary_mlflow.tracking.observers import Ending, Observer
from canary_mlflow.tracking.probes import BEAT
from canary_mlflow.tracking.reading.facts import brief, sentence, worst_of
from canary_mlflow.tracking.reading.histories import read_runs
from canary_mlflow.tracking.sinks import SinkSetting

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("canary_mlflow")

NAME = "warnings.jsonl"
FAST = 0.05
"""Seconds below which a step is short, and its row may wait for the next ones: the watch then takes half as long for
each, because between two short steps most of its data falls out of the processor's cache."""
_LEVELS = {"healthy": "healthy", "warned": "warned", "critical": "critical", "failed": "critical"}


class Watching(Observer):
    """Shows each closed row to the watch, and passes on its warnings.

    `max_steps`: planned optimizer steps, which tell how many a stop has saved; 0 if nobody knows.
    """

    name = "watch"

    def __init__(self, watch: Watch, setting: SinkSetting, max_steps: int, run_id: str = "") -> None:
        self.watch = watch
        self._run_id = run_id
        self._max_steps = max_steps
        self._file = LineFile((setting.artifacts or setting.folder) / NAME)
        self._in_place = setting.artifacts is not None
        self._recorder: Recorder | None = None
        self._notices = 0
        self._rows: list[tuple[int, Mapping[str, float]]] = []  # that wait for the next ones
        self._said_goes_on = False
        self.stop_requested = False  # whether training should end now

    @property
    def reason(self) -> str:
        """Why the run was stopped."""
        found = self.watch.hopeless
        return (
            f"the watch stopped it for what step {found.step} showed: {found.stream} {found.seen} ({found.rule})"
            if found
            else ""
        )

    def begin(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        self._tag(self._tags())

    def row_closed(self, step: int, row: Mapping[str, float]) -> None:
        if step > 0:  # 0: logged before training
            self._rows.append((step, row))
            # A row closes as the next step ends.
            due = (step + 1) % BEAT == 0 or row.get("step_time", FAST) >= FAST
            if due or not self.watch.can_wait(len(self._rows), row):
                self._observe()

    def _observe(self) -> None:
        """Show the watch the rows that wait, one by one."""
        while self._rows:  # one by one, so that none is lost if a warning cannot be written
            step, row = self._rows.pop(0)
            said = self.watch.observe(step, row)
            if said or len(self.watch.notices) > self._notices:
                self._pass_on(said)

    def finish(self, ending: Ending) -> Mapping[str, str]:
        self._observe()
        self._pass_on(self.watch.finish(ending.completed))
        self._file.close()
        if self._recorder is not None and not self._in_place and self.watch.warnings:
            self._recorder.move(self._file.path)
        return compact("watch", {**self._tags(), **self._lead(ending.last_step)})

    def _pass_on(self, said: Sequence[WatchWarning]) -> None:
        for notice in self.watch.notices[self._notices :]:
            log.warning("canary: watch: %s", visible(notice))
        self._notices = len(self.watch.notices)
        for warning in said:
            log.warning("canary: %s", visible(sentence(warning)))
            if warning.level >= Level.CRITICAL:
                tell({warning.level.name}, partial(of_warning, warning, self._run_id))
            self._file.append(to_line(warning.to_dict()))
        if said:
            self.stop_requested = self.watch.stop_requested
            self._tag(self._tags())
        if self.watch.hopeless is not None and not self.stop_requested and not self._said_goes_on:
            self._said_goes_on = True
            log.warning("canary: %s", goes_on(self.watch.policy.on_critical))

    def _tag(self, found: Mapping[str, str]) -> None:
        if self._recorder is not None:
            self._recorder.tag(compact("watch", found))

    def _tags(self) -> dict[str, str]:
        found = self.watch.warnings
        worst = "stopped" if self.stop_requested else _LEVELS[self.watch.verdict]
        return {
            tags.WATCH_POLICY: self.watch.policy.name,
            tags.WATCH_LEVEL: worst,
            tags.WATCH_WARNINGS: str(len(found)),
            tags.WATCH_FIRST: brief(found[0]) if found else "",
            tags.WATCH_CRITICAL_HELD: self.watch.critical_held,
            tags.WATCH_FOUND: json.dumps([warning.to_dict() for warning in worst_of(found)]),
        }

    def _lead(self, last_step: int) -> dict[str, str]:
        """How early the first warning came, and what a stop has saved, in optimizer steps."""
        found = self.watch.warnings
        lead = {tags.WATCH_LEAD_STEPS: str(last_step - found[0].step)} if found else {}
        saved = (
            {tags.WATCH_STEPS_SAVED: str(self._max_steps - last_step)}
            if self.stop_requested and self._max_steps
            else {}
        )
        return lead | saved


def goes_on(on_critical: OnCritical) -> str:
    """What to say after a STOP that does not end the training: that it goes on, and what would end it."""
    if on_critical is OnCritical.WARN:
        return "the training goes on all the same (on_critical: warn); on_critical: stop would end it"
    return (
        "the training goes on all the same: in a script of your own the watch only warns; "
        'watch={"base": "default", "on_critical": "stop"} would end it'
    )


def watching(
    policy: WatchPolicy, target: Target, setting: SinkSetting, max_steps: int, champion_runs: Sequence[str] = ()
) -> Watching:
    """A watch over the run that is about to begin, with the bands of the champion's runs if these can be read."""
    bands: Mapping[str, Band] = {}
    if target.client is not None and champion_runs:
        try:
            bands = champion_bands(target.client, champion_runs, policy, target.workload)
        except (StoreError, UsageError) as error:
            log.warning("canary: watch: the champion's runs cannot be read, and are no measure: %s", one_line(error))
    return Watching(Watch(policy, algo=target.algo, max_steps=max_steps or None, bands=bands), setting, max_steps,
                    target.run_id)  # fmt: skip


def champion_bands(
    client: MlflowClient, run_ids: Sequence[str], policy: WatchPolicy, workload: Mapping[str, str]
) -> dict[str, Band]:
    """The bands of what the champion's runs did at each step, from the runs that did the same work. Raises
    StoreError."""
    run_ids, least = list(dict.fromkeys(run_ids)), policy.band.min_runs
    if len(run_ids) < least:
        log.warning("canary: watch: no band: it needs %d runs of the champion, there are %d", least, len(run_ids))
        return {}
    read = read_runs(client, run_ids, policy.drift.streams)
    unfit = {run.run_id: why for run in read if (why := _unfit(run, workload))}
    alike = [run for run in read if run.run_id not in unfit]
    if len(alike) < least:
        log.warning(
            "canary: watch: no band: it needs %d runs of the champion, there are %d; not used: %s",
            least, len(alike), visible("; ".join(f"{run_id[:8]} {why}" for run_id, why in unfit.items())),
        )  # fmt: skip
    return bands_of(policy.drift.streams, policy.band, [run.series for run in alike])


def _unfit(run: Run, workload: Mapping[str, str]) -> str:
    """Why a run of the champion is no measure for this one; "" if it is one."""
    if not run.completed:
        return f"did not end as planned{f' ({run.failure})' if run.failure else ''}"
    other = sorted(key for key in {*run.workload, *workload} if run.workload.get(key) != workload.get(key))
    if not other:
        return ""
    shown = [f"{key} {run.workload.get(key, 'absent')} instead of {workload.get(key, 'none')}" for key in other[:2]]
    return f"did other work: {', '.join(shown)}{' and more' if len(other) > 2 else ''}"
