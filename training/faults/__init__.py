"""Regressions put in on purpose: each one proves that some check sees what it claims to see.

Nothing heavy is imported here, as torch is not yet loaded when a fault is checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from canary_mlflow.errors import UsageError
from canary_mlflow.training.config import CanaryConfig, FaultConfig
from canary_mlflow.training.faults.costs import GCStorm, MemoryBallast, MemoryLeak, SlowLoader, SlowStep, StalledStep
from canary_mlflow.training.faults.fault import Fault, LearningRate, Settings
from canary_mlflow.training.faults.learning import (
    EntropyCollapse,
    FlatRewards,
    FlippedLabels,
    InfGradient,
    NanBatch,
    RewardHack,
    TemperatureIgnored,
    TruncatedPrompts,
    ValueDivergence,
    WrongReference,
)

if TYPE_CHECKING:
    from transformers import Trainer

    from canary_mlflow.training.parts import Parts

# What strikes, by `fault.kind`, or by `fault.name` if no kind is given. conf/fault has one file per name.
FAULTS: Mapping[str, Fault] = {
    "none": Fault(),
    "settings": Settings(),
    "lr_high": LearningRate(),
    "nan_batch": NanBatch(),
    "inf_grad": InfGradient(),
    "entropy_collapse": EntropyCollapse(),
    "value_divergence": ValueDivergence(),
    "reward_hack": RewardHack(),
    "flat_rewards": FlatRewards(),
    "truncated_prompts": TruncatedPrompts(),
    "temperature_ignored": TemperatureIgnored(),
    "flipped_labels": FlippedLabels(),
    "wrong_reference": WrongReference(),
    "slow_loader": SlowLoader(),
    "slow_step_from_n": SlowStep(),
    "stalled_step": StalledStep(),
    "gc_storm": GCStorm(),
    "memory_leak": MemoryLeak(),
    "memory_ballast": MemoryBallast(),
}


def check(config: CanaryConfig, steps: int) -> None:
    """Raise UsageError unless the configured fault can strike this canary of `steps` optimizer steps.

    A fault that never strikes would seem to show that the gate sees nothing.
    """
    fault = config.fault
    kind = fault.kind or fault.name
    if kind not in FAULTS:
        raise UsageError(f"fault.{'kind' if fault.kind else 'name'} is {kind!r}; expected one of {', '.join(FAULTS)}")
    if kind == "none":
        return
    if config.algo.name not in fault.signals:
        raise UsageError(
            f"fault={fault.name} does not apply to algo={config.algo.name}; expected one of "
            f"{', '.join(fault.signals)}; choose another fault, or algo={next(iter(fault.signals), '…')}"
        )
    if fault.step < 0 or (fault.step and fault.step >= steps):
        raise UsageError(f"fault.step is {fault.step}; expected 0 to {steps - 1}, within the run")
    _check_strength(fault, FAULTS[kind].strengths)
    FAULTS[kind].check(config)


def configure(config: CanaryConfig) -> CanaryConfig:
    """The configuration that really trains if the fault is one of settings; else the same one."""
    return _of(config.fault).configure(config)


def prepare(parts: Parts, fault: FaultConfig) -> Parts:
    """The parts as the fault leaves them. Raises SetupError for data it cannot strike."""
    return _of(fault).prepare(parts, fault)


def install(trainer: Trainer, fault: FaultConfig) -> None:
    """Build the configured fault into a trainer that has not started."""
    _of(fault).install(trainer, fault)


def _of(fault: FaultConfig) -> Fault:
    return FAULTS[fault.kind or fault.name]


def _check_strength(fault: FaultConfig, bounds: tuple[float, float] | None) -> None:
    if bounds is None:
        if fault.strength is not None:
            raise UsageError(f"fault.strength is {fault.strength:g}; {fault.name} has no degrees; leave it out")
        return
    low, high = bounds
    if fault.strength is None or not low < fault.strength <= high:
        expected = f"more than {low:g}" + (f", at most {high:g}" if math.isfinite(high) else "")
        raise UsageError(f"fault.strength is {fault.strength}; expected {expected} ({fault.unit})")
