"""The exact facts of a run, which have no noise: what trains, with which resolved settings, on which tokens.

gates/facts/exact.py compares it.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import torch

from canary_mlflow.gates.facts.check import INCIDENTAL
from canary_mlflow.gates.facts.regressions import LOST
from canary_mlflow.tracking.describing.data_facts import (
    IGNORED_LABEL,
    held_out_trained,
    labels_in,
    near_copies,
    rows_in,
    tokens_in,
)
from canary_mlflow.tracking.describing.fact_tags import as_text, digest, jsonable, to_tags
from canary_mlflow.tracking.describing.trained import rules_digest
from canary_mlflow.tracking.describing.workload import NO_SETTING, algorithm_of, changed_fields
from canary_mlflow.tracking.probes import Probe, Row, Setting
from canary_mlflow.tracking.probes.hooks import ForwardHook

LOOKED_AT = ("input_ids", "labels", "attention_mask", "position_ids")
LOOKED_INTO = 2  # steps
UNTOLD = ("params", "lr", "names")
"""Keys of an optimizer's group that are no settings."""

Found = dict[str, Any]


class ExactFacts(Probe):
    """Records what is known before the first step, and the tokens of the first step as they reach the model.

    The first losses and gradient norms are already series. A fact that this trainer does not have is left out, and an
    odd one does not keep the others from being recorded.
    """

    name = "facts"

    def __init__(self) -> None:
        self._groups: dict[str, Found] = {}
        self._hook: ForwardHook | None = None
        self._seen: list[list[dict[str, Any]]] = [[]]  # the batches of the first steps
        self._model: weakref.ref[Any] | None = None

    def start(self, setting: Setting) -> None:
        self._model = weakref.ref(setting.model)
        for group, find in GROUPS.items():
            with suppress(Exception):
                self._groups[group] = find(setting)
        # A resumed training has no first step, and a hook would break a compiled graph.
        if not setting.compiled and not setting.resumed:
            self._hook = ForwardHook(setting.model, self._see)

    def listens(self, event: str) -> bool:
        return self._hook is not None and super().listens(event)

    def _see(self, inputs: Mapping[str, Any], output: Any) -> None:
        """Keep only the part of a batch that is used: pictures would show in the peak memory."""
        self._seen[-1].append({name: inputs.get(name) for name in LOOKED_AT})

    def step_ended(self, row: Row) -> None:
        if self._hook is None:
            return
        with suppress(Exception):
            if len(self._seen) == 1:
                self._groups["first"] = first_batches(self._seen[0])
            else:
                self._groups["batches"] = repeated(chain.from_iterable(self._seen))
        self._seen.append([])
        if len(self._seen) > LOOKED_INTO:
            self.stop()
            self._seen = []

    def stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def tags(self) -> Mapping[str, str]:
        model = None if self._model is None else self._model()
        if model is not None and "parameters" in self._groups:  # loading a checkpoint in mid-run may freeze them
            moving = (one for one in model.parameters() if one.requires_grad)
            self._groups["parameters"]["trainable_at_end"] = sum(map(size, moving))
        return to_tags(self._groups)


def parameters(setting: Setting) -> Found:
    """How many parameters there are, how many of them are trained, which ones, and their types."""
    named = list(setting.model.named_parameters())
    trainable = [(name, one) for name, one in named if one.requires_grad]
    return {
        "trainable": sum(map(size, (one for _, one in trainable))),
        "total": sum(map(size, (one for _, one in named))),
        "names": digest("\n".join(sorted(name for name, _ in trainable))),
        "dtype": counted(str(one.dtype).removeprefix("torch.") for _, one in trainable or named),
        "frozen_dtype": counted(str(one.dtype).removeprefix("torch.") for _, one in named if not one.requires_grad),
    }


def size(parameter: Any) -> int:
    """The full size of a parameter: DeepSpeed's third stage leaves each rank an empty tensor, which knows it."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def model(setting: Setting) -> Found:
    """The model's class, attention, dropout, and where its configuration differs from its class's defaults."""
    base = base_of(setting.model)
    config = getattr(base, "config", None)
    drops = (f"{module.p:g}" for module in setting.model.modules() if isinstance(module, torch.nn.Dropout))
    return {
        "class": type(base).__name__,
        "attention": getattr(config, "_attn_implementation", None),
        "dropout": counted(drops),
        **settings_of(config),
    }


def adapter(setting: Setting) -> Found:
    """Where PEFT's configurations differ from their defaults."""
    found = getattr(setting.model, "peft_config", None) or getattr(policy_of(setting.model), "peft_config", None) or {}
    several = len(found) > 1
    return {
        f"{name}.{key}" if several else key: value
        for name, config in found.items()
        for key, value in {"kind": type(config).__name__, **changed_fields(config, config.to_dict())}.items()
    }


def generation(setting: Setting) -> Found:
    """Where the model's generation settings differ from Transformers' defaults."""
    return settings_of(getattr(base_of(setting.model), "generation_config", None))


def training(setting: Setting) -> Found:
    """The optimizer, schedule and precision that the trainer settled on, by their classes."""
    optimizer = getattr(setting.optimizer, "optimizer", setting.optimizer)  # accelerate wraps both
    scheduler = getattr(setting.trainer, "lr_scheduler", None)
    scheduler = getattr(scheduler, "scheduler", scheduler)
    return {
        **({} if setting.trainer is None else {"trainer": type(setting.trainer).__name__}),
        "precision": precision(setting),
        **({} if optimizer is None else {"optimizer": type(optimizer).__name__, "groups": groups_of(optimizer)}),
        **({} if scheduler is None else {"scheduler": schedule_of(scheduler)}),
        **kept_of(optimizer, scheduler, setting.resumed),
    }


def kept_of(optimizer: Any, scheduler: Any, resumed: bool) -> Found:
    """Whether optimizer and schedule go on as they were: a checkpoint without their files is resumed in silence. One
    that has no memory, such as plain SGD, loses none."""
    memory = {"optimizer": getattr(optimizer, "state", None), "scheduler": getattr(scheduler, "last_epoch", None)}
    plain = type(optimizer).__name__ == "SGD" and not optimizer.defaults.get("momentum")
    lost = {what: resumed and not held and not (plain and what == "optimizer") for what, held in memory.items()}
    return {f"{what}_state": LOST if lost[what] else "kept" for what, held in memory.items() if held is not None}


def precision(setting: Setting) -> str:
    """The precision in which a step is computed, which tells by how much numbers may differ through rounding alone."""
    types = {one.dtype for one in setting.model.parameters()}
    if setting.arguments.get("bf16") or torch.bfloat16 in types:
        return "bf16"
    if setting.arguments.get("fp16") or torch.float16 in types:
        return "fp16"
    return "tf32" if setting.device == "cuda" and torch.backends.cuda.matmul.allow_tf32 else "fp32"


def groups_of(optimizer: Any) -> str:
    """The settings of each parameter group, with its number of tensors; the learning rate is the initial one."""
    said = []
    for group in optimizer.param_groups:
        own = {key: value for key, value in group.items() if key not in UNTOLD and value not in (None, False)}
        rate = {} if "initial_lr" in group or "lr" not in group else {"initial_lr": float(group["lr"])}
        said.append({**own, **rate, "tensors": len(group["params"])})
    return json.dumps(jsonable(said), sort_keys=True)


def schedule_of(scheduler: Any) -> str:
    """`LambdaLR _get_linear_schedule_with_warmup_lr_lambda`: Transformers' schedules are lambdas of one class."""
    lambdas = [getattr(one, "func", one) for one in getattr(scheduler, "lr_lambdas", ())]
    return " ".join(dict.fromkeys([type(scheduler).__name__, *(getattr(one, "__name__", "?") for one in lambdas)]))


def arguments(setting: Setting) -> Found:
    """The trainer's resolved arguments that differ from their class's defaults."""
    args, algo = setting.trainer.args, algorithm_of(setting.trainer.args, setting.trainer)
    return {"class": type(args).__name__, "algo": algo, **changed_fields(args, args.to_dict())}


def defaults(setting: Setting) -> Found:
    """The arguments at their class's default: if a library flips one, the change is seen and known not to be on
    purpose."""
    args = setting.trainer.args
    values = args.to_dict()
    changed = changed_fields(args, values)
    return {name: values[name] for name in sorted(values) if name not in {*changed, *INCIDENTAL, *NO_SETTING}}


def tokenizer(setting: Setting) -> Found:
    """The tokenizer's vocabulary, rules and template, each as a digest."""
    found = getattr(setting.trainer, "processing_class", None)
    found = getattr(found, "tokenizer", found)  # a processor holds one
    if found is None:
        return {}
    template = getattr(found, "chat_template", None)
    ids = {name: getattr(found, f"{name}_token_id", None) for name in ("bos", "eos", "pad")}
    return {
        "class": type(found).__name__,
        "size": len(found),
        "digest": rules_of(found),
        "chat_template": "none" if template is None else digest(as_text(template) + str(template)),
        "padding_side": found.padding_side,
        "truncation_side": found.truncation_side,
        **ids,
    }


def rules_of(tokenizer: Any) -> str:
    """The tokenizer's rules, or its vocabulary if it has none that can be written down."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "to_str"):
        return digest(json.dumps(tokenizer.get_vocab(), sort_keys=True))
    return rules_digest(json.loads(backend.to_str()))


def rewards(setting: Setting) -> Found:
    """The weight of each reward function of TRL's trainers, by the name under which its mean is logged; {} where two
    share a name."""
    names = list(getattr(setting.trainer, "reward_func_names", ()))
    weights = getattr(setting.trainer, "reward_weights", None)
    if weights is None or len(set(names)) < len(names):
        return {}
    told = (round(weight, 6) for weight in torch.as_tensor(weights).tolist())  # 0.3 in a single precision
    return dict(zip(names, told, strict=True))


def data(setting: Setting) -> Found:
    """Rows and tokens as the trainer prepared them."""
    train, held_out = (getattr(setting.trainer, f"{name}_dataset", None) for name in ("train", "eval"))
    rows = {**rows_in("rows", train), **rows_in("held_out_rows", held_out)}
    tokens = {**tokens_in(train, order="order"), **tokens_in(held_out, "tokens.held_out")}
    labels = {**labels_in(train), **labels_in(held_out, "labels.held_out")}
    return {**rows, **tokens, **labels, **held_out_trained(train, held_out), **near_copies(train, held_out)}


GROUPS: Mapping[str, Callable[[Setting], Found]] = {
    "parameters": parameters,
    "model": model,
    "adapter": adapter,
    "generation": generation,
    "training": training,
    "arguments": arguments,
    "defaults": defaults,
    "tokenizer": tokenizer,
    "rewards": rewards,
    "data": data,
}


def first_batches(seen: Sequence[Mapping[str, Any]]) -> Found:
    """The sequences of the first step and which of their tokens are learned, without padding and independent of order:
    batching and padding affect how a step is computed, not its data."""
    sequences = [row for inputs in seen for row in unpadded(inputs, "input_ids")]
    labels = [row for inputs in seen for row in unpadded(inputs, "labels")]
    learned = [[one for one in row if one != IGNORED_LABEL] for row in labels]
    found: Found = {}
    if sequences:
        found["tokens"] = f"{sum(map(len, sequences))} in {len(sequences)} sequences, {digest_of(sequences)}"
    if labels:
        found["labels"] = f"{sum(map(len, learned))}, {digest_of(learned)}"
    return found


def repeated(seen: Iterable[Mapping[str, Any]]) -> Found:
    """How many batches had come before: two workers that do not share a stream out read it once each."""
    batches = [digest_of([*unpadded(inputs, "input_ids")]) for inputs in seen]
    return {"repeated": len(batches) - len({*batches})}


def unpadded(inputs: Mapping[str, Any], name: str) -> Iterator[list[int]]:
    """The rows of a batch, without padding. A padding-free batch has no mask: its rows begin where positions
    restart."""
    ids, mask, positions = (inputs.get(key) for key in (name, "attention_mask", "position_ids"))
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2:
        return
    if isinstance(mask, torch.Tensor) and mask.shape == ids.shape:
        yield from (row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True))
    elif isinstance(positions, torch.Tensor) and positions.shape == ids.shape:
        for row, place in zip(ids.tolist(), positions.tolist(), strict=True):
            begins = [at for at, position in enumerate(place) if position == 0] or [0]
            yield from (row[a:b] for a, b in zip(begins, [*begins[1:], len(row)], strict=True))
    else:
        yield from ids.tolist()


def digest_of(rows: Sequence[Sequence[int]]) -> str:
    """A digest of rows, independent of their order."""
    return digest("\n".join(sorted(hashlib.sha256(repr(list(row)).encode()).hexdigest() for row in rows)))


def base_of(held: Any) -> Any:
    """The model inside adapters and our PPO's heads."""
    policy = policy_of(held)
    return policy.get_base_model() if hasattr(policy, "get_base_model") else policy


def policy_of(held: Any) -> Any:
    """The policy: our PPO holds it beside its value head."""
    return getattr(held, "policy", held)


def settings_of(config: Any) -> Found:
    """Where a configuration differs from its class's defaults; {} for no configuration."""
    found = config.to_diff_dict() if hasattr(config, "to_diff_dict") else {}
    return {key: value for key, value in found.items() if key not in NO_SETTING and value is not None}


def counted(words: Iterator[str]) -> str:
    """`24 of bfloat16, 2 of float32`; `none`."""
    return ", ".join(f"{count} of {word}" for word, count in sorted(Counter(words).items())) or "none"
