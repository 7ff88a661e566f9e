"""The one module that PPO trains: a policy and its value head, forwarded together."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from training.errors import SetupError


def position_ids_of(attention_mask: torch.Tensor) -> torch.Tensor:
    """Positions [R, L] that ignore padding; models with absolute positions need them under left padding."""
    return (attention_mask.cumsum(1) - 1).clamp(min=0)


def backbone_inputs(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, Any]:
    """Keyword arguments of a forward pass over whole sequences [R, L]."""
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "position_ids": position_ids_of(attention_mask),
        "use_cache": False,
    }


def response_logits(
    policy: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, response_length: int
) -> torch.Tensor:
    """Logits [R, T, V], in the model's precision, that predict the last T = response_length tokens."""
    output = policy(**backbone_inputs(input_ids, attention_mask), logits_to_keep=response_length + 1)
    logits: torch.Tensor = output.logits[:, -response_length - 1 : -1]
    return logits


class ActorCritic(nn.Module):
    """A causal language model with a value head on its last hidden state or on a separate backbone.

    One module, so that accelerate wraps it once. value_backbone is None for a shared head; else any module that returns
    `last_hidden_state`, without an LM head: DDP refuses parameters that are never used.
    """

    accepts_loss_kwargs = False  # keeps Trainer from counting and passing num_items_in_batch
    main_input_name = "input_ids"

    def __init__(self, policy: Any, value_backbone: nn.Module | None = None) -> None:
        super().__init__()
        self.policy = policy
        self.config = policy.config
        self.value_backbone = value_backbone
        hidden_size = self.config.get_text_config().hidden_size
        self.value_head = nn.Linear(hidden_size, 1, bias=False, device=next(policy.parameters()).device)
        nn.init.zeros_(self.value_head.weight)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, response_length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [R, T, V] that predict the last T = response_length tokens, and values [R, T] before each.

        Before any temperature; logits in the model's precision, values in float32.
        """
        inputs = backbone_inputs(input_ids, attention_mask)
        window = slice(-response_length - 1, -1)
        shared = self.value_backbone is None
        output = self.policy(**inputs, logits_to_keep=response_length + 1, output_hidden_states=shared)
        if self.value_backbone is None:
            hidden = output.hidden_states[-1]
        else:
            hidden = self.value_backbone(**inputs).last_hidden_state
        values = self.value_head(hidden[:, window].to(self.value_head.weight.dtype)).squeeze(-1)
        return output.logits[:, window], values.float()

    def activation_checkpointing_enable(self, **kwargs: Any) -> None:
        """Trainer's switch, passed on to the backbones."""
        self.policy.activation_checkpointing_enable(**kwargs)
        if self.value_backbone is not None and hasattr(self.value_backbone, "activation_checkpointing_enable"):
            self.value_backbone.activation_checkpointing_enable(**kwargs)


def build_actor_critic(model: Any, value_head: str, peft_config: Any | None = None) -> ActorCritic:
    """The module to train, without dropout, from a plain causal language model.

    value_head is `shared` or `separate`; a separate backbone starts as a copy of the model's and is trained in full,
    also beside a LoRA policy. Raises SetupError if that copy could not be trained.
    """
    backbone = None
    if value_head == "separate":
        if getattr(model, "is_quantized", False) or hasattr(model, "peft_config"):
            kind = "quantized" if getattr(model, "is_quantized", False) else "already adapted"
            raise SetupError(f"value_head is 'separate' on an {kind} model; expected 'shared' there")
        backbone = copy.deepcopy(model.base_model).requires_grad_(True)
    if peft_config is not None:
        from peft import get_peft_model, prepare_model_for_kbit_training

        if getattr(model, "is_quantized", False):
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        model = get_peft_model(model, peft_config)
    return without_dropout(ActorCritic(model, backbone))


def reference_of(policy: Any, given: Any, device: torch.device) -> Any:
    """The reference that holds the policy near its start: `given`, else a frozen copy; None if the policy with its
    adapters disabled is the reference."""
    if given is not None:
        return given.requires_grad_(False).eval().to(device)
    if hasattr(policy, "disable_adapter"):
        return None
    return copy.deepcopy(policy).requires_grad_(False).eval()


def without_dropout(model: ActorCritic) -> ActorCritic:
    """Switch dropout off for good.

    Trainer calls model.train() before every step; with dropout on, the ratio of new to old
    probabilities is not 1 on the first update (measured: |log ratio| up to .24 at p = .1).
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        # Attention passes its own dropout rate to the kernel.
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    return model
