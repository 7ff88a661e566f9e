"""DPO and KTO: how far the policy has moved from its reference, which DPO does not log."""

from __future__ import annotations

from canary_mlflow.tracking.probes import Probe, Row, Setting


class ImpliedKL(Probe):
    """`implied_kl` = mean of log reference - log policy over the answers of the batch, in nats per answer.

    It estimates KL(reference || policy) from the data's answers, as if they were drawn from the reference. A trainer
    logs beta x (log policy - log reference) as `rewards/…` for the chosen and the rejected answers (Rafailov et al.
    2023, section 4). It is 0 as long as the policy equals its reference, rises as the data's answers lose probability,
    and may fall below 0 if they gain.
    """

    name = "implied_kl"

    def __init__(self) -> None:
        self._beta = 0.0

    def start(self, setting: Setting) -> None:
        beta = setting.arguments.get("beta")
        if setting.algo in ("dpo", "kto") and isinstance(beta, (int, float)):
            self._beta = float(beta)

    def listens(self, event: str) -> bool:
        return bool(self._beta) and super().listens(event)

    def row_closed(self, row: Row) -> None:
        if self._beta and "chosen_reward" in row and "rejected_reward" in row:
            row["implied_kl"] = -(row["chosen_reward"] + row["rejected_reward"]) / (2 * self._beta)
