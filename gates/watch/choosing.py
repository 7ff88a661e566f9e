"""Which rules look at a stream: one line in the table for each stream that has rules of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gates.watch.band import Band, BandDeviation
from gates.watch.ceilings import Ceiling
from gates.watch.drift import Drift
from gates.watch.facts import Capped, NanGradients, NonFinite, ZeroLoss
from gates.watch.learning import Flat, NoGainInReward, StaysZero
from gates.watch.loss import LossRise, LossRising
from gates.watch.patterns import Above, Drop, Spike
from gates.watch.policy import WatchPolicy
from gates.watch.warning import Detector, Level

_STOPS = frozenset({"loss", "policy_loss", "value_loss"})
_REWARDS = frozenset({"reward_mean", "score_mean"})
_CRITICALS = frozenset({"kl", "approx_kl", "entropy", "reward_mean", "score_mean", "eval_loss"})


def detectors(
    name: str, policy: WatchPolicy, *, rl: bool, burn_in: int, band: Band | None, note: Callable[[str], None]
) -> tuple[list[Detector], list[Detector]]:
    """Those that see all values of a stream, and those that see its finite ones only.

    `rl`: reinforcement learning, where a loss need not fall. `burn_in`: rows that say what is normal. `band`: what the
    champion's runs did. `note`: is told what is to be said about the policy itself.
    """
    always: list[Detector] = []
    if policy.facts.nonfinite:
        if name in _STOPS:
            always.append(NonFinite(Level.STOP))
        elif name in _CRITICALS:
            always.append(NonFinite(Level.CRITICAL))
        elif name in ("grad_norm", "nonfinite"):
            always.append(NanGradients(policy.facts, policy.rows.burn_in, count=name == "nonfinite"))
    numbers = _RULES[name](policy, rl) if name in _RULES else []
    drift = policy.drift.streams.get(name)
    if drift is not None and name != ("loss" if rl else "entropy"):  # supervised training should get surer
        numbers.append(Drift(drift, policy.drift, policy.rows, burn_in))
    if drift is not None and band is not None and band.runs >= policy.band.min_runs and not (rl and name == "loss"):
        # Supervised training that gets sure much sooner than the champion's is worth a word; it may be a better one.
        rule = drift if rl or name != "entropy" else replace(drift, critical_change=None)
        late = rl and name in _REWARDS
        numbers.append(BandDeviation(rule, policy.band, policy.rows, band, may_be_late=late))
    ceiling = policy.ceilings.get(name)
    if ceiling is not None:
        numbers.append(Ceiling(name, ceiling, policy.patterns.persist, note))
    return always, numbers


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
