"""A PPO checkpoint on disk: the policy as from_pretrained reads it, and the value head beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.trainer import TRAINING_ARGS_NAME

from training.errors import SetupError
from training.ppo.actor_critic import ActorCritic

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
