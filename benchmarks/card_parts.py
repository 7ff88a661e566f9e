"""The parts of on_card.py, in their order, each a list of units, and how each unit is measured."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from campaign import Cell, make, plain_run, with_champion
from memory_on_card import LARGE, SIZES, SMALL, make_model
from memory_plan import make_data
from on_card import ROOT, Record, Unit
from root_cause import kept

from canary_mlflow.policies import load_policy
from gates import Policy, Run, Verdict, Version, judge

if TYPE_CHECKING:
    from on_card import Book

PARTS: dict[str, Callable[[Desk], Iterator[Unit]]] = {}
"""Name → its units, in the order of their worth."""
TIERS = ("smoke", "perf")
SEED = 4_000
DIGITS = 5
BROKEN = ("kl_zero", "lr_high", "nan_batch")
REHEARSED = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 512,
}


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured. `tiny`: two layers instead of the real shapes, on a CPU."""

    hardware: str
    tiny: bool
    steps: int
    policy_steps: int
    policy_runs: tuple[int, int]  # of a champion, and of a candidate
    learning_rate: float  # at which random weights learn something in so few steps
    batch: int
    length: int
    runs: int  # of a side
    splits: int
    rounds: int
    sessions: int
    algos: tuple[str, ...]
    slower: tuple[float, ...]  # shares of a step
    session_words: tuple[str, ...] = ()


FULL = Size(
    hardware="cuda", tiny=False, steps=40, policy_steps=20, policy_runs=(3, 2), learning_rate=1e-4, batch=8, length=512,
    runs=6, splits=20, rounds=5, sessions=5, algos=("sft", "dpo"), slower=(0.05, 0.1, 0.2),
)  # fmt: skip
TINY = Size(
    hardware="cpu", tiny=True, steps=8, policy_steps=4, policy_runs=(2, 1), learning_rate=1e-2, batch=2, length=32,
    runs=2, splits=2, rounds=1, sessions=1, algos=("sft",), slower=(0.2,),
    session_words=("repeats=2", "train.max_steps=8", "gate.min_steps=2", "gate.warmup_steps=1"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Where units work. `folder`: models, stores, scratch files."""

    folder: Path
    size: Size
    book: Book

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.folder}/mlflow.db"

    def model(self, shape: str) -> Path:
        """A model of that shape with random weights, and rows that fill each example; made when first asked for."""
        folder = self.folder / shape
        if not (folder / "config.json").exists():
            make_model(SIZES[shape] | (REHEARSED if self.size.tiny else {}), folder, self.size.hardware)
        if not (data := self.folder / "data.jsonl").exists():
            make_data(data)
        return folder

    def words(self, shape: str, *words: str) -> list[str]:
        """The command line of a training of that shape."""
        size = self.size
        return [
            "model=local", f"model.path={self.model(shape)}", "data=jsonl", f"data.path={self.folder}/data.jsonl",
            f"hardware={size.hardware}", f"train.batch_size={size.batch}", f"train.max_length={size.length}",
            "tier.train_rows=48", "tier.eval_rows=16", f"train.max_steps={size.steps}", *words,
        ]  # fmt: skip

    def runs(self, part: str, *names: str) -> list[Run]:
        """The recorded runs of these units. Raises LookupError where one is not there."""
        held = self.book.of(part)
        return [replace(kept(0, held[name]["run"]), run_id=name) for name in names]


def part(make_units: Callable[[Desk], Iterator[Unit]]) -> Callable[[Desk], Iterator[Unit]]:
    PARTS[make_units.__name__] = make_units
    return make_units


@part
def unchanged(desk: Desk) -> Iterator[Unit]:
    """Half a billion weights, twelve unchanged runs an algorithm, judged as twenty splits into two sides."""
    for algo in desk.size.algos:
        names = [f"{algo}-{number}" for number in range(2 * desk.size.runs)]
        for number, name in enumerate(names):
            words = [f"algo={algo}", "profile=true", f"seed={SEED + number}", _rate(desk)]
            yield _run(desk, "unchanged", name, 0.4, words, profile=True)
        for tier in TIERS:
            yield _judged(desk, "unchanged", f"{algo}-{tier}", lambda n=names, t=tier: _splits(desk, n, t))


@part
def slower(desk: Desk) -> Iterator[Unit]:
    """The same with steps that kernels make longer, in turns with steps that are not; judged in pairs."""
    for algo in desk.size.algos:
        shares = (0.0, *desk.size.slower)
        for number in range(desk.size.runs):
            for share in shares if number % 2 == 0 else reversed(shares):
                fault = [f"fault.strength={share}", "fault.step=0", "fault=slow_step_from_n"] if share else []
                words = [f"algo={algo}", f"seed={SEED + number}", _rate(desk), *fault]
                yield _run(desk, "slower", f"{algo}-{share}-{number}", 0.4, words)
        for tier in TIERS:
            yield _judged(desk, "slower", f"{algo}-{tier}", lambda a=algo, t=tier: _slower(desk, a, t))


@part
def tiny(desk: Desk) -> Iterator[Unit]:
    """Whole smoke sessions of the embedded model, unchanged."""
    algos = ("sft", "dpo", "ppo")[: 1 if desk.size.tiny else 3]
    for number in range(desk.size.sessions):
        for algo in algos:
            cell = Cell(algo=algo, load="quiet", kind="unchanged", number=number, baseline=0)
            yield Unit(part="tiny", name=cell.label, minutes=1.5, make=lambda c=cell: _session(desk, c), forks=False)


@part
def policies(desk: Desk) -> Iterator[Unit]:
    """GRPO and PPO at half a billion weights: a champion, two unchanged sessions, three that are broken."""
    for algo in ("grpo", "ppo"):
        champion, each = desk.size.policy_runs
        runs = {f"champion-{at}": "none" for at in range(champion)}
        runs |= {f"unchanged-{at}": "none" for at in range(2 * each)}
        runs |= {f"{fault}-{at}": fault for fault in BROKEN for at in range(each)}
        for number, (name, fault) in enumerate(runs.items()):
            words = [f"algo={algo}", f"train.max_steps={desk.size.policy_steps}", f"fault={fault}"]
            words += ["algo.max_new_tokens=8", "train.batch_size=8"] if desk.size.tiny else []
            words += ["fault.step=3"] if fault == "nan_batch" else []
            yield _run(desk, "policies", f"{algo}-{name}", 1.0, [*words, f"seed={SEED + number}"])
        yield _judged(desk, "policies", f"{algo}-smoke", lambda a=algo: _policies(desk, a))


@part
def callback(desk: Desk) -> Iterator[Unit]:
    """What the callback adds to a step of half a billion weights: with and without, in turns."""
    for number in range(2 * desk.size.rounds):
        own = number % 4 in (0, 3)
        name = f"{'with' if own else 'without'}-{number // 2}"
        yield Unit(part="callback", name=name, minutes=0.4, make=lambda o=own: _own_script(desk, canary=o))


@part
def ppo(desk: Desk) -> Iterator[Unit]:
    """Our PPO beside TRL's, in turns."""
    size = ("small", "cpu", "1") if desk.size.tiny else ("large", "cuda", str(desk.size.rounds))
    words = ["--size", size[0], "--device", size[1], "--rounds", size[2]]
    if (ROOT / ".oracle" / "trl").is_dir() and not desk.size.tiny:
        yield _command("ppo", "beside-trl", 8.0, ["benchmarks/ppo_vs_trl.py", *words])


@part
def seven(desk: Desk) -> Iterator[Unit]:
    """A smoke session of LoRA on seven billion weights: minutes, and memory beside the plan."""
    yield Unit(part="seven", name="memory", minutes=3.0, make=lambda: _planned(desk))
    yield Unit(part="seven", name="session", minutes=6.0, make=lambda: _seven_session(desk))


@part
def card(desk: Desk) -> Iterator[Unit]:
    """torch's deterministic algorithms, and a card that something else keeps busy."""
    for number in range(2):
        words = ["algo=sft", f"seed={SEED}", "hardware.deterministic=true"]
        yield _run(desk, "card", f"deterministic-{number}", 0.5, words, environment=DETERMINISTIC)
    yield _judged(desk, "card", "deterministic", lambda: _same(desk))
    for number in range(2 * desk.size.runs):
        hot = number % 2
        name = f"{'hot' if hot else 'cool'}-{number // 2}"
        yield _run(desk, "card", name, 0.6, ["algo=sft", f"seed={SEED + number // 2}", _rate(desk)], heated=bool(hot))
    yield _judged(desk, "card", "heated", lambda: _heated(desk))


@part
def kinds(desk: Desk) -> Iterator[Unit]:
    """FSDP2 with one rank, fp16 as on a T4, 8-bit and 4-bit weights and optimizer states."""
    for name, arguments in OWN_SCRIPTS.items():
        chosen = {} if desk.size.tiny else arguments
        yield Unit(part="kinds", name=name, minutes=0.5, make=lambda c=chosen: _own_script(desk, canary=True, **c))
    if desk.size.tiny:
        return
    for name, words in {
        "nf4": ["adapter=lora", "quantization=nf4"],
        "int8": ["adapter=lora", "quantization=int8"],
    }.items():
        yield _run(desk, "kinds", name, 0.6, ["algo=sft", *words, f"seed={SEED}"])


DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
OWN_SCRIPTS: dict[str, dict[str, Any]] = {
    "fsdp2": {
        "fsdp": "full_shard",
        "fsdp_config": {
            "version": 2,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "state_dict_type": "FULL_STATE_DICT",
        },
    },
    "fp16": {"fp16": True, "bf16": False},
    "adamw-8bit": {"optim": "adamw_bnb_8bit"},
}


def make_up_a_driver() -> None:
    """For a rehearsal: what tests make up where there is no card."""
    from fake_gpu import Driver

    sys.modules["pynvml"] = Driver()  # type: ignore[assignment]


def load() -> None:
    """The libraries of all trainings, before the forks; nothing here touches a card."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # else the question alone makes a context
    from training import worker
    from training.compose import register_schemas

    for algo in ("sft", "dpo", "ppo", "grpo"):
        worker.load(algo)
    register_schemas()
    gc.collect()
    gc.freeze()


def _rate(desk: Desk) -> str:
    return f"train.learning_rate={desk.size.learning_rate}"


def _run(
    desk: Desk,
    part: str,
    name: str,
    minutes: float,
    words: Sequence[str],
    *,
    profile: bool = False,
    heated: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Unit:
    def make_run() -> Record:
        os.environ.update(environment or {})
        with _heat(desk, heated):
            return _train(desk, desk.words(SMALL, *words), profile)

    return Unit(part=part, name=name, minutes=minutes, make=make_run)


def _train(desk: Desk, words: Sequence[str], profile: bool) -> Record:
    """Train as a session's worker does, in this process, and read what was recorded."""
    from canary_mlflow.tracking.reading.histories import read_runs
    from canary_mlflow.tracking.stores.session import create_child_run, open_session
    from canary_mlflow.tracking.stores.store import prepare_store
    from training import worker
    from training.command_line import expand, parse
    from training.compose import check
    from training.naming import run_name, run_params, run_tags, session_tags
    from training.plain import to_plain
    from training.process import CONFIG, Job

    (config,) = check(parse(expand(list(words))))
    folder = desk.folder / f"run-{os.getpid()}"
    folder.mkdir()
    os.chdir(folder)
    client = prepare_store(desk.uri)
    session = open_session(client, "canary", "on a card", session_tags(config, "on-card"))
    run_id = create_child_run(client, session, run_name(config), run_tags(config), run_params(config))
    plain = to_plain(config)
    job = Job(config=plain, run_id=run_id, tracking_uri=desk.uri, label=config.algo.name, profile=profile)
    (folder / CONFIG).write_text(json.dumps(plain))
    (folder / "job.json").write_text(json.dumps(vars(job)))
    loaded = worker.prepare(folder, config.algo.name)
    worker.train_job(folder, loaded)
    (run,) = read_runs(client, [run_id])
    if run.failure not in ("", "instability"):
        raise RuntimeError(f"{run.failure}: {run.failure_reason}")
    return {"run": _plain(run), **(_kernels(folder) if profile else {})}


def _plain(run: Run) -> Record:
    """What a judge reads of it, to five digits."""
    found = plain_run(run, {rule.metric for tier in TIERS for rule in load_policy(tier).rules})
    for series in found["series"].values():
        series[1] = [float(f"{value:.{DIGITS}g}") for value in series[1]]
    return found


def _kernels(folder: Path) -> Record:
    """Milliseconds of a step's kernels, which a busy host does not change; on a CPU of its operators."""
    profile = json.loads((folder / "profiled" / "profile" / "profile.json").read_text())
    return {"kernel_ms": round(sum(one["ms"] for one in profile["operators"]), 3), "profiled_ms": profile["step_ms"]}


def _judged(desk: Desk, part: str, name: str, decide: Callable[[], Record]) -> Unit:
    def made() -> Record:
        try:
            return decide()
        except LookupError as missing:
            return {"broke": f"run {missing} is not measured yet"}

    return Unit(part=part, name=name, minutes=0.2, make=made, forks=False)


def policy_of(tier: str, steps: int) -> Policy:
    """The tier's policy for runs of so few steps: a quarter of them is warm-up."""
    return replace(load_policy(tier), priors=(), warmup_steps=steps // 4, min_steps=steps // 2)


def _side(runs: Sequence[Run], *, beside: bool = False) -> Version:
    return Version(model="on-card", version=None, runs=tuple(runs), beside=beside)


def _splits(desk: Desk, names: Sequence[str], tier: str) -> Record:
    runs, draw = desk.runs("unchanged", *names), random.Random(SEED)
    sides = []
    for _ in range(desk.size.splits):
        draw.shuffle(runs)
        half = len(runs) // 2
        sides.append((_side(runs[:half]), _side(runs[half:])))
    return _counted(judge(policy_of(tier, desk.size.steps), *both) for both in sides)


def _slower(desk: Desk, algo: str, tier: str) -> Record:
    """Of each share, splits of four pairs, drawn from the six."""
    numbers, draw, found = range(desk.size.runs), random.Random(SEED), {}
    for share in desk.size.slower:
        verdicts = []
        for _ in range(desk.size.splits):
            drawn = draw.sample(numbers, max(2, 2 * len(numbers) // 3))
            before, after = (desk.runs("slower", *(f"{algo}-{one}-{at}" for at in drawn)) for one in (0.0, share))
            sides = _side(before, beside=True), _side(after)
            verdicts.append(judge(policy_of(tier, desk.size.steps), *sides))
        found[str(share)] = _counted(verdicts)
    said = ", ".join(f"+{float(share):.0%} {one['said']}" for share, one in found.items())
    return {"shares": found, "said": said}


def _policies(desk: Desk, algo: str) -> Record:
    ours, each = desk.size.policy_runs
    champion = _side(desk.runs("policies", *(f"{algo}-champion-{at}" for at in range(ours))))
    candidates = {f"unchanged {at + 1}": ("unchanged", range(at * each, (at + 1) * each)) for at in range(2)}
    candidates |= {fault: (fault, range(each)) for fault in BROKEN}
    found = {}
    for name, (kind, numbers) in candidates.items():
        candidate = _side(desk.runs("policies", *(f"{algo}-{kind}-{at}" for at in numbers)))
        verdict = judge(policy_of("smoke", desk.size.policy_steps), champion, candidate)
        found[name] = {"outcome": str(verdict.outcome), "reason": verdict.reason}
    return {"sessions": found, "said": ", ".join(f"{name} {one['outcome']}" for name, one in found.items())}


def _same(desk: Desk) -> Record:
    before, after = desk.runs("card", "deterministic-0", "deterministic-1")
    same = before.series["loss"].same_values(after.series["loss"])
    return {"same": same, "said": "the same losses twice" if same else "other losses"}


def _heated(desk: Desk) -> Record:
    """Whether the gate calls the clock unusable where the card was busy with something else."""
    cool, hot = (desk.runs("card", *(f"{kind}-{at}" for at in range(desk.size.runs))) for kind in ("cool", "hot"))
    verdict = judge(policy_of("smoke", desk.size.steps), _side(cool), _side(hot))
    checks = {
        check.metric: str(check.outcome) for check in verdict.checks if check.metric in ("step_time", "step_cost")
    }
    return {"outcome": str(verdict.outcome), "reason": verdict.reason, "checks": checks, "said": verdict.reason[:100]}


def _counted(verdicts: Iterator[Verdict] | Sequence[Verdict]) -> Record:
    given = list(verdicts)
    outcomes = Counter(str(verdict.outcome) for verdict in given)
    reasons = Counter(verdict.reason for verdict in given if str(verdict.outcome) != "PASS")
    said = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    return {"outcomes": dict(outcomes), "reasons": dict(reasons.most_common(5)), "said": said}


def _session(desk: Desk, cell: Cell) -> Record:
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
def _heat(desk: Desk, wanted: bool) -> Iterator[None]:
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


def _own_script(desk: Desk, *, canary: bool, **arguments: Any) -> Record:
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


def _command(part: str, name: str, minutes: float, words: Sequence[str]) -> Unit:
    """A script whose last line is one JSON object."""

    def made() -> Record:
        done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError((done.stderr.strip() or f"ended with {done.returncode}").splitlines()[-1])
        return {"figures": json.loads(done.stdout.splitlines()[-1])}

    return Unit(part=part, name=name, minutes=minutes, make=made, forks=False)


def _seven_words(desk: Desk) -> list[str]:
    return [*desk.words(LARGE, "algo=sft", "adapter=lora"), f"seed={SEED}"]


def _planned(desk: Desk) -> Record:
    """What the plan says beside what the allocator gave out, in MiB."""
    import torch

    from training.command_line import expand, parse
    from training.compose import check
    from training.devices import settle
    from training.footprint import footprint
    from training.planning import config_folder

    words = [*_seven_words(desk), "train.max_steps=3"]
    (config,) = check(parse(expand(words)))
    planned = footprint(config, config_folder(config.model), settle(config.hardware)).total / 2**20
    _train(desk, words, profile=False)
    peak = torch.cuda.max_memory_allocated() / 2**20 if desk.size.hardware == "cuda" else 0.0
    return {
        "planned_mib": round(planned),
        "allocated_mib": round(peak),
        "said": f"planned {planned:.0f}, {peak:.0f} MiB",
    }


def _seven_session(desk: Desk) -> Record:
    """Minutes and verdict of the session that a user makes."""
    place = desk.folder / "seven"
    place.mkdir(exist_ok=True)
    words = [*_seven_words(desk), *desk.size.session_words, f"tracking.uri=sqlite:///{place}/mlflow.db"]
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    done = subprocess.run(
        [sys.executable, "-m", "training", *words],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode in (2, 4):
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    minutes = (time.monotonic() - began) / 60
    return {
        "code": done.returncode,
        "minutes": round(minutes, 2),
        "said": f"{minutes:.1f} minutes, exit code {done.returncode}",
    }
