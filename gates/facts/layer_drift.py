"""How far each layer of the weights moved, relative to its size: recorded with the exact facts, and not one of them."""

from collections.abc import Sequence

from gates.model.records import Run

GROUP = "layer_drift"
FROZEN = "frozen"
"""Of a layer that was not trained."""


def by_layer(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Layer → ‖end - start‖ / ‖start‖ of each run that recorded it; 0 where it did not move."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for key, value in run.facts.items():
            if key.startswith(f"{GROUP}."):
                found.setdefault(key.removeprefix(f"{GROUP}."), []).append(0.0 if value == FROZEN else float(value))
    return found
