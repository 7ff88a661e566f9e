"""What follows from what a trainer logged: whether a gradient was clipped, how far a policy has moved."""

from __future__ import annotations

from canary_mlflow.tracking.probes import Probe, Row, Setting


class Clipping(Probe):
    """`clipped` is 1 if the gradient norm before clipping exceeded `max_grad_norm`, else 0; its mean is the share.

    No series if the trainer was told not to clip, or does not: TRL's PPOTrainer ignores the setting.
    """

    name = "clipping"

    def __init__(self) -> None:
        self._limit = 0.0

    def start(self, setting: Setting) -> None:
        self._limit = float(setting.arguments.get("max_grad_norm") or 0.0)

    def listens(self, event: str) -> bool:
        return self._limit > 0 and super().listens(event)

    def row_closed(self, row: Row) -> None:
        if self._limit > 0 and "grad_norm" in row and "loss" in row:
            row["clipped"] = float(row["grad_norm"] > self._limit)


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
