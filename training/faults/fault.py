"""The base of all faults, with a method for each stage at which a fault may strike."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

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
