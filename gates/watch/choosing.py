"""Which rules look at a stream: one line in the table for each stream that has rules of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from canary_mlflow.gates.watch.drift import KINDS, WORK, Drift, Growth, Work
from canary_mlflow.gates.watch.facts import Capped, FirstLoss, Grown, NonFinite, Shrunk, ZeroLoss
from canary_mlflow.gates.watch.learning import (
    Displacement,
    Flat,
    Gradients,
    NoGainInReward,
    NoSpread,
    Progress,
    StaysZero,
)
from canary_mlflow.gates.watch.limits import Band, BandDeviation, Ceiling
from canary_mlflow.gates.watch.loss import EvalRise, LossRise, RewardFall
from canary_mlflow.gates.watch.policy import WatchPolicy
from canary_mlflow.gates.watch.warning import Detector, Level

_NONFINITE = {
    **dict.fromkeys(("loss", "policy_loss", "value_loss"), Level.STOP),
    **dict.fromkeys(("kl", "approx_kl", "entropy", "reward_mean", "score_mean"), Level.CRITICAL),
    "eval_loss": Level.WARN,  # alone, it only says that the evaluation is broken
}
# Means over the updates of a policy: NaN as long as there is none, while its value model or its replay is warmed up.
_OF_UPDATES = frozenset({"policy_loss", "kl", "approx_kl", "entropy"})
_REWARDS = frozenset({"reward_mean", "score_mean"})
# Streams that say something of their own only in reinforcement learning, or only outside it: there a loss need not
# fall, and batches whose answers all earn the same have no gradient; here a model that learns leaves its reference.
_ONLY_RL, _NEVER_RL = frozenset({"kl"}), frozenset({"loss", "grad_norm"})


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What the choice depends on, and what the rules of one run share.

    `rl`: reinforcement learning, where a loss need not fall. `burn_in`: rows that show what is normal. `stuck`: rows
    after which a loss should have moved. `mixed`: the loss is a sum of several. `bands`: what the champion's runs did.
    `note`: receives notices about the policy itself.
    """

    policy: WatchPolicy
    rl: bool
    burn_in: int
    stuck: int
    mixed: bool
    bands: Mapping[str, Band]
    note: Callable[[str], None]
    progress: Progress = field(default_factory=Progress)
    work: Work = field(default_factory=Work)
    displacement: Displacement


def detectors(name: str, run: Situation) -> tuple[list[Detector], list[Detector]]:
    """The detectors that see all values of a stream, and those that see only its finite ones."""
    policy = run.policy
    always: list[Detector] = []
    if policy.facts.nonfinite and name in _NONFINITE:
        always.append(NonFinite(_NONFINITE[name], policy.facts.untrained_rows if name in _OF_UPDATES else 0))
    numbers = _RULES[name](run) if name in _RULES else []
    drift = policy.drift.streams.get(name)
    if drift is not None and name in policy.drift.alone and name not in (_NEVER_RL if run.rl else _ONLY_RL):
        numbers.append(Drift(drift, policy.drift, policy.rows, run.burn_in))
    band = run.bands.get(name)
    if drift is not None and band is not None and band.runs >= policy.band.min_runs and not (run.rl and name == "loss"):
        # Supervised training that becomes sure much sooner than the champion's is worth a WARN; it may be better.
        rule = drift if run.rl or name != "entropy" else replace(drift, critical_change=None)
        late = run.rl and name in _REWARDS
        numbers.append(BandDeviation(rule, policy.band, policy.rows, band, may_be_late=late))
    ceiling = policy.ceilings.get(name)
    if ceiling is not None:
        numbers.append(Ceiling(name, ceiling, policy.rows.hold_least, run.note))
    return _on(always, policy), _on(numbers, policy)


def _on(found: list[Detector], policy: WatchPolicy) -> list[Detector]:
    return [one for one in found if one.rule not in policy.silent]


def _loss(run: Situation) -> list[Detector]:
    if run.rl:  # an RL loss is scaled by its own advantages: its level says nothing, and it starts at 0
        return []
    policy = run.policy
    return [
        ZeroLoss(policy.facts, run.progress),
        Flat(policy.facts, run.stuck, run.progress),
        LossRise(policy.gain, policy.rows, run.progress),
        *([] if run.mixed else [FirstLoss(run.displacement.start)]),
    ]


def _grad_norm(run: Situation) -> list[Detector]:
    # In RL a batch whose rewards are all equal has no gradient: the usual norm tells nothing about the next.
    return [Gradients(run.progress), *([] if run.rl else [StaysZero(run.policy.facts, Level.STOP)])]


def _reward(stream: str) -> Callable[[Situation], list[Detector]]:
    def chosen(run: Situation) -> list[Detector]:
        if stream in _REWARDS and not run.rl:
            return []  # a reward model's mean score: only differences of scores are trained, its level drifts freely
        rules = run.policy.gain
        if stream == "reward_margin":
            rules = replace(rules, critical_noise=rules.critical_margin_noise)
        found: list[Detector] = [RewardFall(stream, rules, run.policy.rows, run.progress)]
        return [*found, NoGainInReward(run.policy.facts)] if run.rl and stream in _REWARDS else found

    return chosen


def _spread(run: Situation) -> list[Detector]:
    share = run.policy.patterns.no_spread
    return [] if share is None else [NoSpread(share, run.policy.patterns, run.progress)]


def _preference(stream: str) -> Callable[[Situation], list[Detector]]:
    return lambda run: [] if run.rl else [run.displacement.part(stream)]


def _grows(stream: str) -> Callable[[Situation], list[Detector]]:
    return lambda run: [Growth(stream, run.policy.growth, run.stuck, run.work)]


_RULES: dict[str, Callable[[Situation], list[Detector]]] = {
    "loss": _loss,
    "grad_norm": _grad_norm,
    "kl": lambda run: [StaysZero(run.policy.facts, Level.CRITICAL, run.progress)] if run.rl else [],
    "learning_rate": lambda run: [StaysZero(run.policy.facts, Level.STOP)],
    "zero_spread_share": _spread,
    **dict.fromkeys(WORK, lambda run: [run.work]),
    "response_length": lambda run: [
        run.work,
        *[kind(run.policy.facts, run.progress) for kind in (Shrunk, Grown) if run.rl],
    ],
    "truncated_share": lambda run: [Capped(run.policy.facts, run.stuck, run.progress)],
    "reward_mean": _reward("reward_mean"),
    "score_mean": _reward("score_mean"),
    "reward_margin": lambda run: [*_reward("reward_margin")(run), *_preference("reward_margin")(run)],
    "reward_accuracy": _preference("reward_accuracy"),
    "chosen_reward": _preference("chosen_reward"),
    "chosen_logp": _preference("chosen_logp"),
    "eval_loss": lambda run: [] if run.rl else [EvalRise(run.policy.drift.streams["loss"], run.progress)],
    **{stream: _grows(stream) for stream in KINDS},
}
