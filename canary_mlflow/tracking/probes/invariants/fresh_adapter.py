"""A new LoRA adapter changes no output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from canary_mlflow.tracking.probes import Setting
from canary_mlflow.tracking.probes.invariants import Invariant

OUTPUTS = ("lora_B", "lora_embedding_B")


class FreshAdapter(Invariant):
    """A new adapter's second factor is 0 in every layer (Hu et al. 2021, section 4.1), so the product is 0 too.

    Checks the weights: exact, without a forward pass. Does not apply if the adapter starts otherwise on purpose
    (`init_lora_weights` other than the default or gaussian), nor, unless `fresh` says so, if all factors are set:
    such an adapter comes from an earlier training.
    """

    name = "fresh adapter"

    def start(self, setting: Setting) -> None:
        if setting.resumed or setting.fresh is False:
            return
        policy = getattr(setting.model, "policy", setting.model)
        factors = dict(second_factors(policy))
        if not factors or not starts_at_zero(policy):
            return
        touched = [name for name, weight in factors.items() if bool(weight.detach().any())]
        if len(touched) == len(factors) and not setting.fresh:
            return
        self.hold(
            not touched,
            f"{len(touched)} of {len(factors)} new LoRA adapters change the output, the first at "
            f"{touched[0] if touched else ''}; a new adapter must change nothing",
        )


def second_factors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, weight) of the factor that starts at 0 in every trainable adapter."""
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.numel() and any(part in OUTPUTS for part in name.split(".")):
            yield name, weight


def starts_at_zero(model: Any) -> bool:
    """Whether every adapter's configuration asks for initial weights that change no output."""
    configs = getattr(model, "peft_config", {})
    starts = [getattr(config, "init_lora_weights", None) for config in configs.values()]
    return bool(starts) and all(start is True or start == "gaussian" for start in starts)
