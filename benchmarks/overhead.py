"""What recording costs a training's own thread: our callback beside Transformers', wandb's and trackio's.

    python benchmarks/overhead.py steps [--steps 300] [--rounds 5] [--after 20] [--pace MS] [--side NAME …]
    python benchmarks/overhead.py outage [--seconds 30]
    python benchmarks/overhead.py samples [--algos grpo ppo sft] [--rounds 5]

`steps`: the smoke canary's model is trained in Transformers' Trainer, which logs 24 metrics at every step. Each
measurement is a fresh process, and the sides take turns. Microseconds are what all of a callback's handlers took
between one optimizer step and the next, by the clock, over the steps after the first ones: the median, which other work
on the machine hardly moves, and the mean, as the fixed kernel is timed now and then and some work is done at every
fourth step; then medians over the rounds. `--pace`: each step also waits, as for a GPU; `--after`: the first steps that
do not count.
"ours, no probes" records and watches the same 24 metrics without measuring anything itself, as the others do. wandb
(offline) and trackio are not dependencies: `make peers` puts them into a separate folder, else they are left out.
`outage`: a tracking server is killed in the middle of a run and comes back after some seconds; step time while it was
away over step time before, and what the server holds afterwards. `samples`: smoke runs with `tracking.samples=true` and
`false` in turn; CPU seconds of all a run's processes, medians. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests")]

from servers import Server  # noqa: E402
from sessions import train as train_session  # noqa: E402

PEERS = ROOT / ".peers"
METRICS, WARMUP = 24, 20


def train(callbacks: list[Any], steps: int, folder: Path, pace: float = 0.0) -> list[tuple[float, float]]:
    """(time at the end of the step, seconds that the callbacks took in it) for every step. `pace`: seconds to sleep."""
    import torch
    from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed
    from transformers.trainer_callback import PrinterCallback

    from canary_mlflow.training.assets.tiny import tiny_model_folder

    set_seed(0)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_folder())
    rows = torch.randint(3, 250, (64, 32), generator=torch.Generator().manual_seed(0))
    spent = 0.0
    marks: list[tuple[float, float]] = []

    def timed(handler: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal spent
            began = time.perf_counter()
            try:
                return handler(*args, **kwargs)
            finally:
                spent += time.perf_counter() - began

        return call

    for callback in callbacks:
        for event in [name for name in dir(callback) if name.startswith("on_")]:
            setattr(callback, event, timed(getattr(callback, event)))

    class Mark(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            nonlocal spent
            if state.global_step:
                marks.append((time.perf_counter(), spent))
            spent = 0.0
            if pace:  # even a sleep of 0 s gives the core up, which no training does at each step
                time.sleep(pace)

    class Logging(Trainer):  # type: ignore[misc]
        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            if "grad_norm" in logs:
                logs |= {f"other_{number}": 0.5 * number + logs["loss"] for number in range(METRICS - len(logs))}
            super().log(logs, *args, **kwargs)

    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=steps,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        per_device_train_batch_size=4,
        use_cpu=True,
        disable_tqdm=True,
    )
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Logging(model=model, args=arguments, train_dataset=data, callbacks=[Mark(), *callbacks])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return marks


def none(store: str, folder: Path) -> list[Any]:
    return []


def ours(store: str, folder: Path) -> list[Any]:
    from canary_mlflow import CanaryCallback

    return [CanaryCallback(tracking_uri=store, folder=folder / "canary")]


def ours_unprobed(store: str, folder: Path) -> list[Any]:
    from canary_mlflow.tracking import callback

    callback.standard_probes = dict
    return ours(store, folder)


def transformers_mlflow(store: str, folder: Path) -> list[Any]:
    import mlflow
    from transformers.integrations import MLflowCallback

    mlflow.set_tracking_uri(store)
    return [MLflowCallback()]


def tensorboard(store: str, folder: Path) -> list[Any]:
    from transformers.integrations import TensorBoardCallback

    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / "tb")
    return [TensorBoardCallback()]


def wandb(store: str, folder: Path) -> list[Any]:
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(folder)}
    import wandb as _  # noqa: F401
    from transformers.integrations import WandbCallback

    return [WandbCallback()]


def trackio(store: str, folder: Path) -> list[Any]:
    os.environ["TRACKIO_DIR"] = str(folder / "trackio")
    import trackio as _  # noqa: F401
    from transformers.integrations import TrackioCallback

    return [TrackioCallback()]


# name → (callbacks, whether it writes to an HTTP server, whether it comes from .peers)
SIDES: dict[str, tuple[Callable[[str, Path], list[Any]], bool, bool]] = {
    "no callback": (none, False, False),
    "ours, SQLite": (ours, False, False),
    "ours, server": (ours, True, False),
    "ours, no probes, SQLite": (ours_unprobed, False, False),
    "ours, no probes, server": (ours_unprobed, True, False),
    "Transformers MLflow, SQLite": (transformers_mlflow, False, False),
    "Transformers MLflow, server": (transformers_mlflow, True, False),
    "Transformers TensorBoard": (tensorboard, False, False),
    "wandb offline": (wandb, False, True),
    "trackio": (trackio, False, True),
}


def child(arguments: argparse.Namespace) -> None:
    """One measurement, in this process; prints its JSON."""
    make, _, from_peers = SIDES[arguments.side]
    if from_peers:
        sys.path.append(str(PEERS))  # after our own environment, whose versions take precedence
    folder = Path.cwd()
    try:
        callbacks = make(arguments.store, folder)
    except (ImportError, RuntimeError) as error:
        print(json.dumps({"missing": str(error)[:200]}))
        return
    marks = train(callbacks, arguments.steps, folder, arguments.pace / 1e3)[arguments.after :]
    steps = [after[0] - before[0] for before, after in pairwise(marks)]
    spent = sorted(spent for _, spent in marks)
    mean = fmean(spent)
    found = {"callback_us": median(spent) * 1e6, "mean_us": mean * 1e6, "step_ms": median(steps) * 1e3}
    print(json.dumps(found))


def measure(side: str, asked: argparse.Namespace, server: str) -> dict[str, Any]:
    _, over_http, _ = SIDES[side]
    with tempfile.TemporaryDirectory() as folder:
        store = server if over_http else f"sqlite:///{folder}/mlflow.db"
        words = ["child", "--side", side, "--store", store]
        words += [f"--steps={asked.steps}", f"--after={asked.after}", f"--pace={asked.pace}"]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
        done = subprocess.run(
            [sys.executable, __file__, *words],
            cwd=folder,
            env={**kept, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(f"{side}: {done.stderr.strip()[-800:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def steps_command(arguments: argparse.Namespace) -> None:
    """Measure the sides in turn, print the table and the JSON line."""
    sides = arguments.side or list(SIDES)
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder, Server(f"sqlite:///{folder}/server.db", Path(folder)) as server:
        for _ in range(arguments.rounds):
            for side in sides:
                found[side].append(measure(side, arguments, server.uri))
    table = {
        side: {key: round(median(one[key] for one in rounds), 3) for key in ("callback_us", "mean_us", "step_ms")}
        for side, rounds in found.items()
        if not any("missing" in one for one in rounds)
    }
    print(f"{'':<30}{'callback, µs a step':>20}{'mean':>8}{'step, ms':>10}")
    for side in sides:
        if side in table:
            one = table[side]
            print(f"{side:<30}{one['callback_us']:>20.0f}{one['mean_us']:>8.0f}{one['step_ms']:>10.2f}")
        else:
            print(f"{side:<30}  left out: {found[side][0]['missing']}")
    print(json.dumps({"benchmark": "overhead", "metrics": METRICS, "steps": arguments.steps, "sides": table}))


def outage_command(arguments: argparse.Namespace) -> None:
    """Kill the server in the middle of a run, bring it back, and count what it holds."""
    from canary_mlflow import CanaryCallback
    from canary_mlflow.tracking.stores.store import prepare_store

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Server(f"sqlite:///{folder}/server.db", folder) as server:
            callback = CanaryCallback(tracking_uri=server.uri, folder=folder / "canary")
            dead: list[float] = []

            def strike() -> None:
                time.sleep(arguments.seconds)
                server.kill()
                dead.append(time.perf_counter())
                time.sleep(arguments.seconds)
                dead.append(time.perf_counter())
                server.start()

            threading.Thread(target=strike, daemon=True).start()
            steps = int(3.2 * arguments.seconds / 0.05)
            marks = train([callback], steps, folder, pace=0.03)
            ends = [at for at, _ in marks][WARMUP:]
            pairs = [(at, at - before) for before, at in pairwise(ends)]
            before = median(took for at, took in pairs if at < dead[0])
            during = median(took for at, took in pairs if dead[0] <= at < dead[1])
            history = prepare_store(server.uri).get_metric_history(callback.run_id, "stability/loss")
    found = {
        "outage_s": arguments.seconds,
        "step_ms_before": round(before * 1e3, 2),
        "step_ms_during": round(during * 1e3, 2),
        "ratio": round(during / before, 3),
        "steps": steps,
        "rows_on_the_server": len(history),
        "each_once": sorted(point.step for point in history) == list(range(1, steps + 1)),
    }
    print(json.dumps({"benchmark": "overhead outage", **found}))


def samples_command(arguments: argparse.Namespace) -> None:
    """What sampled answers cost a whole run, in CPU seconds."""
    found: dict[str, dict[str, float]] = {}
    print(f"{'':<12}{'with samples':>14}{'without':>10}  CPU seconds of a run")
    for algo in arguments.algos:
        took: dict[str, list[float]] = {"true": [], "false": []}
        with tempfile.TemporaryDirectory() as folder:
            for at in range(arguments.rounds + 1):  # the first also makes the store and the model
                for wanted, seconds in took.items():
                    words = [
                        f"algo={algo}",
                        "hardware=cpu",
                        "repeats=1",
                        "register=false",
                        f"tracking.samples={wanted}",
                    ]
                    before = cpu_of_children()
                    train_session(Path(folder), words)
                    if at:
                        seconds.append(cpu_of_children() - before)
        found[algo] = {wanted: round(median(seconds), 2) for wanted, seconds in took.items()}
        print(f"{algo:<12}{found[algo]['true']:>14.2f}{found[algo]['false']:>10.2f}", flush=True)
    print(json.dumps({"benchmark": "overhead samples", "rounds": arguments.rounds, "algos": found}))


def cpu_of_children() -> float:
    """CPU seconds of all processes that have ended, user and system."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    table = commands.add_parser("steps")
    table.add_argument("--steps", type=int, default=300)
    table.add_argument("--after", type=int, default=WARMUP)
    table.add_argument("--pace", type=float, default=0.0, metavar="MS")
    table.add_argument("--rounds", type=int, default=5)
    table.add_argument("--side", nargs="*", choices=list(SIDES), default=[])
    table.set_defaults(run=steps_command)
    away = commands.add_parser("outage")
    away.add_argument("--seconds", type=float, default=30.0)
    away.set_defaults(run=outage_command)
    kept = commands.add_parser("samples")
    kept.add_argument("--algos", nargs="+", default=["grpo", "ppo", "sft"])
    kept.add_argument("--rounds", type=int, default=5)
    kept.set_defaults(run=samples_command)
    one = commands.add_parser("child")
    one.add_argument("--side", choices=list(SIDES), required=True)
    one.add_argument("--steps", type=int, required=True)
    one.add_argument("--after", type=int, default=WARMUP)
    one.add_argument("--pace", type=float, default=0.0)
    one.add_argument("--store", required=True)
    one.set_defaults(run=child)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
