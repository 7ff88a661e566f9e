"""What a training ended with: a few values of each tensor, the norm of the trained ones, and the model's answer to a
fixed batch. A folder that is later called its result is compared with that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from canary_mlflow.errors import one_line
from canary_mlflow.tracking.describing.fact_tags import jsonable
from canary_mlflow.tracking.describing.trained import TYPES, merged_name, places, saved_name
from canary_mlflow.tracking.probes import Probe, Setting
from canary_mlflow.tracking.probes.facts import base_of, policy_of, precision, tokenizer
from canary_mlflow.tracking.probes.parameters import products_of

LENGTH = 24  # tokens
POSITIONS = 8  # whose answer is kept, from the end, and tokens that follow, each the likeliest
COLUMNS = 64  # entries of the vocabulary of which it is kept, evenly spread
SPECIAL = ("_token_id", "_token_index", "_token_ids")


def answer_of(model: Any, ids: Sequence[int] | None = None) -> dict[str, Any]:
    """The model's logits in float32 for these tokens, by default those of its vocabulary, and how it goes on. Its
    modes, its gradients and the generators of random numbers are left as they were."""
    tokens = list(ids or tokens_for(model))
    devices = list({one.device for one in model.parameters() if one.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices), torch.no_grad(), evaluating(model):
        found, plain = logits_of(model, tokens)
        columns = torch.linspace(0, found.shape[-1] - 1, min(COLUMNS, found.shape[-1])).long().unique()
        said = {"ids": tokens, "width": int(found.shape[-1]), "columns": columns.tolist(), "plain": plain,
                "logits": found[-POSITIONS:, columns.to(found.device)].tolist(), "next": [], "gaps": []}  # fmt: skip
        while len(found) == len(tokens) and len(said["next"]) < POSITIONS:
            best = found[-1].topk(2)
            said["next"].append(int(best.indices[0]))
            said["gaps"].append(float(best.values[0] - best.values[1]))
            found, _ = logits_of(model, [*tokens[len(said["next"]) :], *said["next"]])
    return said


def tokens_for(model: Any) -> list[int]:
    """The batch: tokens far from each other, none that the model's configuration gives a meaning."""
    size = int(model.get_input_embeddings().weight.shape[0])
    named = (one for name, one in vars(model.config).items() if name.endswith(SPECIAL))
    meant = {one for found in named for one in (found if isinstance(found, list) else [found])}
    spread = [(7 + at * (int(size * 0.618) | 1)) % size for at in range(8 * LENGTH)]
    longest = min(LENGTH, getattr(model.config, "max_position_embeddings", None) or LENGTH)
    return ([one for one in spread if one not in meant] or spread)[:longest]


def logits_of(model: Any, tokens: Sequence[int]) -> tuple[torch.Tensor, bool]:
    """[positions, entries], one row for a model that classifies; and whether in the precision of its weights alone."""
    batch = torch.tensor([tokens], device=model.get_input_embeddings().weight.device)
    given = {"input_ids": batch, "attention_mask": torch.ones_like(batch)}
    if getattr(model.config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = batch
    plain = True
    try:
        said = type(model).forward(model, **given)  # past the autocast that accelerate puts around `forward`
    except Exception:  # noqa: BLE001 - an attention that float32 does not have
        plain, said = False, model(**given)
    found = said["logits"] if isinstance(said, Mapping) and "logits" in said else said[0]
    return found.float()[0].reshape(-1, found.shape[-1]), plain


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without dropout, for the length of a block."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


class Trained(Probe):
    """The artifact trained.json of a run that reaches its end. Last of the probes, when no other looks at the model any
    more. Sharded weights, which no rank holds, are not recorded, and it says so."""

    name = "trained"

    def __init__(self) -> None:
        self._setting: Setting | None = None
        self._ended = False
        self._tokenizer = ""
        self.text = ""

    def start(self, setting: Setting) -> None:
        if setting.first_rank:  # without the trainer: the run's journal must not keep it alive
            self._setting = replace(setting, trainer=None, optimizer=None)
            self._tokenizer = str(tokenizer(setting).get("digest", ""))

    def ended(self) -> None:
        self._ended = True

    def stop(self) -> None:
        setting, self._setting = self._setting, None
        if self._ended and setting is not None:
            self.text = json.dumps(jsonable({**look(setting), "tokenizer": self._tokenizer}))


def look(setting: Setting) -> dict[str, Any]:
    """All that is recorded; `unknown` and `unanswered` say what is not, and why."""
    model = policy_of(setting.model)
    model = getattr(model, "_orig_mod", model)
    if any(is_sharded(name, one) for name, one in model.named_parameters()):
        return {"unknown": "its weights were sharded over several processes"}
    found: dict[str, Any] = {}
    what = "unknown"
    try:
        base, adapters = base_of(model), getattr(model, "peft_config", None) or {}
        frozen = [one.dtype for one in base.parameters() if not one.requires_grad and one.is_floating_point()]
        found["tensors"] = {**dict(tensors_of(model, list(adapters))), **dict(merged_of(model, list(adapters)))}
        what = "unanswered"  # a model that takes other things than tokens
        generation = getattr(base, "generation_config", None)
        found |= {
            "class": type(base).__name__,
            "dtype": named(min(frozen or [base.dtype], key=lambda one: torch.finfo(one).bits)),
            "quantized": getattr(base.config, "quantization_config", None) is not None,
            "config.json": json.loads(base.config.to_json_string()),  # as a save writes them
            "generation_config.json": json.loads(generation.to_json_string()) if generation else {},
            "adapter_config.json": next((one.to_dict() for one in adapters.values()), {}),
        }
        answer, usual = answer_of(model), precision(setting)
        found["answer"] = {**answer, "precision": "fp32" if answer["plain"] and usual != "tf32" else usual}
    except Exception as error:  # noqa: BLE001 - what is not known is said
        found[what] = f"{type(error).__name__}: {one_line(error)}"
    return found


def is_sharded(name: str, weight: Any) -> bool:
    """Whether this process holds only a part of a weight: FSDP's two kinds, and DeepSpeed's third stage."""
    return hasattr(weight, "to_local") or hasattr(weight, "ds_id") or "_fsdp_wrapped_module" in name


def tensors_of(model: Any, adapters: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Its name in a file, with a few values, of each weight that can be read; the frozen ones too, without a norm."""
    for name, one in model.named_parameters():
        left_out = ".original_module." in name or (".lora_" in name and not one.requires_grad)
        if one.is_floating_point() and one.numel() and not one.is_meta and not left_out:
            said = {**values_at(one), "norm": norm(one) if one.requires_grad else None}
            if one.requires_grad or not adapters:  # an adapter's folder does not hold the weights below
                said["digest"] = digest(one)
            yield saved_name(name, adapters), said


def merged_of(model: Any, adapters: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same of what a layer's weight is with its adapter, W + scale · BA. Left out is what this does not describe:
    two adapters on one layer, other kinds of LoRA, quantized weights."""
    for path, module in model.named_modules():
        found = list(products_of(path, module))
        weight = getattr(module.get_base_layer(), "weight", None) if len(found) == 1 else None
        across = bool(getattr(module, "fan_in_fan_out", False))
        if weight is None or not weight.is_floating_point() or weight.is_meta or getattr(module, "lora_variant", None):
            continue
        left, right = (factor.detach().cpu().double() for factor in (found[0].left, found[0].right))
        if tuple(weight.shape)[:: -1 if across else 1] == (left.shape[0], right.shape[1]):
            said, at = values_at(weight), torch.tensor(places(weight.numel()))
            row, column = (at // weight.shape[1], at % weight.shape[1])[:: -1 if across else 1]
            added = (found[0].scaling * (left[row] * right.T[column]).sum(1)).tolist()
            parts = [saved_name(name, adapters) for name in found[0].names]
            name = merged_name(saved_name(f"{path}.weight", adapters))
            yield name, {**said, "added": added, "of": parts}


def values_at(weight: Any) -> dict[str, Any]:
    """A few values of a tensor, its size and its type."""
    at = torch.tensor(places(weight.numel()), device=weight.device)
    found = weight.detach().take(at).cpu().double().tolist()
    return {"count": weight.numel(), "dtype": named(weight.dtype), "values": found}


def digest(weight: Any) -> str:
    """sha256 of a tensor's type and bytes, as registry/guard/trained.py makes it of a file's."""
    found = hashlib.sha256(TYPES.get(named(weight.dtype), "").encode())
    found.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def norm(weight: Any) -> float:
    """The root of the sum of a tensor's squares, in the best precision that its device has."""
    exact = torch.float32 if weight.device.type == "mps" else torch.float64
    return float(torch.linalg.vector_norm(weight.detach(), dtype=exact))


def named(dtype: Any) -> str:
    """`bfloat16`"""
    return str(dtype).removeprefix("torch.")
