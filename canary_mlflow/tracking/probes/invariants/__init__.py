"""What must hold in the first steps of a run whatever it trains on: one probe for all invariants."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from canary_mlflow import tags
from canary_mlflow.tracking.probes import Probe, Row, Setting

log = logging.getLogger("canary_mlflow")


class Invariant:
    """Does nothing; an invariant overrides what it needs.

    Costs next to nothing. It does not apply unless it is certain that it must hold: a missed check is better than a
    false alarm.
    """

    name = "none"

    def __init__(self) -> None:
        self.checked = False
        self.broken = ""  # a sentence: what was found and what was expected

    def start(self, setting: Setting) -> None:
        """Training begins: check what can be checked now, and find out whether the rest applies."""

    def over(self) -> bool:
        """After start: whether it does not apply, or has checked everything, as one that only checks at the start; then
        nothing is told to it any more."""
        return True

    def rollout_begins(self) -> None:
        """PPO: an iteration begins with its rollout."""

    def rollout_ended(self) -> None:
        """PPO: the rollout is over and the first optimizer step on it begins. Also called before every other step."""

    def step_ended(self, row: Row) -> None:
        """An optimizer step is over: an invariant may add what it measured to `row`."""

    def row_closed(self, step: int, row: Mapping[str, float]) -> None:
        """The row of the `step`th optimizer step since training began (0: before the first) is complete."""

    def stop(self) -> None:
        """Training is over: undo what was hooked."""

    def hold(self, good: bool, sentence: str) -> None:
        """Note the outcome of one check; the first that fails counts."""
        self.checked = True
        if not good and not self.broken:
            self.broken = sentence
            log.warning("canary: %s", sentence)  # now, not only when the run is over


class Invariants(Probe):
    """Runs the invariants and writes the tag `canary.invariants`: "" (none applied), `ok`, or `broken: <sentences>`.

    `canary.invariants_checked` lists which were checked.
    """

    name = "invariants"

    def __init__(self, invariants: tuple[Invariant, ...] | None = None) -> None:
        self._invariants = standard_invariants() if invariants is None else invariants
        self._steps = 0
        self._told: list[Invariant] = []  # those that still do something

    def start(self, setting: Setting) -> None:
        for invariant in self._invariants:
            invariant.start(setting)
        self._told = [one for one in self._invariants if not one.over()]

    def listens(self, event: str) -> bool:
        return (event == "stop" or bool(self._told)) and super().listens(event)

    def iteration_began(self) -> None:
        for invariant in self._told:
            invariant.rollout_begins()

    def step_began(self) -> None:
        for invariant in self._told:
            invariant.rollout_ended()

    def step_ended(self, row: Row) -> None:
        self._steps += 1
        for invariant in self._told:
            invariant.step_ended(row)

    def row_closed(self, row: Row) -> None:
        for invariant in self._told:
            invariant.row_closed(self._steps, row)
        self._told = [one for one in self._told if not one.over()]

    def stop(self) -> None:
        for invariant in self._invariants:
            invariant.stop()

    def tags(self) -> Mapping[str, str]:
        checked = [invariant for invariant in self._invariants if invariant.checked]
        broken = "; ".join(invariant.broken for invariant in checked if invariant.broken)
        return {
            tags.INVARIANTS: f"broken: {broken}" if broken else "ok" if checked else "",
            tags.INVARIANTS_CHECKED: ", ".join(invariant.name for invariant in checked),
        }

    def trouble(self) -> str:
        return next((invariant.broken for invariant in self._invariants if invariant.broken), "")


def standard_invariants() -> tuple[Invariant, ...]:
    """A fresh set of invariants for one run. To add one: a class in this folder, and a line below."""
    from canary_mlflow.tracking.probes.invariants.beginnings import (
        FirstEpoch,
        FreshAdapter,
        FreshAnswers,
        ReferenceStart,
    )
    from canary_mlflow.tracking.probes.invariants.definitions import Definitions, PairLoss
    from canary_mlflow.tracking.probes.invariants.rollouts import RolloutGradient, SampledPolicy

    return (
        Definitions(), FreshAdapter(), ReferenceStart(), FirstEpoch(), RolloutGradient(), FreshAnswers(),
        SampledPolicy(), PairLoss(),
    )  # fmt: skip


def is_coarse(setting: Setting) -> bool:
    """Whether passes are rounded to 8 bits of mantissa or fewer: half precision or quantized weights."""
    import torch

    if setting.arguments.get("bf16") or setting.arguments.get("fp16"):
        return True
    parameters = list(setting.model.parameters())
    return any(one.dtype not in (torch.float32, torch.float64) for one in parameters)


def drops_out(model: Any) -> bool:
    """Whether two passes over the same batch differ because dropout is on."""
    for module in model.modules():
        # Attention with dropout inside a fused kernel stores the rate as a number.
        rates = [module.p] if "Dropout" in type(module).__name__ and hasattr(module, "p") else []
        rates.append(getattr(module, "attention_dropout", 0.0))
        if any(isinstance(rate, float) and rate > 0 for rate in rates):
            return True
    return False
