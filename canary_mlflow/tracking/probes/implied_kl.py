"""DPO and KTO: how far the policy has moved from its reference, which DPO does not log."""

from __future__ import annotations

from canary_mlflow.tracking.probes import Probe, Row, Setting


class ImpliedKL(Probe):
    """`implied_kl` = mean of log reference - log policy over the answers of the batch, in nats per answer.

    The estimate of KL(reference || policy) that the data's answers allow, taken as drawn from the reference. A
    trainer logs beta x (log policy - log reference) as `rewards/…` for the chosen and the rejected answers
    (Rafailov et al. 2023, section 4). 0 while the policy is its reference; it rises as answers of the data lose
    probability, and may fall below 0 where they gain.
    """

    name = "implied_kl"

    def __init__(self) -> None:
        self._beta = 0.0

    def start(self, setting: Setting) -> None:
        beta = setting.arguments.get("beta")
        if setting.algo in ("dpo", "kto") and isinstance(beta, (int, float)):
            self._beta = float(beta)

    def row_closed(self, row: Row) -> None:
        if self._beta and "chosen_reward" in row and "rejected_reward" in row:
            row["implied_kl"] = -(row["chosen_reward"] + row["rejected_reward"]) / (2 * self._beta)
