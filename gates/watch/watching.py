"""The watch over one run: rows in, warnings out, while the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gates.watch.advice import explain
from gates.watch.alarm import Alarm
from gates.watch.band import Band, BandDeviation
from gates.watch.ceilings import Ceiling
from gates.watch.drift import Drift
from gates.watch.facts import Capped, Flat, NanGradients, NoGainInReward, NonFinite, StaysZero, ZeroLoss
from gates.watch.loss import LossRise, LossRising
from gates.watch.patterns import Above, Drop, Spike
from gates.watch.policy import OnCritical, WatchPolicy
from gates.watch.warning import Detector, Finding, Level, WatchWarning

RL = frozenset({"ppo", "grpo", "rloo"})
_RL_STREAMS = frozenset({"reward_mean", "reward_std", "score_mean", "advantage_mean", "response_length"})
# DPO, KTO and reward models log rewards too, and have a loss that falls.
_PREFERENCE_STREAMS = frozenset({"reward_margin", "reward_accuracy", "chosen_reward"})
_STOPS = frozenset({"loss", "policy_loss", "value_loss"})
_CRITICALS = frozenset({"kl", "approx_kl", "entropy", "reward_mean", "score_mean", "eval_loss"})
_RISES = frozenset({"loss_rise", "loss_rising", "grad_spike", "drift"})
_VERDICTS = ("healthy", "warned", "critical", "failed")


class _Stream:
    """The alarms of one stream: all of them see numbers, `always` sees what is no number too."""

    __slots__ = ("always", "numbers")

    def __init__(self, always: list[Alarm], numbers: list[Alarm]) -> None:
        self.always = tuple((alarm.detector.update, alarm) for alarm in always)
        self.numbers = tuple((alarm.detector.update, alarm) for alarm in (*always, *numbers))


class Watch:
    """Watches one run. Its memory does not grow with the run.

    `algo`: sft, dpo, ppo, grpo …; "" is told from the streams. `max_steps`: optimizer steps planned, None for unknown.
    `bands`: stream → what the champion's runs did (`bands_of`).
    """

    def __init__(
        self,
        policy: WatchPolicy,
        *,
        algo: str = "",
        max_steps: int | None = None,
        bands: Mapping[str, Band] | None = None,
    ) -> None:
        self.policy = policy
        self._rl: bool | None = algo in RL if algo else None
        self._max_steps = max_steps
        self._bands = bands or {}
        self._streams: dict[str, _Stream | None] = {}
        self._warnings: list[WatchWarning] = []
        self._notices: list[str] = []
        self._step = self._rows = 0
        self._first_step: int | None = None
        self._spacing = 1
        self._last_rise = {"loss": 0, "grad_norm": 0}
        self._spiral = Alarm(_Spiral(), policy.rows, may_stop=False)
        self._critical_held = ""
        self._lost = False

    @property
    def warnings(self) -> tuple[WatchWarning, ...]:
        """All warnings so far, in order."""
        return tuple(self._warnings)

    @property
    def notices(self) -> tuple[str, ...]:
        """What is to be said about the policy itself: ceilings that mean nothing here."""
        return tuple(self._notices)

    @property
    def verdict(self) -> str:
        """healthy, warned, critical or failed: by the worst level so far."""
        return _VERDICTS[max((warning.level for warning in self._warnings), default=0)]

    @property
    def stop_requested(self) -> bool:
        """Whether the training should end now: level STOP was reached, and the policy says so."""
        return self._lost and self.policy.on_critical is OnCritical.STOP

    @property
    def critical_held(self) -> str:
        """One sentence on the first CRITICAL that lasted until it became STOP; "" for none."""
        return self._critical_held

    def observe(self, step: int, row: Mapping[str, float]) -> tuple[WatchWarning, ...]:
        """Take what was logged at one step; returns what is new. Streams of no rule are ignored."""
        self._step = step
        self._rows += 1
        if self._rows < 3:
            self._measure_spacing(step)
        streams = self._streams
        said: list[WatchWarning] = []
        for name, value in row.items():
            try:
                stream = streams[name]
            except KeyError:
                stream = self._open(name, row)
            if stream is None:
                continue
            for update, alarm in stream.numbers if value - value == 0.0 else stream.always:
                finding = update(step, value)
                if finding is not None or alarm.live:
                    self._note(alarm, name, finding, said)
        if self._spiral.live or self._rows in (self._last_rise["loss"], self._last_rise["grad_norm"]):
            self._note(self._spiral, "loss", self._spiral_finding(), said)
        return tuple(said)

    def finish(self, completed: bool) -> tuple[WatchWarning, ...]:
        """Take that the run has ended; `completed`: as planned, so that it can be asked whether it learned."""
        said: list[WatchWarning] = []
        for name, stream in self._streams.items():
            for _, alarm in stream.numbers if stream else ():
                finding = alarm.detector.finish(completed)
                if finding is not None:
                    self._note(alarm, name, finding, said)
        return tuple(said)

    def _note(self, alarm: Alarm, stream: str, finding: Finding | None, said: list[WatchWarning]) -> None:
        if finding is not None and stream in self._last_rise and alarm.detector.rule in _RISES:
            self._last_rise[stream] = self._rows
        new = alarm.note(finding)
        if new is None or (self._lost and new.level is not Level.STOP):
            return  # of a run that is lost, only further facts are news
        self._lost = self._lost or new.level is Level.STOP
        rule = alarm.detector.rule
        meaning, advice = explain(rule, stream)
        warning = WatchWarning(
            step=self._step, stream=stream, level=new.level, rule=rule, seen=new.seen, meaning=meaning, advice=advice
        )
        self._warnings.append(warning)
        said.append(warning)
        if alarm.held_stop and not self._critical_held:
            self._critical_held = f"{stream} {new.seen} ({rule}, step {self._step})"

    def _spiral_finding(self) -> Finding | None:
        """Both loss and gradient norm in trouble within a few rows of each other."""
        loss, grad = self._last_rise["loss"], self._last_rise["grad_norm"]
        far = abs(loss - grad) > self.policy.patterns.spiral_rows
        if not loss or not grad or far or self._rows not in (loss, grad):
            return None
        return Finding(Level.CRITICAL, f"loss and grad_norm both rise, {abs(loss - grad)} rows apart")

    def _measure_spacing(self, step: int) -> None:
        if self._first_step is None:
            self._first_step = step
        else:
            self._spacing = max(1, step - self._first_step)

    def _burn_in(self) -> int:
        """Rows that say what is normal: fewer in a run that is known to be short."""
        rows = self.policy.rows
        if self._max_steps is None:
            return rows.burn_in
        planned = rows.burn_in_share * self._max_steps / self._spacing
        return int(min(rows.burn_in, max(rows.burn_in_least, planned)))

    def _open(self, name: str, row: Mapping[str, float]) -> _Stream | None:
        """Choose the rules of a stream that is seen for the first time."""
        if self._rl is None:
            if not _PREFERENCE_STREAMS.isdisjoint(row):
                self._rl = False
            elif not _RL_STREAMS.isdisjoint(row):
                self._rl = True
                self._streams.pop("loss", None)  # it came alone, and was taken for one that must fall
        always, numbers = self._detectors(name)
        rows = self.policy.rows
        # Large gradients are clipped and may do no harm: the loss shows whether they did.
        lasting = name != "grad_norm"
        opened = _Stream([Alarm(one, rows) for one in always], [Alarm(one, rows, may_stop=lasting) for one in numbers])
        self._streams[name] = opened if opened.numbers else None
        return self._streams[name]

    def _detectors(self, name: str) -> tuple[list[Detector], list[Detector]]:
        policy = self.policy
        always: list[Detector] = []
        if policy.facts.nonfinite:
            if name in _STOPS:
                always.append(NonFinite(Level.STOP))
            elif name in _CRITICALS:
                always.append(NonFinite(Level.CRITICAL))
            elif name in ("grad_norm", "nonfinite"):
                always.append(NanGradients(policy.facts, policy.rows.burn_in, count=name == "nonfinite"))
        numbers = _RULES[name](policy, bool(self._rl)) if name in _RULES else []
        drift = policy.drift.streams.get(name)
        if drift is not None and name != ("loss" if self._rl else "entropy"):  # supervised training should get surer
            numbers.append(Drift(drift, policy.drift, policy.rows, self._burn_in()))
            band = self._bands.get(name)
            if band is not None and band.runs >= policy.band.min_runs:
                numbers.append(BandDeviation(drift, policy.band, policy.rows, band))
        ceiling = policy.ceilings.get(name)
        if ceiling is not None:
            numbers.append(Ceiling(name, ceiling, policy.patterns.persist, self._notices.append))
        return always, numbers


class _Spiral:
    """Stands for the rule that looks at two streams; `Watch` computes it."""

    rule = "death_spiral"

    def update(self, step: int, value: float) -> Finding | None:
        return None

    def finish(self, completed: bool) -> Finding | None:
        return None


def _loss(policy: WatchPolicy, rl: bool) -> list[Detector]:
    if rl:  # an RL loss is scaled by its own advantages: its level says nothing, and it starts at 0
        return []
    facts, rows = policy.facts, policy.rows
    return [
        ZeroLoss(facts),
        Flat(facts),
        LossRise(policy.loss, rows),
        LossRising(policy.loss, policy.patterns),
    ]


def _grad_norm(policy: WatchPolicy, rl: bool) -> list[Detector]:
    found: list[Detector] = [Spike("grad_spike", policy.patterns.grad_spike, policy.patterns)]
    # In RL a batch whose rewards are all equal has no gradient, and the first ones often are.
    return found if rl else [StaysZero(policy.facts, Level.STOP), *found]


def _kl(policy: WatchPolicy, rl: bool) -> list[Detector]:
    patterns = policy.patterns
    found: list[Detector] = [Spike("kl_spike", patterns.kl_spike, patterns, patterns.kl_spike_floor)]
    return [StaysZero(policy.facts, Level.CRITICAL), *found] if rl else found


_RULES: dict[str, Callable[[WatchPolicy, bool], list[Detector]]] = {
    "loss": _loss,
    "grad_norm": _grad_norm,
    "kl": _kl,
    "learning_rate": lambda policy, rl: [StaysZero(policy.facts, Level.STOP)],
    "entropy": lambda policy, rl: [Drop(policy.patterns)] if rl else [],
    "clip_fraction": lambda policy, rl: [
        Above("clip_fraction", policy.patterns.clip_fraction, policy.patterns.persist, policy.rows.burn_in_skip)
    ],
    "reward_mean": lambda policy, rl: [NoGainInReward(policy.facts)] if rl else [],
    "truncated_share": lambda policy, rl: [Capped(policy.facts)],
}
