"""The base of all faults, with a method for each stage at which one may strike; and faults of the configuration: the
run trains with other values than it declares."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from canary_mlflow.errors import UsageError
from canary_mlflow.training.config import CanaryConfig, FaultConfig

if TYPE_CHECKING:
    from transformers import Trainer

    from canary_mlflow.training.parts import Parts


ANY_AMOUNT = (0.0, math.inf)
SHARE = (0.0, 1.0)


class Fault:
    """Does nothing; a fault overrides the stage at which it strikes.

    A run still declares the healthy configuration, from which its workload tags come: a fault is something that the
    configuration does not tell, and that the gate must find in the numbers.
    """

    strengths: tuple[float, float] | None = None  # above the first, up to the second; None: it has no degrees

    def check(self, config: CanaryConfig) -> None:
        """Raise UsageError if this fault cannot strike; imports nothing heavy."""

    def configure(self, config: CanaryConfig) -> CanaryConfig:
        """The configuration with the fault in it."""
        return config

    def prepare(self, parts: Parts, fault: FaultConfig) -> Parts:
        """Model and data with the fault in them."""
        return parts

    def install(self, trainer: Trainer, fault: FaultConfig) -> None:
        """Change a trainer that has not started."""


GROUPS = ("train", "algo")  # what a trainer is built from; the other groups define which canary this is


class Settings(Fault):
    """`fault.settings` replaces values of `train` and `algo`; for an algorithm that names them differently,
    `fault.settings_of` under its name does."""

    def check(self, config: CanaryConfig) -> None:
        settings = _settings(config)
        wrong = sorted(set(settings) - set(GROUPS))
        if wrong or not settings:
            found = ", ".join(wrong) or "empty"
            raise UsageError(f"fault.settings: {found}; expected values under {' or '.join(GROUPS)}")
        self.configure(config)

    def configure(self, config: CanaryConfig) -> CanaryConfig:
        changed = {group: _merge(group, config, values) for group, values in _settings(config).items()}
        return replace(config, **changed)


class LearningRate(Fault):
    """The learning rate is `strength` times the configured one."""

    strengths = ANY_AMOUNT

    def configure(self, config: CanaryConfig) -> CanaryConfig:
        assert config.fault.strength is not None
        return replace(
            config, train=replace(config.train, learning_rate=config.train.learning_rate * config.fault.strength)
        )


def _settings(config: CanaryConfig) -> dict[str, Any]:
    found: dict[str, Any] = config.fault.settings_of.get(config.algo.name, config.fault.settings)
    return found


def _merge(group: str, config: CanaryConfig, values: Any) -> Any:
    """The group's dataclass with some values replaced, each of the same type."""
    try:
        healthy = OmegaConf.structured(copy.deepcopy(getattr(config, group)))
        return OmegaConf.to_object(OmegaConf.merge(healthy, values))
    except (OmegaConfBaseException, ValueError) as error:
        line = str(error).splitlines()[0]
        raise UsageError(f"fault.settings.{group}: {line}; expected keys and values of {group}") from error
