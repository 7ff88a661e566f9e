"""The one module that PPO trains: a policy and its value head, run over answers together, and saved together."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.trainer import TRAINING_ARGS_NAME

from canary_mlflow.training.errors import SetupError
from canary_mlflow.training.ppo.losses import token_entropy, token_logps
from canary_mlflow.training.ppo.rollout import Scored, attention_mask_of
from canary_mlflow.training.rewards import Answers


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


@torch.no_grad()
def score_answers(
    model: ActorCritic,
    reference: Any,
    answers: Answers,
    *,
    rows: int,
    temperature: float,
    autocast: Callable[[], AbstractContextManager[None]],
) -> Scored:
    """Log-probabilities, values and entropy [R, T], computed in micro-batches of `rows`.

    Computed with the update's own shape, padding and code, so that the first ratio is exactly 1; the log-probabilities
    seen while sampling are off by up to 1e-6 (bf16: 2e-3). reference is None if the policy with its adapters disabled
    is the reference.
    """
    input_ids = torch.cat([answers.prompt_ids, answers.response_ids], dim=1)
    mask = attention_mask_of(answers)
    parts: list[tuple[torch.Tensor, ...]] = []
    for index in torch.arange(len(input_ids), device=mask.device).split(rows):
        responses = answers.response_ids[index]
        inputs = (input_ids[index], mask[index], responses.shape[1])
        # Nothing autocasts by itself outside the prepared module, and without it the first KL would not be 0.
        with autocast():
            logits, values = model(*inputs)
        old_logps, entropy = token_logps(logits, responses, temperature), token_entropy(logits, temperature)
        del logits  # before the reference's are made: each is as large as a small model
        with autocast():
            base = _reference_logits(model, reference, inputs)
        parts.append((old_logps, token_logps(base, responses, temperature), values, entropy))
    old_logps, ref_logps, values, entropy = (torch.cat(column) for column in zip(*parts, strict=True))
    return Scored(old_logps=old_logps, ref_logps=ref_logps, values=values, entropy=entropy)


def _reference_logits(model: ActorCritic, reference: Any, inputs: tuple[torch.Tensor, torch.Tensor, int]) -> Any:
    if reference is not None:
        return response_logits(reference, *inputs)
    with model.policy.disable_adapter():
        return response_logits(model.policy, *inputs)


VALUE_FILE = "value_head.safetensors"


def save_checkpoint(model: ActorCritic, tokenizer: Any, args: Any, folder: Path) -> None:
    """Write everything that a checkpoint folder holds, except Trainer's own state."""
    folder.mkdir(parents=True, exist_ok=True)
    save_actor_critic(model, folder)
    tokenizer.save_pretrained(folder)
    torch.save(args, folder / TRAINING_ARGS_NAME)


def save_actor_critic(model: ActorCritic, folder: Path) -> None:
    """Write the policy (adapter or full model) and the value head; Trainer itself would write neither in a loadable
    form."""
    model.policy.save_pretrained(folder)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if not _of_policy(name)}
    save_file(tensors, folder / VALUE_FILE)


def load_actor_critic(model: ActorCritic, folder: Path) -> None:
    """Read what save_actor_critic wrote, bit for bit, into a module built the same way.

    Raises SetupError if files are missing or do not fit.
    """
    if not (folder / VALUE_FILE).is_file():
        raise SetupError(f"{folder} has no {VALUE_FILE}; expected a PPO checkpoint")
    if hasattr(model.policy, "peft_config"):
        _load_adapter(model.policy, folder)
    else:
        # Not load_file: transformers renames weights on disk (NeoX: lm_head is embed_out there).
        stored = type(model.policy).from_pretrained(folder, dtype=model.policy.dtype)
        model.policy.load_state_dict(stored.state_dict())
    rest = load_file(folder / VALUE_FILE)
    result = model.load_state_dict(rest, strict=False)
    missing = [name for name in result.missing_keys if not _of_policy(name)]
    if missing or result.unexpected_keys:
        raise SetupError(f"{folder / VALUE_FILE} does not fit: {[*missing, *result.unexpected_keys][:3]}")


def _load_adapter(policy: Any, folder: Path) -> None:
    from peft import load_peft_weights, set_peft_model_state_dict

    set_peft_model_state_dict(policy, load_peft_weights(str(folder), device=str(next(policy.parameters()).device)))


def _of_policy(name: str) -> bool:
    return name.startswith("policy.")
