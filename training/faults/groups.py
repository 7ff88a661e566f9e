"""Faults in learning from drawn answers: in their prompts, their rewards, and the temperature."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import UsageError
from canary_mlflow.training.config import CanaryConfig, FaultConfig
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.faults.fault import ANY_AMOUNT, Fault

if TYPE_CHECKING:
    import torch

    from canary_mlflow.training.parts import Parts


class TruncatedPrompts(Fault):
    """Only the last `strength` tokens of each training prompt are left; the held-out prompts stay as they are."""

    strengths = ANY_AMOUNT

    def prepare(self, parts: Parts, fault: FaultConfig) -> Parts:
        kept = max(1, round(fault.strength or 0.0))

        def cut(row: dict[str, Any]) -> dict[str, Any]:
            if not isinstance(row["prompt"], str):
                raise SetupError(f"fault={fault.name}: the data are chats; expected prompts of text to cut")
            ids = parts.tokenizer(row["prompt"], add_special_tokens=False)["input_ids"]
            return {**row, "prompt": parts.tokenizer.decode(ids[-kept:])}

        return replace(parts, train_dataset=parts.train_dataset.map(cut))


class FlatRewards(Fault):
    """Every answer of a group gets the group's mean score, as with a reward that sees only the prompt."""

    def install(self, trainer: Any, fault: FaultConfig) -> None:
        calculate = trainer._calculate_rewards

        def flat(*given: Any, **named: Any) -> torch.Tensor:
            scores: torch.Tensor = calculate(*given, **named)
            if not trainer.model.training:
                return scores
            groups = scores.view(-1, trainer.num_generations, scores.shape[1])
            return groups.mean(1, keepdim=True).expand_as(groups).reshape(scores.shape)

        trainer._calculate_rewards = flat


class TemperatureIgnored(Fault):
    """Answers are drawn at the configured temperature; their log-probabilities are those of temperature 1."""

    def check(self, config: CanaryConfig) -> None:
        if config.algo.temperature == 1.0:
            raise UsageError(
                f"fault={config.fault.name} with algo.temperature=1: there is nothing to leave out; expected another "
                "temperature"
            )

    def install(self, trainer: Any, fault: FaultConfig) -> None:
        from trl.trainer.utils import add_fused_lm_head

        policy = trainer.accelerator.unwrap_model(trainer.model)
        base = policy.get_base_model() if hasattr(policy, "get_base_model") else policy
        add_fused_lm_head(base, temperature=1.0, outputs=("log_probs", "entropy"))  # replaces the trainer's own
        if trainer.ref_model is not None:
            add_fused_lm_head(trainer.accelerator.unwrap_model(trainer.ref_model), temperature=1.0)
