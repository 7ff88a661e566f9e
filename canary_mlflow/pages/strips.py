"""What a page shows as strips, one row per run: where its time went, and values that tell runs apart."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gates.model.metrics import LAYER_GROUPS, METRICS

OF_ITERATIONS = ("time_generate", "time_reward", "time_reference", "time_score", "time_update")
OF_STEPS = (
    "time_generate",
    "time_reward",
    "time_reference",
    "time_forward",
    "time_backward",
    "time_optimizer",
    "data_wait",
)
HEAT = {
    METRICS["reward_mean"].label: ("reward_mean",),
    METRICS["response_length"].label: ("response_length",),
    "gradient norm, by group of layers": tuple(f"grad_norm_{where}" for where in LAYER_GROUPS),
}


@dataclass(frozen=True, kw_only=True)
class Strip:
    """One figure. `shares`: its series are parts of a whole, stacked; otherwise each has a row and is shown as a shade.
    `inside`: two of its series, the first of which is also part of the second and is subtracted from it."""

    title: str
    names: tuple[str, ...]
    shares: bool = False
    inside: tuple[str, str] | None = None

    @property
    def labels(self) -> Sequence[str]:
        """The display names of its series."""
        return [name.removeprefix("time_").removeprefix("grad_norm_").replace("_", " ") for name in self.names]

    @property
    def unit(self) -> str:
        """The unit of its first series."""
        return METRICS[self.names[0]].unit

    @property
    def log(self) -> bool:
        """Whether the shade follows the logarithm."""
        return METRICS[self.names[0]].scale == "log"


def strips_of(recorded: Collection[str]) -> list[Strip]:
    """The strips whose series were recorded. A trainer that times its iterations has phases of iterations, not of
    steps; the passes of the reference model are part of its scoring."""
    own = "time_update" in recorded
    phases = tuple(name for name in (OF_ITERATIONS if own else OF_STEPS) if name in recorded)
    both = ("time_reference", "time_score")
    inside = both if own and set(both) <= set(phases) else None
    what = "iteration" if own else "step"
    found = [Strip(title=f"Time of {'an' if own else 'a'} {what}, by phase", names=phases, shares=True, inside=inside)]
    having = {title: tuple(name for name in names if name in recorded) for title, names in HEAT.items()}
    heat = [Strip(title=title, names=names) for title, names in having.items() if names]
    return [*(found if len(phases) > 1 else []), *heat]
