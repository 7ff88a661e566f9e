"""GRPO and RLOO: on answers that the policy has just drawn, the probability ratio is 1, so nothing is clipped."""

from __future__ import annotations

from collections.abc import Mapping

from canary_mlflow.tracking.probes import Setting
from canary_mlflow.tracking.probes.invariants import Invariant, drops_out, is_coarse

NAME = "clip_fraction"


class FreshAnswers(Invariant):
    """The clip fraction of each optimizer step that is the first on its answers must be 0. Does not apply if passes are
    rounded: RLOO's ratio is that of a whole answer, and the rounding of hundreds of tokens adds up."""

    name = "fresh answers"

    def __init__(self) -> None:
        super().__init__()
        self._every = 0  # optimizer steps on each batch of answers; 0: the invariant does not apply

    def start(self, setting: Setting) -> None:
        exact = not drops_out(setting.model) and not is_coarse(setting) and not setting.resumed
        if setting.algo in ("grpo", "rloo") and exact:
            self._every = steps_on_answers(setting.arguments)

    def over(self) -> bool:
        return not self._every

    def row_closed(self, step: int, row: Mapping[str, float]) -> None:
        if not self._every or step < 1 or (step - 1) % self._every or row.get(NAME, 0.0) != row.get(NAME, 0.0):
            return
        if NAME in row:
            self.hold(
                row[NAME] == 0.0,
                f"a share of {row[NAME]:.3g} was clipped at step {step}, the first on its answers; before any update "
                "the ratio must be 1: the old log-probabilities are not those of the policy that drew the answers",
            )


def steps_on_answers(arguments: Mapping[str, object]) -> int:
    """How many optimizer steps TRL makes on the answers of one generation; 0 if these do not end with a step."""
    names = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
    numbers = [arguments.get(name) for name in names]
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        return 0
    iterations, per_generation, accumulated = (int(str(number)) for number in numbers)
    batches = iterations * per_generation
    return 0 if batches % accumulated or per_generation % accumulated else batches // accumulated
