"""How each unit of on_card.py is measured: a training, a session, somebody's own script, a plan."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from campaign import Cell, brief, make, plain_run, with_champion
from card_desk import Desk, load
from memory_on_card import LARGE, SMALL
from on_card import Record
from sessions import train as train_session

from canary_mlflow.edge import OUTSIDE
from canary_mlflow.gates import Run
from canary_mlflow.policies import load_policy

TIERS = ("smoke", "perf")
SEED = 4_000
DIGITS = 5


def train(desk: Desk, words: Sequence[str], profile: bool) -> Record:
    """Train as a session's worker does, in this process, and read what was recorded."""
    from canary_mlflow.tracking.reading.histories import read_runs
    from canary_mlflow.tracking.stores.session import create_child_run, open_session
    from canary_mlflow.tracking.stores.store import prepare_store
    from canary_mlflow.training import worker
    from canary_mlflow.training.command_line import expand, parse
    from canary_mlflow.training.compose import check
    from canary_mlflow.training.devices import environment
    from canary_mlflow.training.naming import run_name, run_params, run_tags, session_tags
    from canary_mlflow.training.plain import to_plain
    from canary_mlflow.training.process import CONFIG, JOB, OwnRun

    load()
    (config,) = check(parse(expand(list(words))))
    plain = to_plain(config)
    os.environ |= environment(plain["hardware"])
    folder = desk.folder / f"run-{os.getpid()}"
    folder.mkdir()
    os.chdir(folder)
    client = prepare_store(desk.uri)
    session = open_session(client, "canary", "on a card", session_tags(config, "on-card"))
    run_id = create_child_run(client, session, run_name(config), run_tags(config), run_params(config))
    own = {"session": session, "seed": config.seed, "run_id": run_id}
    job = OwnRun(name=config.algo.name, store=desk.uri, config=plain, profile=profile, **own)
    (folder / CONFIG).write_text(json.dumps(plain))
    (folder / JOB).write_text(json.dumps(vars(job)))
    loaded = worker.prepare(folder, config.algo.name)
    worker.train_job(folder, loaded)
    (run,) = read_runs(client, [run_id])
    if run.failure not in ("", "instability"):
        raise RuntimeError(f"{run.failure}: {run.failure_reason}")
    return {"run": as_read(run), **(kernels(folder) if profile else {})}


def as_read(run: Run) -> Record:
    """What a judge reads of it, to five digits."""
    found = plain_run(run, {rule.metric for tier in TIERS for rule in load_policy(tier).rules})
    for series in found["series"].values():
        series[1] = [float(f"{value:.{DIGITS}g}") for value in series[1]]
    return found


def kernels(folder: Path) -> Record:
    """Milliseconds of a step's kernels, which a busy host does not change; on a CPU of its operators."""
    profile = json.loads((folder / "profiled" / "profile" / "profile.json").read_text())
    return {"kernel_ms": round(sum(one["ms"] for one in profile["operators"]), 3), "profiled_ms": profile["step_ms"]}


def session(desk: Desk, cell: Cell) -> Record:
    """A session as anybody makes it, beside a champion that is made first where there is none."""
    folder = desk.folder / "sessions"
    for one in with_champion(folder, cell):
        made = make(folder, one, "0" * 40, desk.size.hardware, desk.size.session_words)
    keys = ("code", "seconds", "verdict", "error")
    if cell.label not in {file.stem for file in (folder / "records").glob("*.json")}:
        raise RuntimeError(f"no champion: {made.get('error') or made['verdict'].get('reason')}")
    said = made["verdict"].get("outcome") or made.get("error", "")
    return {**{key: made[key] for key in keys if key in made}, "said": str(said)}


@contextlib.contextmanager
def heat(desk: Desk, wanted: bool) -> Iterator[None]:
    """Another process multiplies matrices on the same device meanwhile. The power limit stays as it is."""
    side = 64 if desk.size.tiny else 8192
    code = (
        "import os, torch\nparent = os.getppid()\n"
        f"a = torch.randn({side}, {side}, device='{desk.size.hardware}')\n"
        "while os.getppid() == parent: a = (a @ a).tanh()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code]) if wanted else None
    try:
        yield
    finally:
        if process:
            process.kill()
            process.wait()


def own_script(desk: Desk, *, canary: bool, **arguments: Any) -> Record:
    """Somebody's own script: Transformers' Trainer, with or without our callback."""
    import torch
    from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

    from canary_mlflow import CanaryCallback

    size, cuda = desk.size, desk.size.hardware == "cuda"
    first = size.steps // 4

    class Clock(TrainerCallback):  # type: ignore[misc]
        began = ended = 0.0

        def now(self) -> float:
            if cuda:
                torch.cuda.synchronize()
            return time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == first:
                self.began = self.now()
            elif state.global_step == size.steps:
                self.ended = self.now()

    if arguments.get("fsdp"):  # one rank, as torchrun starts it
        os.environ |= {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29541",
        }
    set_seed(SEED)
    model = AutoModelForCausalLM.from_pretrained(desk.model(SMALL), dtype=torch.float32)
    rows = torch.randint(3, model.config.vocab_size, (64, size.length), generator=torch.Generator().manual_seed(0))
    folder = desk.folder / f"own-{os.getpid()}"
    chosen = {"bf16": cuda, **arguments}
    settings = TrainingArguments(
        output_dir=str(folder / "out"), max_steps=size.steps, logging_steps=1, save_strategy="no", report_to=[],
        per_device_train_batch_size=size.batch, use_cpu=not cuda, disable_tqdm=True, seed=SEED, **chosen,
    )  # fmt: skip
    clock = Clock()
    data = [{"input_ids": row, "labels": row} for row in rows]
    ours = [CanaryCallback(tracking_uri=desk.uri, folder=folder / "canary")] if canary else []
    trainer = Trainer(model=model, args=settings, train_dataset=data, callbacks=[*ours, clock])
    trainer.train()
    ms = 1000 * (clock.ended - clock.began) / (size.steps - first)
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return {"step_ms": round(ms, 3), "first_loss": losses[0], "last_loss": losses[-1], "said": f"{ms:.1f} ms a step"}


def seven_words(desk: Desk) -> list[str]:
    return [*desk.words(LARGE, "algo=sft", "adapter=lora", desk.adapter_rate, f"seed={SEED}")]


def planned(desk: Desk) -> Record:
    """What the plan says beside what the allocator gave out, in MiB."""
    import torch

    from canary_mlflow.training.command_line import expand, parse
    from canary_mlflow.training.compose import check
    from canary_mlflow.training.devices import settle
    from canary_mlflow.training.footprint import footprint
    from canary_mlflow.training.planning import config_folder

    words = [*seven_words(desk), "train.max_steps=3"]
    (config,) = check(parse(expand(words)))
    planned = footprint(config, config_folder(config.model), settle(config.hardware)).total / 2**20
    train(desk, words, profile=False)
    peak = torch.cuda.max_memory_allocated() / 2**20 if desk.size.hardware == "cuda" else 0.0
    return {
        "planned_mib": round(planned),
        "allocated_mib": round(peak),
        "said": f"planned {planned:.0f}, {peak:.0f} MiB",
    }


def seven_session(desk: Desk) -> Record:
    """Minutes and verdict of the session that a user makes."""
    place, began = desk.folder / "seven", time.monotonic()
    code = train_session(place, [*seven_words(desk), *desk.size.session_words])
    if code == OUTSIDE:
        raise RuntimeError(f"exit code {code}")
    verdicts = [json.loads(file.read_text()) for file in place.rglob("verdict.json")]
    verdict = brief(verdicts[-1]) if verdicts else {}
    minutes = (time.monotonic() - began) / 60
    said = f"{minutes:.1f} minutes, {verdict.get('outcome', f'exit code {code}')}"
    return {"code": code, "minutes": round(minutes, 2), "verdict": verdict, "said": said}
