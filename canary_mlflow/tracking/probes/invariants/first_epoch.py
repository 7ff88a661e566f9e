"""PPO: before an iteration's first update the ratio is 1 and the approximate KL is 0."""

from __future__ import annotations

from collections.abc import Mapping

from canary_mlflow.tracking.probes import Setting
from canary_mlflow.tracking.probes.invariants import Invariant, drops_out, is_coarse

NAME = "first_kl_max_abs"  # max |new - old log-probability| of an iteration's first update
# Measured on a CPU: 0 with one thread, 1e-6 with several; 0.07 with rollouts one step old, 0.2 with dropout.
EXACT, COARSE = 1e-3, 0.1


class FirstEpoch(Invariant):
    """The largest |log ratio| of an iteration's first update, over all tokens; the mean ratio and the approximate KL
    follow from it. Checked in every iteration, if the trainer gives it: TRL's PPOTrainer averages over all its epochs.

    Does not apply to 8-bit weights: their outliers are chosen over the whole batch, so an answer's log-probability
    depends on its neighbours.
    """

    name = "first epoch"

    def __init__(self) -> None:
        super().__init__()
        self._tolerance = EXACT
        self._applies = False

    def start(self, setting: Setting) -> None:
        policy = getattr(setting.model, "policy", setting.model)
        eight_bit = any(getattr(part, "is_loaded_in_8bit", False) for part in policy.modules())
        self._applies = setting.algo == "ppo" and not eight_bit and not drops_out(setting.model)
        self._tolerance = COARSE if is_coarse(setting) else EXACT

    def over(self) -> bool:
        return not self._applies

    def row_closed(self, step: int, row: Mapping[str, float]) -> None:
        if not self._applies or NAME not in row or row[NAME] != row[NAME]:  # NaN is for another check
            return
        self.hold(
            row[NAME] <= self._tolerance,
            f"PPO's first update at step {step} has a log ratio of {row[NAME]:.3g}; it must be 0 before any weight has "
            "moved: rollout and update disagree about the policy",
        )
