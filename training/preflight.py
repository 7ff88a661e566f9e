"""What can be known to fail before torch is loaded and anything is recorded."""

from __future__ import annotations

from training import adapters, datasets, models, quantization
from training.config import CanaryConfig


def preflight(config: CanaryConfig) -> None:
    """Check adapter, quantization, data and model in that order: cheap first, the network last.

    Raises SetupError with one line: what was found, what was expected, what to do. Hub files that are not
    cached are fetched here, once, so that the runs need no network.
    """
    adapters.check(config.adapter)
    quantization.check(config.quantization, config.adapter)
    datasets.check(config)
    models.check(config.model)
