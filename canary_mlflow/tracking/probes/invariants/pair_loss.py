"""A reward model's loss is that of Bradley and Terry: near ln 2 while its scores are close to each other."""

from __future__ import annotations

import math
from collections.abc import Mapping

from canary_mlflow.tracking.probes import Setting
from canary_mlflow.tracking.probes.invariants import Invariant, is_coarse

ROUNDING, COARSE = 1e-4, 1e-2


class PairLoss(Invariant):
    """With margins m between chosen and rejected scores the loss is the mean of ln(1 + exp(-m)), which lies between
    ln 2 - m / 2 and that plus m^2 / 8. The row has the mean margin, and the scores' range bounds every m.

    Checked at the first optimizer step, whose scores all come from the new head. Does not apply to several
    micro-batches, whose ranges the trainer averages, nor to margins from the data or centred rewards.
    """

    name = "pair loss"

    def __init__(self) -> None:
        super().__init__()
        self._applies = False
        self._rounding = ROUNDING

    def start(self, setting: Setting) -> None:
        given = setting.arguments
        alone = given.get("gradient_accumulation_steps") == 1 and setting.ranks == 1
        data = getattr(setting.trainer, "train_dataset", None)
        plain = given.get("center_rewards_coefficient") is None and "margin" not in (
            getattr(data, "column_names", None) or ()
        )
        self._applies = setting.algo == "reward" and alone and plain and not setting.resumed
        self._rounding = COARSE if is_coarse(setting) else ROUNDING

    def over(self) -> bool:
        return not self._applies

    def row_closed(self, step: int, row: Mapping[str, float]) -> None:
        names = ("loss", "reward_margin", "trl/max_reward", "trl/min_reward")
        if not self._applies or step < 1:
            return
        self._applies = False
        loss, margin, highest, lowest = (row.get(name, math.nan) for name in names)
        if not all(map(math.isfinite, (loss, margin, highest, lowest))):
            return
        least = math.log(2) - margin / 2
        most = least + (highest - lowest) ** 2 / 8
        self.hold(
            least - self._rounding <= loss <= most + self._rounding,
            f"the reward model's first loss is {loss:.6g}; scores with a mean margin of {margin:.3g} and a range of "
            f"{highest - lowest:.3g} give {least:.6g} to {most:.6g}: the loss is not that of pairs",
        )
