"""The charts of a run's page: which series each shows, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gates.model.metrics import METRICS


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart. `lines`: canonical names; the champion's band belongs to the first. `spread`: the spread around it.

    `target`: params that may hold a target value; the first that is set counts. `streams`: further streams whose
    warnings are marked here.
    """

    title: str
    lines: tuple[str, ...]
    spread: str = ""
    log: bool = False
    target: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """The unit of its axis; '' for a user-defined series."""
        found = METRICS.get(self.lines[0])
        return "" if found is None else found.unit

    @property
    def marked(self) -> tuple[str, ...]:
        """The streams whose warnings are marked on it."""
        return (*self.lines, *((self.spread,) if self.spread else ()), *self.streams)


PANELS: tuple[Panel, ...] = (
    Panel(title="Loss", lines=("loss", "eval_loss")),
    Panel(title="KL", lines=("kl",), target=("cfg/algo.target_kl", "cfg/target_kl"), streams=("approx_kl",)),
    Panel(title="KL-target error", lines=("kl_target_error",)),
    Panel(title="Entropy", lines=("entropy",)),
    Panel(title="Reward, mean ± spread", lines=("reward_mean",), spread="reward_std", streams=("score_mean",)),
    Panel(title="Advantage, mean ± spread", lines=("advantage_mean",), spread="advantage_std"),
    Panel(title="Reward margin", lines=("reward_margin",)),
    Panel(title="Reward accuracy", lines=("reward_accuracy",)),
    Panel(title="Implied KL", lines=("implied_kl",)),
    Panel(title="Gradient norm", lines=("grad_norm",), log=True, streams=("nonfinite", "clipped")),
    Panel(title="Clip fraction", lines=("clip_fraction", "value_clip_fraction")),
    Panel(title="Value loss", lines=("value_loss",)),
    Panel(title="Learning rate", lines=("learning_rate",)),
    Panel(title="Throughput", lines=("tokens_per_second",)),
    Panel(title="Memory", lines=("peak_memory", "allocated_memory", "reserved_memory")),
    Panel(title="Step time", lines=("step_time",)),
    Panel(title="Iteration time", lines=("iteration_time",)),
)
PROMISED = ("loss", "kl", "kl_target_error", "entropy", "reward_mean", "advantage_mean", "grad_norm", "clip_fraction",
            "tokens_per_second", "peak_memory", "step_time")  # fmt: skip
"""What a reader looks for: said to be missing where a run does not record it."""

SERIES = tuple(dict.fromkeys(name for panel in PANELS for name in (*panel.lines, panel.spread) if name))


GIVEN = ("learning_rate", "kl_coef")
"""Series that follow from settings: where they go, somebody sent them."""


def label(name: str) -> str:
    """A series' display name."""
    return METRICS[name].label if name in METRICS else name.replace("_", " ")


def target_of(panel: Panel, params: Mapping[str, str]) -> float | None:
    """The target value; None if the run's params hold none."""
    for key in panel.target:
        try:
            return float(params[key])
        except (KeyError, ValueError):
            continue
    return None


def target_keys() -> Sequence[str]:
    """All params that a panel may look for."""
    return tuple(dict.fromkeys(key for panel in PANELS for key in panel.target))
