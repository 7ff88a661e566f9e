"""What a fault is: nothing, at each stage at which one may strike."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from training.config import CanaryConfig, FaultConfig

if TYPE_CHECKING:
    from transformers import Trainer

    from training.parts import Parts

ANY_AMOUNT = (0.0, math.inf)
SHARE = (0.0, 1.0)


class Fault:
    """Does nothing; a fault overrides the stage at which it strikes.

    What a run declares stays the healthy configuration, from which its workload tags come: a fault is something that
    the configuration does not say, and the gate is to find it in the numbers.
    """

    strengths: tuple[float, float] | None = None  # above the first, up to the second; None: it has no degrees

    def check(self, config: CanaryConfig) -> None:
        """Raise UsageError where this fault cannot strike; imports nothing heavy."""

    def configure(self, config: CanaryConfig) -> CanaryConfig:
        """The configuration with the fault in it."""
        return config

    def prepare(self, parts: Parts, fault: FaultConfig) -> Parts:
        """Model and data with the fault in them."""
        return parts

    def install(self, trainer: Trainer, fault: FaultConfig) -> None:
        """Change a trainer that has not started."""
