"""A separate short training under torch's profiler: where a step's time and memory go.

Never within measured steps: a profiled step takes about half as long again, and writing the trace stalls for a second.
"""

from __future__ import annotations

import gc
import gzip
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function, schedule
from torch.profiler import profile as torch_profiler
from transformers import PrinterCallback, Trainer, TrainerCallback, set_seed

from canary_mlflow.tracking.reading.profile import FILE, TRACE, Cost, Profile, to_text
from canary_mlflow.training.algorithms import build
from canary_mlflow.training.config import CanaryConfig
from canary_mlflow.training.devices import Device
from canary_mlflow.training.parts import Inputs, build_parts

WAIT, WARMUP, ACTIVE = 3, 2, 4
"""Numbers of steps (PPO: iterations) before the profiler runs, while it warms up, and while it records."""
MOST = 30  # operators and modules that are kept
STEP, PHASE, MODULE = "ProfilerStep*", "phase: ", "module: "
PHASES = {
    "get_batch_samples": "data",
    "_generate_and_score_completions": "score",
    "_generate": "generate",
    "_calculate_rewards": "reward",
    "collect": "score",
    "_answer": "generate",
    "reward": "reward",
    "compute_loss": "forward",
}
"""Methods of Trainer, TRL's trainers and our PPO → the phase of a step that each one is."""
MIB = 2**20


def profile_training(config: CanaryConfig, inputs: Inputs, device: Device, folder: Path) -> Profile:
    """Train for a few steps under the profiler; leave profile.json and the trace in `folder`/profile."""
    (folder / TRACE).parent.mkdir(parents=True, exist_ok=True)
    set_seed(config.seed)
    short = replace(config, train=replace(config.train, max_steps=WAIT + WARMUP + ACTIVE))
    parts = build_parts(short, device, inputs)
    watching = Profiling(device.kind, folder / TRACE, config.algo.updates())
    trainer = build(short, parts, device, folder / "trainer", [watching])
    trainer.remove_callback(PrinterCallback)
    for name, phase in PHASES.items():
        if callable(getattr(trainer, name, None)):
            setattr(trainer, name, named(f"{PHASE}{phase}", getattr(trainer, name)))
    trainer.accelerator.backward = named(f"{PHASE}backward", trainer.accelerator.backward)
    watching.trainer = trainer
    trainer.train()
    gc.collect()
    found = watching.profile()
    (folder / FILE).write_text(to_text(found), encoding="utf-8")
    return found


def named(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, with each call as a named range in the trace."""

    def within(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return call(*args, **kwargs)

    return within


class Profiling(TrainerCallback):
    """Runs the profiler during a training, and names modules in its trace."""

    trainer: Trainer

    def __init__(self, device: str, trace: Path, updates: int) -> None:
        self._device, self._trace, self._updates = device, trace, updates
        self._steps = 0
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
        self._profiler = torch_profiler(
            activities=activities,
            schedule=schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1),
            on_trace_ready=lambda found: found.export_chrome_trace(str(trace)),
            profile_memory=True,
            acc_events=True,
        )

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Name the modules, and start the profiler."""
        if not getattr(args, "torch_compile", False):  # a hook would break up the compiled graph
            for name, module in kwargs["model"].named_modules():
                if name:
                    watch(module, f"{MODULE}{re.sub(r'[.][0-9]+(?=[.]|$)', '.*', name)}")
        with silent():
            self._profiler.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell the profiler that a step has ended."""
        self._steps += 1
        if self._steps % self._updates == 0:
            with silent():
                self._profiler.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the trace."""
        with silent():
            self._profiler.stop()

    def profile(self) -> Profile:
        """What was recorded, summed up."""
        events = self._profiler.events() or []
        roots = [event for event in events if event.name == STEP and event.cpu_parent is None]
        if not roots:
            raise RuntimeError(f"the profiler recorded no step; {self._steps} were made")
        steps = len(roots)
        on_device = self._device == "cuda"
        return Profile(
            device=self._device,
            steps=steps,
            step_ms=sum(root.cpu_time_total for root in roots) / steps / 1000,
            phases=phases_of(roots, steps),
            operators=operators_of(events, steps, on_device=on_device),
            modules=modules_of(events, steps),
            grown_mib=grown_in(self._trace, on_device=on_device),
        )


@contextmanager
def silent() -> Iterator[None]:
    """Close the process's stderr for a moment: Kineto reports there, from C++, that it starts and stops."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def watch(module: torch.nn.Module, name: str) -> None:
    """Name each call of a module in the trace."""
    open_ranges: list[Any] = []

    def enter(*_: Any) -> None:
        opened = record_function(name)
        opened.__enter__()
        open_ranges.append(opened)

    def leave(*_: Any) -> None:
        if open_ranges:
            open_ranges.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)


def phase_of(name: str) -> str:
    """The phase that a range stands for; '' for any other range. Torch itself names the optimizer's range."""
    return "optimizer" if name.startswith("Optimizer.") else name.removeprefix(PHASE) if name.startswith(PHASE) else ""


def phases_of(roots: Sequence[Any], steps: int) -> tuple[Cost, ...]:
    """The cost of each phase without the phases inside it, and of what lies in no phase."""
    own: dict[str, float] = defaultdict(float)

    def walk(event: Any, outer: str) -> None:
        for child in event.cpu_children:
            if inner := phase_of(child.name):
                own[inner] += child.cpu_time_total
                own[outer] -= child.cpu_time_total
            walk(child, inner or outer)

    for root in roots:
        own["other"] += root.cpu_time_total
        walk(root, "other")
    costs = (Cost(name=name, ms=time / steps / 1000) for name, time in own.items())
    return tuple(sorted(costs, key=lambda cost: -cost.ms))


def operators_of(events: Sequence[Any], steps: int, *, on_device: bool) -> tuple[Cost, ...]:
    """The operators with the longest own time; on a GPU by the GPU's time."""
    time: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for event in events:
        if not event.is_user_annotation and not event.name.startswith((STEP, PHASE, MODULE)):
            time[event.name] += event.self_device_time_total if on_device else event.self_cpu_time_total
            calls[event.name] += 1
    return longest(time, calls, steps)


def modules_of(events: Sequence[Any], steps: int) -> tuple[Cost, ...]:
    """The modules whose forward takes longest, including the modules inside; layers of one kind are merged."""
    time: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for event in events:
        if event.name.startswith(MODULE):
            time[event.name.removeprefix(MODULE)] += event.cpu_time_total
            calls[event.name.removeprefix(MODULE)] += 1
    return longest(time, calls, steps)


def longest(time: dict[str, float], calls: dict[str, int], steps: int) -> tuple[Cost, ...]:
    """The largest costs, from the microseconds and calls of all steps to means per step."""
    names = sorted((name for name in time if time[name] > 0), key=lambda name: -time[name])[:MOST]
    return tuple(Cost(name=name, ms=time[name] / steps / 1000, calls=calls[name] / steps) for name in names)


def grown_in(trace: Path, *, on_device: bool) -> float:
    """The most MiB that tensors grew by in the first profiled step."""
    with gzip.open(trace) as packed:
        found = json.load(packed)["traceEvents"]
    steps = [(event["ts"], event["ts"] + event["dur"]) for event in found
             if event["name"].startswith("ProfilerStep#") and "dur" in event]  # fmt: skip
    start, end = min(steps, default=(0, -1))
    totals = [
        event["args"]["Total Allocated"]
        for event in sorted((one for one in found if one["name"] == "[memory]"), key=lambda one: one["ts"])
        if event["args"]["Device Type"] == int(on_device) and start <= event["ts"] <= end
    ]
    return (max(totals) - totals[0]) / MIB if totals else 0.0
