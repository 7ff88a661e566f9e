"""The watch over one run: rows in, warnings without repeats out, while the run goes on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from canary_mlflow.gates.model.paradigm import Paradigm, named_paradigm, recorded_paradigm
from canary_mlflow.gates.model.wording import listed
from canary_mlflow.gates.watch.advice import explain
from canary_mlflow.gates.watch.choosing import Situation, detectors
from canary_mlflow.gates.watch.learning import Displacement
from canary_mlflow.gates.watch.limits import Band
from canary_mlflow.gates.watch.policy import BEGINNING, OnCritical, RowRules, WatchPolicy
from canary_mlflow.gates.watch.stages import Stage, is_stage
from canary_mlflow.gates.watch.warning import Detection, Detector, Level, WatchWarning


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


_OF_HEALTHY_RUNS = ("zero_loss",)  # rules that healthy runs break too: a hinge loss is learned away to exactly 0
_AT_ONCE = ("nonfinite", "loss_rise")  # rules whose STOP need not last: it tells of what does not come back
_FIRST_LOOK = 16  # rows after which detectors that rest are left out; then after twice as many, and so on
_TOGETHER = 4  # rows that may be shown together, but no more than a CRITICAL must last to become a STOP
_PLANS = 15  # sets of names that are kept: steps with and without a sample, a norm by layer, an evaluation
HEALTHY = "healthy"
_VERDICTS = (HEALTHY, "warned", "critical", "failed")


class _Stream:
    """The alarms of one stream: all of them see finite values, those in `always` see NaN and infinities too."""

    __slots__ = ("_all", "always", "numbers")

    def __init__(self, always: list[Alarm], numbers: list[Alarm]) -> None:
        self.always = tuple((alarm.detector.update, alarm) for alarm in always)
        self.numbers = self._all = tuple((alarm.detector.update, alarm) for alarm in (*always, *numbers))

    def spare(self) -> None:
        """Show numbers no more to detectors that will find nothing in them."""
        self.numbers = tuple(one for one in self.numbers if one[1].live or not one[1].detector.rests())

    def wake(self) -> None:
        """Show numbers to all detectors again: one that rested has found something, and only a number ends that."""
        self.numbers = self._all


class Watch:
    """Watches one run. Its memory does not grow with the run.

    `algo`: sft, dpo, ppo, grpo …; "" to tell it from the streams. `max_steps`: planned optimizer steps, None if
    unknown. `bands`: stream → what the champion's runs did (`bands_of`).
    """

    def __init__(
        self,
        policy: WatchPolicy,
        *,
        algo: str = "",
        max_steps: int | None = None,
        bands: Mapping[str, Band] | None = None,
    ) -> None:
        self.policy = policy = policy.of(algo)
        self._phases = [step for step in policy.phases if step > 0][::-1]
        self._situation: Situation | None = None
        self._paradigm = named_paradigm(algo)
        self._max_steps = max_steps
        self._bands = bands or {}
        self._streams: dict[str, _Stream | None] = {}
        self._stages: dict[str, Stage] = {}
        self._numbers: list[str] = []  # of these, those in which a rule looks at finite values
        self._plans: list[tuple[tuple[str, ...], list[tuple[str, _Stream]]]] = []  # names of a row → what is watched
        self._warnings: list[WatchWarning] = []
        self.notices: list[str] = []  # about the policy itself, such as ceilings that mean nothing here
        self._step = self._rows = 0
        self._next_look = _FIRST_LOOK
        self._found = False  # whether any detector has found anything yet
        self._opened = 0  # the row at which a stream was opened last
        self._together = _TOGETHER
        self._first_step: int | None = None
        self._spacing = 1
        self._critical_held = ""
        self._lost = False
        self._hopeless: WatchWarning | None = None

    @property
    def warnings(self) -> tuple[WatchWarning, ...]:
        """All warnings so far, in order."""
        return tuple(self._warnings)

    @property
    def watched(self) -> tuple[str, ...]:
        """The streams seen so far that a rule looks at."""
        return tuple(name for name, stream in self._streams.items() if stream is not None)

    @property
    def verdict(self) -> str:
        """healthy, warned, critical or failed: by the worst level so far."""
        return _VERDICTS[max((warning.level for warning in self._warnings), default=0)]

    @property
    def rows(self) -> int:
        """How many it has seen."""
        return self._rows

    @property
    def stop_requested(self) -> bool:
        """Whether the training should end now: it is hopeless, and the policy says so."""
        return self._hopeless is not None and self.policy.on_critical is OnCritical.STOP

    @property
    def hopeless(self) -> WatchWarning | None:
        """The first warning of level STOP that no healthy run gets; None if there is none."""
        return self._hopeless

    @property
    def critical_held(self) -> str:
        """What reached STOP first, in one clause: a CRITICAL that lasted, a loss beyond recovery, or NaN
        and infinities; "" if nothing did."""
        return self._critical_held

    def can_wait(self, waiting: int, row: Mapping[str, float]) -> bool:
        """Whether it may be shown this row later, together with the next one, and still ask for a stop at the same
        step. `waiting`: rows that wait, with this one.

        Only a value that is not finite, a 0, or one that has not moved since the beginning is a STOP at once; a
        CRITICAL is one when it has lasted. From the first finding on no row waits.
        """
        return (
            waiting < self._together
            and not self._found
            and self._rows - self._opened > self.policy.facts.frozen_rows
            and math.isfinite(sum(row.values()))
            and all([row.get(name, 1.0) for name in self._numbers])
        )

    def observe(self, step: int, row: Mapping[str, float]) -> tuple[WatchWarning, ...]:
        """Take what was logged at one step; return the new warnings. Streams without a rule are ignored."""
        self._step = step
        self._rows += 1
        if self._rows < 3:
            self._measure_spacing(step)
        if self._phases and step >= self._phases[-1]:
            self._begin_phase(step)
        if self._stages:
            self._look_at_stages(step, row)
        if self._rows == self._next_look:
            self._spare()
        said: list[WatchWarning] = []
        found = self._found  # until then no alarm is live, and none need be looked at
        for name, stream in self._plan(row):
            value = row[name]
            for update, alarm in stream.numbers if value - value == 0.0 else stream.always:
                finding = update(step, value)
                if finding is not None or (found and alarm.live):
                    self._found = True
                    if value - value != 0.0:
                        stream.wake()
                    self._note(alarm, name, finding, said)
        return tuple(said)

    def _spare(self) -> None:
        """Leave out of the plans what no longer says anything: rules of a beginning that is over."""
        self._next_look *= 2
        for stream in self._streams.values():
            if stream is not None:
                stream.spare()
        self._plans.clear()
        self._list_numbers()

    def _list_numbers(self) -> None:
        self._numbers = [name for name, one in self._streams.items() if one and one.numbers]

    def _plan(self, row: Mapping[str, float]) -> Iterable[tuple[str, _Stream]]:
        """The streams of a row that a rule looks at, in the row's order. Most rows have the names of an earlier one,
        and tuples of the same strings are compared without looking at these."""
        names = tuple(row)
        for known, plan in self._plans:
            if known == names:
                return plan
        return self._opening(names, row)

    def _opening(self, names: tuple[str, ...], row: Mapping[str, float]) -> Iterator[tuple[str, _Stream]]:
        """The same for a row with other names: a stream is opened when those before it have had their values."""
        streams = self._streams
        for name in names:
            stream = streams[name] if name in streams else self._open(name, row)
            if stream is not None:
                yield name, stream
        if all(name in streams for name in names):
            plan = [(name, stream) for name in names if (stream := streams[name]) and (stream.numbers or stream.always)]
            self._plans = [*self._plans[-_PLANS:], (names, plan)]

    def finish(self, completed: bool) -> tuple[WatchWarning, ...]:
        """Take note that the run has ended. `completed`: as planned, so that rules may ask whether it learned. They do
        not where a resumed run shows no beginning, as its first row comes later."""
        completed = completed and (self._first_step or 0) <= BEGINNING * self._spacing
        said: list[WatchWarning] = []
        for name, stream in self._streams.items():
            for _, alarm in stream.numbers if stream else ():
                finding = alarm.detector.finish(completed)
                if finding is not None:
                    self._note(alarm, name, finding, said)
        return tuple(said)

    def _note(self, alarm: Alarm, stream: str, finding: Detection | None, said: list[WatchWarning]) -> None:
        new = alarm.note(finding)
        if new is None or (self._lost and new.level is not Level.STOP):
            return  # in a run that is lost, only another STOP is news
        self._lost = self._lost or new.level is Level.STOP
        rule = alarm.detector.rule
        meaning, advice = explain(rule, stream)
        warning = WatchWarning(
            step=self._step, stream=stream, level=new.level, rule=rule, seen=new.seen, meaning=meaning, advice=advice
        )
        self._warnings.append(warning)
        said.append(warning)
        if self._hopeless is None and new.level is Level.STOP and rule not in _OF_HEALTHY_RUNS:
            self._hopeless = warning
        if not self._critical_held and (alarm.held_stop or (new.level is Level.STOP and rule in _AT_ONCE)):
            self._critical_held = f"{stream} {new.seen} ({rule}, step {self._step})"

    def _look_at_stages(self, step: int, row: Mapping[str, float]) -> None:
        begun = [name for name, stage in self._stages.items() if name in row and stage.begins(row[name])]
        if begun:
            names = listed([name.removeprefix("trl/") for name in begun])
            self.notices.append(f"another stage from step {step} on ({names}): what is normal is learned anew")
            self._begin_phase(step)

    def _begin_phase(self, step: int) -> None:
        """Start every rule anew: what was normal before is no measure after a planned change of the work."""
        while self._phases and step >= self._phases[-1]:
            self._phases.pop()
        self._streams.clear()
        self._plans.clear()
        self._situation = None

    def _measure_spacing(self, step: int) -> None:
        if self._first_step is None:
            self._first_step = step
        else:
            self._spacing = max(1, step - self._first_step)

    def _burn_in(self) -> int:
        """Rows that show what is normal: fewer in a run that is known to be short."""
        rows = self.policy.rows
        if self._max_steps is None:
            return rows.burn_in
        planned = rows.burn_in_share * self._max_steps / self._spacing
        return int(min(rows.burn_in, max(rows.burn_in_least, planned)))

    def _hold(self) -> int:
        """Rows for which a CRITICAL must last to become STOP: fewer in a run that is known to be short."""
        rows = self.policy.rows
        if self._max_steps is None:
            return rows.hold
        planned = rows.hold_share * self._max_steps / self._spacing
        return int(min(rows.hold, max(rows.hold_least, planned)))

    def _stuck(self) -> int:
        """Rows after which a loss should have moved."""
        facts = self.policy.facts
        if self._max_steps is None:
            return facts.stuck_rows
        return int(max(facts.frozen_rows, facts.stuck_share * self._max_steps / self._spacing))

    def _settle(self, row: Mapping[str, float]) -> Situation:
        policy = self.policy
        return Situation(
            policy=policy,
            rl=self._paradigm is Paradigm.REINFORCEMENT,
            burn_in=self._burn_in(),
            stuck=self._stuck(),
            mixed=any("loss" in name and name not in ("loss", "eval_loss") for name in row),
            bands=self._bands,
            note=self.notices.append,
            displacement=Displacement(policy.patterns, policy.rows.window),
        )

    def _open(self, name: str, row: Mapping[str, float]) -> _Stream | None:
        """Choose the rules of a stream that is seen for the first time."""
        if is_stage(name) and name not in self._stages:
            self._stages[name] = Stage(self.policy.rows.burn_in_least)
            self._stages[name].begins(row[name])
        if self._paradigm is None:
            self._paradigm = recorded_paradigm(row)
            if self._paradigm is Paradigm.REINFORCEMENT:
                self._situation = None
                if not self._lost:
                    self._plans.clear()
                    self._streams.pop("loss", None)  # until now it was alone, and was taken for one that must fall
        if self._situation is None:
            self._situation = self._settle(row)
        always, numbers = detectors(name, self._situation)
        rows, hold = self.policy.rows, self._hold()
        # Large gradients are clipped and may do no harm: the loss shows whether they did.
        lasting = hold if name != "grad_norm" else -1
        opened = _Stream([Alarm(one, rows, hold) for one in always], [Alarm(one, rows, lasting) for one in numbers])
        self._streams[name] = opened if opened.numbers else None
        if opened.numbers:
            self._opened, self._together = self._rows, min(self._together, hold)
            self._list_numbers()
        return self._streams[name]
