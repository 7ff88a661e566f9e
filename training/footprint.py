"""How much device memory a configuration needs, counted with tensors that have shapes but no values.

A training step of the algorithm runs with the libraries' own forward, loss and backward on fake tensors, while the
storages that are alive are added up. Rows have the full length that the configuration allows. Sizes are in bytes.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.devices import Device
from canary_mlflow.training.errors import SetupError, first_line
from canary_mlflow.training.loading import unfit
from canary_mlflow.training.memory import loading_options
from canary_mlflow.training.models import read_config
from canary_mlflow.training.quantization import stored

LARGEST = {"vocab_size": 10_000_000, "num_hidden_layers": 10_000}
STATES = {  # bytes of the optimizer's states per trained weight, or once or twice the weight's own dtype
    "adamw_torch": "2w", "adamw_torch_fused": "2w", "adafactor": 0.05, "sgd": 0, "rmsprop": "1w", "adamw_8bit": 2.0,
    "paged_adamw_8bit": 2.0, "paged_adamw_32bit": 8.0, "lion_8bit": 1.0, "lion_32bit": 4.0,
}  # fmt: skip
QUANTIZED = {"nf4": 0.5 + 4 / 64, "int8": 1.0}  # bytes of a frozen weight of a linear layer, scales included


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The memory that is needed, in bytes. `activations`: what a step holds at its peak beside the rest, with logits.

    `total`: the larger of the phases: a training step and, if answers are drawn, drawing them.
    """

    parameters: int  # a count, not bytes
    trained: int  # how many of them are trained
    weights: int
    reference: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    kv_cache: int
    total: int


class Living(TorchDispatchMode):
    """Adds up the storages that are alive, in bytes: `now`, and at their `peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: Any = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf.untyped_storage())
        return found

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        size = storage.nbytes()
        self._seen[storage] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, size)

    def _drop(self, size: int) -> None:
        self.now -= size


def footprint(config: CanaryConfig, folder: Path, device: Device) -> Footprint:
    """What the configuration needs for the model whose config.json is in the folder; no weight is read. Raises
    SetupError if Transformers makes no such model of it.

    Quantized weights, an optimizer's states and the cache of drawn answers are counted by arithmetic.
    """
    with torch.device("meta"):
        model = _model(config, folder, device)
        _patch(config, model)
        reference, module = _reference_and_module(config, model)
    with FakeTensorMode(allow_non_fake_inputs=True), Living() as living, _operators(model, device):
        _put_on_cpu(module)
        if reference is not None:
            _put_on_cpu(reference)
        trained = [item for item in module.parameters() if item.requires_grad]
        saved = _saved_by_quantization(_quantized(config, folder), module)
        gradients = _size(trained)
        optimizer = _states(config, trained)
        weights = _bytes(module) - saved
        frozen = _bytes(reference) if reference is not None else 0
        resting = living.now
        living.peak = resting
        try:
            with _precision(device):
                loss, logits = _step(config, module, reference)
            loss.backward()
        except Exception as error:
            raise SetupError(
                f"a step of the model in {folder} cannot be counted without its weights: {first_line(error)}"
            ) from error
        # The gradients exist at the end of backward, and are part of its peak.
        held = living.peak - resting
        after = gradients + _largest(trained)
    activations = max(held - gradients, 0)
    cache, drawn = _drawing(config, module, device)
    fixed = weights + frozen + optimizer
    return Footprint(
        parameters=sum(item.numel() for item in module.parameters()),
        trained=sum(item.numel() for item in trained),
        weights=weights,
        reference=frozen,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        logits=logits,
        kv_cache=cache,
        total=fixed + max(held, after, cache + drawn),
    )


def _model(config: CanaryConfig, folder: Path, device: Device) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    scores = config.algo.head == "score"
    kind: Any = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    try:
        settings = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        if scores:
            settings.num_labels = 1
            settings.pad_token_id = 0
        _refuse_endless(settings.get_text_config())
        return kind.from_config(settings, **loading_options(config, device))
    except Exception as error:
        raise unfit(folder, config, error) from error


def _refuse_endless(settings: Any) -> None:
    """Raise ValueError for sizes that no model has, whose counting would take minutes or hours."""
    for key, most in LARGEST.items():
        if (found := getattr(settings, key, None) or 0) > most:
            raise ValueError(f"{key} is {found:,}; expected at most {most:,}")


def _reference_and_module(config: CanaryConfig, model: Any) -> tuple[Any, Any]:
    """The frozen reference (None if there is none) and the module that is trained, as the trainers make them."""
    from canary_mlflow.training.adapters import peft_config

    name, adapted = config.algo.name, peft_config(config.adapter, model, config.algo.head)
    holds = name in ("dpo", "kto", "ppo") or (name in ("grpo", "rloo") and config.algo.beta)
    reference = None
    if holds and adapted is None:
        reference = copy.deepcopy(model).requires_grad_(False).eval()
        _patch(config, reference)
    if name == "ppo":
        from canary_mlflow.training.ppo.actor_critic import build_actor_critic

        module: Any = build_actor_critic(model, config.algo.value_head, adapted)
    elif adapted is not None:
        from peft import get_peft_model

        module = get_peft_model(model, adapted)
    else:
        module = model
    if config.memory.gradient_checkpointing:
        module.train()
        switch = getattr(module, "activation_checkpointing_enable", None) or module.gradient_checkpointing_enable
        switch()
        if adapted is not None and hasattr(model, "enable_input_require_grads"):
            model.enable_input_require_grads()
    return reference, module.train()


def _put_on_cpu(module: Any) -> None:
    """Replace a `meta` module's tensors by fake ones that claim to be on a CPU, whose operators are counted."""
    made: dict[int, torch.Tensor] = {}
    for part in module.modules():
        for name, item in part._parameters.items():
            if item is not None:
                new = made.setdefault(id(item), torch.nn.Parameter(torch.empty_like(item, device="cpu"), False))
                part._parameters[name] = new.requires_grad_(item.requires_grad)  # the same tensor for tied weights
        for name, item in part._buffers.items():
            if item is not None:
                part._buffers[name] = made.setdefault(id(item), torch.empty_like(item, device="cpu"))


@contextmanager
def _operators(model: Any, device: Device) -> Iterator[None]:
    """Count what the device's own operators hold, though all tensors claim to be on a CPU."""
    from trl.trainer import utils

    width = "_CHUNKED_LOGPROB_CHUNK_SIZE"
    kernels = import_module("trl.kernels.chunked_logprob") if find_spec("trl.kernels") else None
    with ExitStack() as patched:
        if device.kind == "cpu" and hasattr(utils, width):
            # A tile of more columns than the vocabulary: memory that is allocated but never touched costs nothing.
            columns = min(getattr(utils, width), model.config.get_text_config().vocab_size)
            patched.enter_context(patch.object(utils, width, columns))
        if device.kind == "cuda":
            for name in ("_forward_tile", "_backward_tile", "_addmm_fp32"):  # there a kernel that works in place
                if hasattr(kernels, name):
                    patched.enter_context(patch.object(kernels, name, lambda *_, **__: None))
            patched.enter_context(patch.object(torch.nn.functional, "dropout", _fused_dropout))
        experts = import_module("transformers.integrations.moe") if find_spec("transformers.integrations.moe") else None
        if hasattr(experts, "_can_use_grouped_mm"):  # torch's own product of groups has shapes for bf16 alone
            patched.enter_context(patch.object(experts, "_can_use_grouped_mm", lambda *_: False))
        yield


def _fused_dropout(inputs: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """As on a GPU, where a byte per element is kept for backward; on a CPU as much as the element takes."""
    return torch.native_dropout(inputs, p, True)[0] if training and p else inputs


def _patch(config: CanaryConfig, model: Any) -> None:
    """Use TRL's loss without whole logits, if the installed TRL has it."""
    if config.algo.head != "language" or config.algo.name == "ppo" or not _is_fused():
        return
    from trl.trainer.utils import add_fused_lm_head

    more = ("log_probs", "entropy", "is_top1") if config.algo.name != "kto" else ("log_probs",)
    add_fused_lm_head(model, outputs=more)


def _step(config: CanaryConfig, module: Any, reference: Any) -> tuple[torch.Tensor, int]:
    """Run the forward passes of one step; return its loss and the bytes of the logits that exist at once."""
    train, name = config.train, config.algo.name
    rows = train.batch_size
    if name == "ppo":
        return _ppo_step(config, module, reference)
    if name in ("grpo", "rloo"):
        return _lm_step(module, reference, rows, config.algo.max_prompt_length + config.algo.max_new_tokens)
    if config.algo.head == "score":
        ids = torch.zeros(2 * rows, train.max_length, dtype=torch.long)
        return module(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits.sum(), 0
    return _lm_step(module, reference, 2 * rows if name == "dpo" else rows, train.max_length)


def _lm_step(module: Any, reference: Any, rows: int, length: int) -> tuple[torch.Tensor, int]:
    ids = torch.zeros(rows, length, dtype=torch.long)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids, "use_cache": False}
    logps, logits = _logps(module, given)
    if reference is not None:
        with torch.no_grad():
            _logps(reference, given)
    return -logps.sum(), logits


def _logps(module: Any, given: dict[str, Any]) -> tuple[torch.Tensor, int]:
    if _is_fused():
        return module(**given, fused_lm_head=True).log_probs, 0
    logits = module(**{key: value for key, value in given.items() if key != "labels"}).logits
    logps = torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, given["labels"][:, 1:, None])
    return logps, logits.numel() * logits.element_size()


def _is_fused() -> bool:
    from trl.trainer import utils

    return hasattr(utils, "add_fused_lm_head")


def _ppo_step(config: CanaryConfig, module: Any, reference: Any) -> tuple[torch.Tensor, int]:
    """The same for PPO: an update of one minibatch, and the scoring of the finished rollout before it."""
    from canary_mlflow.training.ppo.actor_critic import response_logits
    from canary_mlflow.training.ppo.losses import token_entropy, token_logps

    algo = config.algo
    rows, answer = config.train.batch_size // algo.num_minibatches, algo.max_new_tokens
    ids = torch.zeros(rows, algo.max_prompt_length + answer, dtype=torch.long)
    mask, answers = torch.ones_like(ids), torch.zeros(rows, answer, dtype=torch.long)
    with torch.no_grad():
        logits, _ = module(ids, mask, answer)
        token_logps(logits, answers, algo.temperature)
        token_entropy(logits, algo.temperature)
        del logits
        base = response_logits(reference if reference is not None else module.policy, ids, mask, answer)
        token_logps(base, answers, algo.temperature)
    del base
    logits, values = module(ids, mask, answer)
    size = logits.numel() * logits.element_size()
    return token_logps(logits, answers, algo.temperature).sum() + values.sum(), size


def _drawing(config: CanaryConfig, module: Any, device: Device) -> tuple[int, int]:
    """The bytes of the key-value cache of drawn answers, and of the logits of their last token; 0 if none are drawn."""
    if config.algo.name not in ("ppo", "grpo", "rloo"):
        return 0, 0
    settings = module.config.get_text_config()
    heads = getattr(settings, "num_key_value_heads", None) or settings.num_attention_heads
    width = getattr(settings, "head_dim", None) or settings.hidden_size // settings.num_attention_heads
    tokens = config.algo.max_prompt_length + config.algo.max_new_tokens
    element = 2 if device.precision == "bf16" or config.memory.weights == "bf16" else 4
    rows = config.train.batch_size
    cache = 2 * settings.num_hidden_layers * heads * width * tokens * rows * element
    return cache, 3 * rows * settings.vocab_size * 4


def _quantized(config: CanaryConfig, folder: Path) -> str:
    """How frozen weights are kept: as asked for, else as they are in the files."""
    return config.quantization.name if config.quantization.name != "none" else stored(read_config(folder))


def _saved_by_quantization(kind: str, module: Any) -> int:
    each = QUANTIZED.get(kind)
    if each is None:
        return 0
    saved = 0.0
    for name, layer in module.named_modules():
        weight = getattr(layer, "weight", None)
        if isinstance(layer, torch.nn.Linear) and isinstance(weight, torch.Tensor) and not weight.requires_grad:
            if name.rpartition(".")[2] in ("lm_head", "embed_out", "score"):
                continue  # bitsandbytes does not quantize the head
            saved += weight.numel() * (weight.element_size() - each)
    return int(saved)


def _states(config: CanaryConfig, trained: list[torch.Tensor]) -> int:
    each = STATES[config.train.optimizer]
    if isinstance(each, str):
        return int(each[0]) * _size(trained)
    return int(each * sum(item.numel() for item in trained))


@contextmanager
def _precision(device: Device) -> Iterator[None]:
    """The trainer's mixed precision, on the device whose operators are counted."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=device.precision == "bf16"):
        yield


def _size(tensors: list[torch.Tensor]) -> int:
    return sum(item.numel() * item.element_size() for item in tensors)


def _bytes(module: Any) -> int:
    found = {id(item): item for item in (*module.parameters(), *module.buffers())}
    return _size(list(found.values()))


def _largest(trained: list[torch.Tensor]) -> int:
    """The bytes that an optimizer briefly holds beside its states, as it goes weight by weight."""
    return max((item.numel() * item.element_size() for item in trained), default=0)
