"""Trains the variants of a canary for a few steps each, in this process and without separate runs, and records each
one's exact facts, which gates/facts/exact.py compares."""

from __future__ import annotations

import gc
import hashlib
import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, set_seed

from canary_mlflow.tracking.describing.fact_tags import facts_in, to_tags
from canary_mlflow.tracking.describing.failures import raised
from canary_mlflow.tracking.probes import Setting
from canary_mlflow.tracking.probes.facts import ExactFacts
from canary_mlflow.training.algorithms import build
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.devices import Device
from canary_mlflow.training.errors import first_line
from canary_mlflow.training.parts import Inputs, build_parts
from canary_mlflow.training.variants import variants_of

FINISHED = "finished"
OUTCOME = "outcome"
LOGGED = ("loss", "grad_norm")
CHECKED = ("model", "optimizer", "scheduler", "random")
"""What a checkpoint must restore, and on which the next step depends."""

Groups = dict[str, dict[str, Any]]


def variant_tags(
    config: CanaryConfig, inputs: Inputs, device: Device, scratch: Path, say: Callable[[str], None]
) -> dict[str, str]:
    """The facts of every variant as tags of the run, `canary.facts.<variant>/<group>`."""
    found: dict[str, str] = {}
    for variant in variants_of(config):
        name = variant.variant.name
        folder = scratch / name
        groups = facts_of_variant(variant, inputs, device, folder)
        if variant.variant.pinned:
            groups.pop("defaults", None)  # the run itself records them; only arguments left at a default tell
        shutil.rmtree(folder, ignore_errors=True)
        if (ended := groups[OUTCOME]["ended"]) != FINISHED:
            say(f"variant {name}: {ended}")
        found |= to_tags({f"{name}/{group}": facts for group, facts in groups.items()})
    return found


def facts_of_variant(config: CanaryConfig, inputs: Inputs, device: Device, folder: Path) -> Groups:
    """The facts of one variant, group → key → value; an exception that ended it is a fact too."""
    collector = Collector(looks_inside=config.variant.resumes)
    outcome: dict[str, Any] = {"ended": FINISHED}
    try:
        trainer = _trainer(config, inputs, device, folder, collector)
        trainer.train()
        outcome["trainable"] = sum(one.numel() for one in trainer.model.parameters() if one.requires_grad)
        if config.variant.resumes:
            outcome |= _resumed(config, inputs, device, folder, collector)
    except Exception as error:  # noqa: BLE001 - whatever a library raises here is the fact to record
        outcome["ended"] = f"{raised(error)}: {first_line(error)}"
    finally:
        collector.stop()
        _forget()
    return {**collector.groups(), OUTCOME: outcome}


def _trainer(config: CanaryConfig, inputs: Inputs, device: Device, folder: Path, collector: Collector) -> Trainer:
    set_seed(config.seed)
    parts = build_parts(config, device, inputs)
    trainer = build(config, parts, device, folder, [collector])
    trainer.remove_callback(PrinterCallback)
    given = config.variant.arguments_of.get(config.algo.name, config.variant.arguments)
    for name in given:  # a builder that drops them would record facts of another training
        if not hasattr(trainer.args, name) or str(_plain(getattr(trainer.args, name))) != str(given[name]):
            raise TypeError(f"{type(trainer.args).__name__}.{name} is not {given[name]!r}")
    return trainer


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def _resumed(config: CanaryConfig, inputs: Inputs, device: Device, folder: Path, first: Collector) -> dict[str, str]:
    """The facts on whether a training resumed from the first checkpoint matches the one that wrote it."""
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    if not checkpoints:
        return {"checkpoint": "none was written"}
    step = int(checkpoints[0].name.rpartition("-")[2])
    again = Collector(looks_inside=True)
    try:
        _trainer(config, inputs, device, folder, again).train(resume_from_checkpoint=str(checkpoints[0]))
    finally:
        again.stop()
    found = {}
    for what in CHECKED:
        before, now = (one.states.get(step, {}).get(what) for one in (first, again))
        found[f"resumed_{what}"] = "as saved" if before == now and before is not None else "other than saved"
    rows = [one.logged.get(step + 1) for one in (first, again)]
    found["resumed_step"] = (
        "the same next step" if rows[0] == rows[1] and rows[0] else f"another: {_said(rows[1])}, not {_said(rows[0])}"
    )
    return found


def _said(row: Mapping[str, float] | None) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in sorted((row or {}).items())) or "nothing"


class Collector(TrainerCallback):
    """Collects the facts of one training, its logged losses and, at the start of each step, digests of everything that
    a checkpoint holds."""

    def __init__(self, *, looks_inside: bool) -> None:
        self.looks_inside = looks_inside
        self.probe = ExactFacts()
        self.logged: dict[int, dict[str, float]] = {}
        self.states: dict[int, dict[str, str]] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record what is known before the first step."""
        from canary_mlflow.tracking.probes.surroundings import make_log_honest, running_trainer

        make_log_honest(args, state, every_step=True)
        self.probe.start(
            Setting(
                model=kwargs.get("model"),
                device=torch.device(args.device).type,
                compiled=bool(getattr(args, "torch_compile", False)),
                ranks=1,
                iterates=False,
                idle_cpu=float,
                arguments=vars(args),
                optimizer=kwargs.get("optimizer"),
                trainer=running_trainer(),
                resumed=state.global_step > 0,
            )
        )

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Digest everything that a checkpoint must hold."""
        if self.looks_inside:
            self.states[state.global_step] = {
                "model": _digest(
                    one for _, one in sorted(kwargs["model"].named_parameters(), key=lambda item: item[0])
                ),
                "optimizer": _digest(_tensors(kwargs["optimizer"].state_dict())),
                "scheduler": repr(kwargs["lr_scheduler"].get_last_lr()),
                "random": _digest(_random_state()),
            }

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the tokens of the first step."""
        self.probe.step_ended({})

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Keep the losses in full precision."""
        row = {name: float(logs[name]) for name in LOGGED if name in (logs or {})}
        if row:
            self.logged.setdefault(state.global_step, {}).update(row)

    def stop(self) -> None:
        """Leave no hook behind."""
        self.probe.stop()

    def groups(self) -> Groups:
        """Group → key → value."""
        groups: Groups = {}
        for key, value in facts_in(self.probe.tags()).items():
            group, _, name = key.partition(".")
            groups.setdefault(group, {})[name] = value
        first = groups.setdefault("first", {})
        first |= {f"{name}.{step}": repr(value) for step, row in self.logged.items() for name, value in row.items()}
        return {group: facts for group, facts in groups.items() if facts}


def _tensors(value: Any) -> list[Any]:
    """All leaves of a nested state, in order."""
    if isinstance(value, Mapping):
        return [leaf for key in value for leaf in _tensors(value[key])]
    if isinstance(value, (list, tuple)):
        return [leaf for one in value for leaf in _tensors(one)]
    return [value]


def _random_state() -> list[Any]:
    return [torch.get_rng_state(), repr(random.getstate()), repr(numpy.random.get_state())]


def _digest(values: Any) -> str:
    sha = hashlib.sha256()
    for one in values:
        if isinstance(one, torch.Tensor) and one.numel():
            sha.update(one.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            sha.update(repr(one).encode())
    return sha.hexdigest()


def _forget() -> None:
    """Reset the state that Accelerate keeps per process, so that the next variant starts as in a fresh process."""
    with suppress(ImportError, AttributeError):
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    gc.collect()
