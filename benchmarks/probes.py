"""What watching costs a training's own thread, in CPU time per optimizer step: recording a row, and each probe.

    python benchmarks/probes.py [--steps 400] [--repeats 5]

Recording: the journal with the usual sinks and the watch on a row of 24 metrics, without probes. Probes: their handlers
of one optimizer step, each alone and all together, on the smoke canary's model (28 tensors) and on one of 12 layers
(148 tensors, 13.7 million weights). Together they take longer than their sum, because the sentinel's kernel empties the
cache for the others. *beside clipping*: accelerate clips the gradients before, as Transformers' and TRL's trainers have
it do; what catching its norm takes is counted, the clipping is not. Medians over steps, then over repeats, which
alternate. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from accelerate import Accelerator
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from canary_mlflow.tracking.ending import Target
from canary_mlflow.tracking.journal import Journal
from canary_mlflow.tracking.opening import Options, Training, observers_of
from canary_mlflow.tracking.probes import Setting, standard_probes
from canary_mlflow.tracking.probes.running import RunningProbes
from canary_mlflow.tracking.sinks import USUAL
from canary_mlflow.tracking.stores.session import start_run
from canary_mlflow.tracking.stores.store import experiment_id, prepare_store

METRICS = 24
SIZES = {"smoke model": (64, 2, 512), "12 layers": (256, 12, 8192)}  # hidden size, layers, vocabulary
ARGUMENTS = {"max_grad_norm": 1.0, "beta": 0.1, "loss_type": ["sigmoid"]}
LOGS = {"loss": 0.5, "grad_norm": 0.3, "learning_rate": 1e-3, "rewards/chosen": 0.1, "rewards/rejected": -0.1}


def model_of(hidden: int, layers: int, vocabulary: int) -> Any:
    """A GPT-NeoX with gradients, as before an optimizer step."""
    config = GPTNeoXConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * hidden,
        vocab_size=vocabulary,
    )
    model = GPTNeoXForCausalLM(config).train()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    return model


def setting_of(model: Any, trainer: Any = None) -> Setting:
    """The setting of a DPO training on the CPU."""
    return Setting(
        model=model,
        device="cpu",
        compiled=False,
        ranks=1,
        iterates=False,
        idle_cpu=float,
        algo="dpo",
        arguments=ARGUMENTS,
        trainer=trainer,
    )


def probe_cost(model: Any, names: list[str], steps: int, *, clips: bool = False) -> float:
    """Microseconds per step of these probes' handlers, including the sentinel's kernel if it is among them."""
    accelerator = Accelerator(cpu=True)
    clip = accelerator.clip_grad_norm_
    probes = RunningProbes({name: probe for name, probe in standard_probes().items() if name in names})
    probes.start(setting_of(model, argparse.Namespace(accelerator=accelerator) if clips else None))
    took = []
    for _ in range(steps):
        row: dict[str, float] = {}
        longer = 0
        if clips:
            clip(model.parameters(), 1.0)
            alone = nanoseconds(clip, model)
            longer = nanoseconds(accelerator.clip_grad_norm_, model) - alone
        began = time.thread_time_ns() - longer
        probes.emit("step_began")
        probes.before_optimizer()
        probes.emit("after_optimizer")
        probes.step_ended(row)
        row.update(LOGS)
        probes.emit("logged")
        probes.row_closed(row)
        took.append(time.thread_time_ns() - began)
    probes.stop()
    return statistics.median(took) / 1000


def nanoseconds(clip: Callable[..., Any], model: Any) -> int:
    """CPU time of clipping the model's gradients."""
    began = time.thread_time_ns()
    clip(model.parameters(), 1.0)
    return time.thread_time_ns() - began


def recording_cost(folder: Path, steps: int) -> float:
    """Microseconds per step of the journal, its sinks and the watch, for rows of 24 logged metrics."""
    client = prepare_store(f"sqlite:///{folder}/mlflow.db")
    run_id = start_run(client, experiment_id(client, "probes"), {"mlflow.runName": "probes"})
    target = Target(client=client, run_id=run_id, owned=True, algo="dpo", folder=folder)
    options = Options(warmup_steps=0, sinks=USUAL, system_metrics=False, watch="default")
    training = Training(
        algo="dpo", seed=0, name="probes", max_steps=steps, config={}, workload=dict, hardware={}, environment={},
        sequences=8, folder=folder,
    )  # fmt: skip
    observers, _ = observers_of(target, options, training)
    journal = Journal(target, {}, observers)
    journal.begin(setting_of(None))
    logs = LOGS | {f"other/{number}": 0.5 for number in range(METRICS - len(LOGS))}
    took = []
    for step in range(1, steps + 1):
        values = {name: value * (1 + 0.01 * ((7 * step) % 11)) for name, value in logs.items()}
        began = time.thread_time_ns()
        journal.step_ended(step)
        journal.logged(step, values)
        took.append(time.thread_time_ns() - began)
    journal.finish()
    return statistics.median(took) / 1000


def main() -> None:
    """Measure, print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    models = {name: model_of(*size) for name, size in SIZES.items()}
    names = list(standard_probes())
    subjects: dict[str, Callable[[], float]] = {}
    for size, model in models.items():
        for name in names:
            subjects[f"{size}: {name}"] = lambda model=model, name=name: probe_cost(model, [name], asked.steps)  # type: ignore[misc]
        subjects[f"{size}: all probes"] = lambda model=model: probe_cost(model, names, asked.steps)  # type: ignore[misc]
        for what, some in (("gradients", ["gradients"]), ("all probes", names)):
            subjects[f"{size}: {what}, beside clipping"] = lambda model=model, some=some: probe_cost(  # type: ignore[misc]
                model, some, asked.steps, clips=True
            )
    found: dict[str, list[float]] = {name: [] for name in ("recording", *subjects)}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(asked.repeats):
            found["recording"].append(recording_cost(Path(folder, str(repeat)), asked.steps))
            for name, measure in subjects.items():
                found[name].append(measure())
    medians = {name: round(statistics.median(values), 1) for name, values in found.items()}
    width = max(map(len, medians))
    for name, value in medians.items():
        print(f"{name:<{width}}  {value:>8.1f} µs")
    print(json.dumps({"benchmark": "probes", "metrics": METRICS, "steps": asked.steps, "microseconds": medians}))


if __name__ == "__main__":
    main()
