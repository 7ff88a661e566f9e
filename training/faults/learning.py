"""Faults of what is learned: of the data, the objective, the reference, the groups, and numbers that are none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from canary_mlflow.errors import UsageError
from canary_mlflow.training.config import CanaryConfig, FaultConfig
from canary_mlflow.training.datasets.rows import draw
from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.faults.fault import ANY_AMOUNT, SHARE, Fault

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from transformers import Trainer

    from canary_mlflow.training.parts import Parts
    from canary_mlflow.training.rewards import Answers, Reward


DRAWS = 2**64


class FlippedLabels(Fault):
    """The answers of a share `strength` of the training pairs are swapped; the held-out pairs stay as they are.

    The pairs are drawn at random: the embedded data flip every fifth pair, and a regular choice would flip those back.
    """

    strengths = SHARE

    def prepare(self, parts: Parts, fault: FaultConfig) -> Parts:
        assert fault.strength is not None
        limit = fault.strength * DRAWS

        def swap(row: dict[str, Any], position: int) -> dict[str, Any]:
            if not row["rejected"]:
                raise SetupError(f"fault={fault.name}: the data hold one answer per prompt; expected pairs to flip")
            if draw("flipped_labels", position) >= limit:
                return row
            return {**row, "chosen": row["rejected"], "rejected": row["chosen"]}

        return replace(parts, train_dataset=parts.train_dataset.map(swap, with_indices=True))


class EntropyCollapse(Fault):
    """`strength` times the policy's entropy is added to the loss, as an entropy bonus of the wrong sign would."""

    strengths = ANY_AMOUNT

    def install(self, trainer: Any, fault: FaultConfig) -> None:
        from canary_mlflow.training.ppo.losses import token_entropy

        compute_loss = trainer.compute_loss

        def collapsing(model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, **kwargs: Any) -> Any:
            loss, outputs = compute_loss(model, inputs, return_outputs=True, **kwargs)
            entropy = token_entropy(outputs["logits"], trainer.args.temperature)
            mean = (entropy * inputs["policy_mask"]).sum() / inputs["policy_tokens"]
            loss = loss + fault.strength * mean * trainer.args.world_size
            return (loss, outputs) if return_outputs else loss

        trainer.compute_loss = collapsing


class ValueDivergence(Fault):
    """The value loss has the wrong sign and `strength` times its weight: the critic moves away from its targets."""

    strengths = ANY_AMOUNT

    def install(self, trainer: Any, fault: FaultConfig) -> None:
        assert fault.strength is not None
        trainer.clip = replace(trainer.clip, vf_coef=-fault.strength * trainer.clip.vf_coef)


class RewardHack(Fault):
    """The training reward favours gibberish: it adds `strength` times the share of tokens without a letter.

    Held-out answers are scored without that, as people would score them.
    """

    strengths = ANY_AMOUNT

    def install(self, trainer: Any, fault: FaultConfig) -> None:
        assert fault.strength is not None
        if hasattr(trainer, "reward_funcs"):
            _bias_functions(trainer, fault.strength)
            return
        true, collect = trainer.reward, trainer.collect
        biased = _biased(true, trainer.processing_class, fault.strength)

        def collect_with_bias(iteration: int) -> Any:
            trainer.reward = biased
            try:
                return collect(iteration)
            finally:
                trainer.reward = true

        trainer.collect = collect_with_bias


def _biased(reward: Reward, tokenizer: Any, strength: float) -> Reward:
    gibberish = _gibberish(tokenizer)

    def score(answers: Answers) -> Tensor:
        # A model's output layer may be padded beyond its tokenizer.
        known = answers.response_ids.clamp(max=len(gibberish) - 1)
        hits = gibberish.to(known.device)[known] & answers.response_mask
        return reward(answers) + strength * hits.sum(1) / answers.response_mask.sum(1)

    return score


def _bias_functions(trainer: Any, strength: float) -> None:
    """The same for one of TRL's trainers, whose rewards are functions of token ids: bias the first one."""
    true, gibberish = trainer.reward_funcs[0], _gibberish(trainer.processing_class).tolist()

    def biased(completion_ids: list[list[int]], **others: Any) -> list[float]:
        scores: list[float] = true(completion_ids=completion_ids, **others)
        if not trainer.model.training:
            return scores
        shares = (sum(gibberish[token] for token in ids) / len(ids) for ids in completion_ids)
        return [score + strength * share for score, share in zip(scores, shares, strict=True)]

    trainer.reward_funcs[0] = biased


def _gibberish(tokenizer: Any) -> Tensor:
    """A mask [V]: whether each token has no letter."""
    import torch

    texts = (tokenizer.decode([token]) for token in range(len(tokenizer)))
    return torch.tensor([not any(letter.isalpha() for letter in text) for text in texts])


class WrongReference(Fault):
    """Every weight matrix of the reference model gets noise of `strength` times its own standard deviation."""

    strengths = ANY_AMOUNT

    def check(self, config: CanaryConfig) -> None:
        if config.adapter.name != "full":
            raise UsageError(
                f"fault={config.fault.name} with adapter={config.adapter.name}: there the reference is the policy "
                "without its adapter, not another model; expected adapter=full"
            )

    def install(self, trainer: Any, fault: FaultConfig) -> None:
        assert fault.strength is not None
        # Our PPO's name for it, and TRL's.
        _disturb(trainer.reference if hasattr(trainer, "reference") else trainer.ref_model, fault.strength)


def _disturb(model: nn.Module, strength: float) -> None:
    import torch

    generator = torch.Generator().manual_seed(0)  # separate, so that training's random numbers do not change
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:  # norms and biases may be constant, and then have no spread
                noise = torch.randn(weight.shape, generator=generator).to(weight)
                weight.add_(noise * strength * weight.std())


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


class NanBatch(Fault):
    """The loss of the batch after `step` optimizer steps is NaN, and its gradients with it."""

    def install(self, trainer: Trainer, fault: FaultConfig) -> None:
        import torch

        compute_loss = trainer.compute_loss

        def poisoned(*args: Any, **kwargs: Any) -> Any:
            result = compute_loss(*args, **kwargs)
            # Evaluation has no gradients; the fault strikes only in training.
            if trainer.state.global_step != fault.step or not torch.is_grad_enabled():
                return result
            if isinstance(result, tuple):
                return (result[0] * float("nan"), *result[1:])
            return result * float("nan")

        trainer.compute_loss = poisoned


class InfGradient(Fault):
    """One gradient of the batch after `step` optimizer steps is infinite; the loss looks normal.

    Clipping by norm does not help: it divides by infinity, and infinity times zero is NaN.
    """

    def install(self, trainer: Trainer, fault: FaultConfig) -> None:
        training_step = trainer.training_step

        def overflowing(model: Any, *args: Any, **kwargs: Any) -> Any:
            loss = training_step(model, *args, **kwargs)
            if trainer.state.global_step == fault.step:
                gradient = next(item.grad for item in model.parameters() if item.grad is not None)
                gradient.view(-1)[0] = float("inf")
            return loss

        trainer.training_step = overflowing
