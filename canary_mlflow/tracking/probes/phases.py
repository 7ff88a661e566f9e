"""Where a step's time went: forward, backward, optimizer; also generation, reward and reference, if there are any."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from canary_mlflow.tracking.probes import Probe, Row, Setting
from canary_mlflow.tracking.probes.hooks import replace_method


class Stopwatch:
    """Adds up named stretches of time.

    On CUDA a call returns before its kernels have run, so stretches are kept as pairs of events in the stream and all
    read at the end of the step.
    """

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self._mark: Callable[[], Any] = event if self._cuda else time.perf_counter
        self._open: dict[str, Any] = {}
        self._spent: dict[str, float] = {}  # seconds, on a CPU
        self._pairs: dict[str, list[tuple[Any, Any]]] = defaultdict(list)  # of events, on CUDA

    def begin(self, name: str) -> None:
        """Begin a stretch; one that is already open restarts."""
        self._open[name] = self._mark()

    def end(self, name: str, to: str = "") -> None:
        """End the open stretch of this name, if there is one; begin another at the same moment."""
        if not to and name not in self._open:
            return
        now, began = self._mark(), self._open.pop(name, None)
        if to:
            self._open[to] = now
        if began is None:
            return
        if self._cuda:
            self._pairs[name].append((began, now))
        else:
            self._spent[name] = self._spent.get(name, 0.0) + (now - began)

    def lap(self) -> dict[str, float]:
        """Seconds by name since the last lap."""
        self._open.clear()
        if not self._pairs:
            spent, self._spent = self._spent, {}
            return spent
        pairs, self._pairs = self._pairs, defaultdict(list)
        torch.cuda.synchronize()  # Transformers reads the loss at this point, which waits as well
        return {name: sum(one.elapsed_time(two) for one, two in stretches) / 1000 for name, stretches in pairs.items()}


def event() -> Any:
    """A mark in CUDA's stream."""
    made = torch.cuda.Event(enable_timing=True)
    made.record()
    return made


FORWARD, BACKWARD, OPTIMIZER = "time_forward", "time_backward", "time_optimizer"
GENERATE, REWARD, REFERENCE = "time_generate", "time_reward", "time_reference"


class Phases(Probe):
    """Seconds per step, by hooks on the model, the reference model and the optimizer.

    Forward: passes of the model that are trained on. Backward: from the gradient's arrival at the model's outputs to
    the end of the backward pass; the last one of a step includes the clipping of gradients. Optimizer: its step.
    Generate: the model's `generate`. Reference: untrained passes of the reference model, or of the model with its
    adapters off. Reward: TRL's call of all reward functions. Anything in between (losses, collation) is in none of
    them. Our own PPO reports generate and reward itself; its reference is in the iteration's row.
    """

    name = "phases"

    def __init__(self) -> None:
        self._watch = Stopwatch("cpu")
        self._undo: list[Callable[[], None]] = []
        self._generating = False
        self._iterates = False
        self._iteration: dict[str, float] = {}
        self._epochs_seen = False
        self._adapter: Any = None  # one of its adapted layers

    def start(self, setting: Setting) -> None:
        if setting.compiled:
            return
        self._watch = Stopwatch(setting.device)
        self._iterates = setting.iterates
        model, trainer = setting.model, setting.trainer
        policy = getattr(model, "policy", model)
        self._adapter = next((module for module in policy.modules() if is_adapted(module)), None)
        self._hook(model, self._before_pass, self._after_pass)
        if policy is not model:
            self._hook(policy, self._before_reference_pass, self._after_reference_pass)
        reference = getattr(trainer, "ref_model", None) or getattr(trainer, "reference", None)
        if isinstance(reference, torch.nn.Module):
            self._hook(reference, lambda: self._watch.begin(REFERENCE), lambda output: self._watch.end(REFERENCE))
        self._time_call(policy, "generate", GENERATE)
        self._time_call(trainer, "_calculate_rewards", REWARD)

    def before_optimizer(self) -> None:
        self._watch.end(BACKWARD, OPTIMIZER)

    def after_optimizer(self) -> None:
        self._watch.end(OPTIMIZER)

    def micro_step_ended(self) -> None:
        self._watch.end(BACKWARD)

    def step_ended(self, row: Row) -> None:
        times = self._watch.lap()
        if self._iterates and self._epochs_seen:
            for name in (GENERATE, REWARD, REFERENCE):
                if name in times:
                    self._iteration[name] = self._iteration.get(name, 0.0) + times.pop(name)
        row.update(times)

    def paused(self) -> None:
        self._watch.lap()  # an evaluation generates too

    def iteration_began(self) -> None:
        self._epochs_seen = True

    def iteration_ended(self, row: Row) -> None:
        for name, seconds in self._iteration.items():
            row.setdefault(name, seconds)  # what the trainer itself reports is better
        self._iteration = {}

    def stop(self) -> None:
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _before_pass(self) -> None:
        if torch.is_grad_enabled():
            self._watch.end(BACKWARD, FORWARD)  # of the previous micro-batch, if the trainer does not report its end
        else:
            self._before_reference_pass()

    def _after_pass(self, output: Any) -> None:
        if torch.is_grad_enabled():
            self._watch.end(FORWARD)
            self._await_gradient(output)
        else:
            self._after_reference_pass(output)

    def _before_reference_pass(self) -> None:
        if not self._generating and not torch.is_grad_enabled() and self._is_reference():
            self._watch.begin(REFERENCE)

    def _after_reference_pass(self, output: Any) -> None:
        if not torch.is_grad_enabled():
            self._watch.end(REFERENCE)

    def _is_reference(self) -> bool:
        """Whether the adapters are off, or the initial ones are on (TRL names them `ref`)."""
        layer = self._adapter
        return layer is not None and (bool(layer.disable_adapters) or "ref" in layer.active_adapters)

    def _await_gradient(self, output: Any) -> None:
        """Start timing the backward pass when the first of the outputs gets its gradient."""
        waiting = [True]

        def arrived(gradient: torch.Tensor) -> None:
            if waiting[0]:
                waiting[0] = False
                self._watch.begin(BACKWARD)

        values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple) else (output,)
        for value in values:
            if isinstance(value, torch.Tensor) and value.requires_grad:
                value.register_hook(arrived)

    def _hook(self, module: Any, before: Callable[[], None], after: Callable[[Any], None]) -> None:
        first = module.register_forward_pre_hook(lambda module, inputs: before())
        last = module.register_forward_hook(lambda module, inputs, output: after(output))
        self._undo += [first.remove, last.remove]

    def _time_call(self, owner: Any, method: str, name: str) -> None:
        """Time every call of `owner.method` through a function of the same name on the instance, until training
        ends."""
        original = getattr(owner, method, None)
        if original is None or method in vars(owner):
            return

        def timed(*given: Any, **named: Any) -> Any:
            self._generating = self._generating or name == GENERATE
            self._watch.begin(name)
            try:
                return original(*given, **named)
            finally:
                self._watch.end(name)
                self._generating = self._generating and name != GENERATE

        self._undo.append(replace_method(owner, method, timed))


def is_adapted(module: Any) -> bool:
    """Whether a module is one of PEFT's layers; the name of PEFT's flag is a method in Transformers' models."""
    return isinstance(getattr(module, "disable_adapters", None), bool)
