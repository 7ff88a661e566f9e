"""The parts of on_card.py, in the order of their worth, each a list of units."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import card_measures as measures
import card_verdicts as verdicts
from campaign import Cell
from card_desk import SPOKEN, Desk
from card_measures import SEED, TIERS
from card_verdicts import BROKEN
from memory_on_card import SMALL
from on_card import ROOT, Record, Unit

PARTS: dict[str, Callable[[Desk], Iterator[Unit]]] = {}
"""Name → its units."""
OWN_SCRIPTS: dict[str, dict[str, Any]] = {
    "fsdp2": {
        "fsdp": True,
        "fsdp_config": {
            "version": 2,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "state_dict_type": "FULL_STATE_DICT",
        },
    },
    "fp16": {"fp16": True, "bf16": False},
    "adamw-8bit": {"optim": "adamw_bnb_8bit"},
}
"""Name → arguments of Transformers' Trainer."""
PASSES = {"ppo": 4, "grpo": 1}  # over each batch of answers; fewer passes need a higher rate


def part(make_units: Callable[[Desk], Iterator[Unit]]) -> Callable[[Desk], Iterator[Unit]]:
    PARTS[make_units.__name__] = make_units
    return make_units


@part
def unchanged(desk: Desk) -> Iterator[Unit]:
    """0.5 B weights in bf16, 8 by 512 tokens: twelve unchanged runs of 40 steps per algorithm, judged as twenty splits
    into two sides by smoke and perf, a quarter of the steps as warm-up."""
    for algo in desk.size.algos:
        names = [f"{algo}-{number}" for number in range(2 * desk.size.runs)]
        for number, name in enumerate(names):
            words = [f"algo={algo}", "profile=true", f"seed={SEED + number}", desk.rate]
            yield _run(desk, "unchanged", name, 0.4, words, profile=True)
        for tier in TIERS:
            yield _judged(desk, "unchanged", f"{algo}-{tier}", lambda n=names, t=tier: verdicts.splits(desk, n, t))


@part
def slower(desk: Desk) -> Iterator[Unit]:
    """The same with steps that kernels make 5, 10 and 20 % longer, in turns with the usual ones, judged in pairs."""
    for algo in desk.size.algos:
        shares = (0.0, *desk.size.slower)
        for number in range(desk.size.runs):
            for share in shares if number % 2 == 0 else reversed(shares):
                fault = [f"fault.strength={share}", "fault.step=0", "fault=slow_step_from_n"] if share else []
                words = [f"algo={algo}", f"seed={SEED + number}", desk.rate, *fault]
                yield _run(desk, "slower", f"{algo}-{share}-{number}", 0.4, words)
        for tier in TIERS:
            yield _judged(desk, "slower", f"{algo}-{tier}", lambda a=algo, t=tier: verdicts.slower(desk, a, t))


@part
def tiny(desk: Desk) -> Iterator[Unit]:
    """Whole smoke sessions of the embedded model, unchanged: five of SFT, DPO and PPO each."""
    algos = ("sft", "dpo", "ppo")[: 1 if desk.size.tiny else 3]
    for number in range(desk.size.sessions):
        for algo in algos:
            cell = Cell(algo=algo, load="quiet", kind="unchanged", number=number, baseline=0)
            yield Unit(
                part="tiny", name=cell.label, minutes=1.5, make=lambda c=cell: measures.session(desk, c), forks=False
            )


@part
def policies(desk: Desk) -> Iterator[Unit]:
    """GRPO and PPO with Qwen2's layers of half a billion weights and a canary's vocabulary, 32 answers of 32 tokens: a
    champion, two unchanged sessions, three that are broken."""
    for algo in ("ppo",) if desk.size.tiny else ("grpo", "ppo"):
        champion, unchanged, broken = desk.size.policy_runs
        runs = {f"champion-{at}": "none" for at in range(champion)}
        runs |= {f"unchanged-{at}": "none" for at in range(2 * unchanged)}
        runs |= {f"{fault}-{at}": fault for fault in BROKEN for at in range(broken)}
        rate = desk.size.learning_rate * PASSES["ppo"] / PASSES[algo]
        for number, (name, fault) in enumerate(runs.items()):
            words = [f"algo={algo}", f"train.max_steps={desk.size.policy_steps}", f"train.learning_rate={rate}"]
            words += [f"train.batch_size={desk.size.answers}", "algo.max_new_tokens=32", f"fault={fault}"]
            words += ["tier.train_rows=32", "tier.eval_rows=32", f"seed={SEED + number}"]
            words += ["fault.step=3"] if fault == "nan_batch" else []
            yield _run(desk, "policies", f"{algo}-{name}", 0.8, words, shape=SPOKEN)
        yield _judged(desk, "policies", f"{algo}-smoke", lambda a=algo: verdicts.policies(desk, a))


@part
def callback(desk: Desk) -> Iterator[Unit]:
    """What the callback adds to a step of half a billion weights: with and without, in turns."""
    for number in range(2 * desk.size.rounds):
        own = number % 4 in (0, 3)
        name = f"{'with' if own else 'without'}-{number // 2}"
        yield Unit(part="callback", name=name, minutes=0.4, make=lambda o=own: measures.own_script(desk, canary=o))


@part
def ppo(desk: Desk) -> Iterator[Unit]:
    """Our PPO beside TRL 1.12's, five rounds in turns; needs `make oracle`, and is not rehearsed."""
    words = ["--size", "large", "--device", "cuda", "--rounds", str(desk.size.rounds)]
    if not desk.size.tiny:
        yield _command("ppo", "beside-trl", 8.0, ["benchmarks/ppo_vs_trl.py", *words])


@part
def seven(desk: Desk) -> Iterator[Unit]:
    """A smoke session of LoRA on seven billion weights: minutes, and memory beside the plan."""
    yield Unit(part="seven", name="memory", minutes=3.0, make=lambda: measures.planned(desk))
    yield Unit(part="seven", name="session", minutes=6.0, make=lambda: measures.seven_session(desk))


@part
def card(desk: Desk) -> Iterator[Unit]:
    """torch's deterministic algorithms, and a card that something else keeps busy."""
    for number in range(2):
        words = ["algo=sft", f"seed={SEED}", "hardware.deterministic=true"]
        yield _run(desk, "card", f"deterministic-{number}", 0.5, words)
    yield _judged(desk, "card", "deterministic", lambda: verdicts.same(desk))
    for number in range(2 * desk.size.runs):
        hot = number % 2
        name = f"{'hot' if hot else 'cool'}-{number // 2}"
        yield _run(desk, "card", name, 0.6, ["algo=sft", f"seed={SEED + number // 2}", desk.rate], heated=bool(hot))
    yield _judged(desk, "card", "heated", lambda: verdicts.heated(desk))


@part
def kinds(desk: Desk) -> Iterator[Unit]:
    """FSDP2 with one rank, fp16 as on a T4, 8-bit and 4-bit weights and optimizer states."""
    for name, arguments in OWN_SCRIPTS.items():
        chosen = {} if desk.size.tiny else arguments
        yield Unit(
            part="kinds", name=name, minutes=0.5, make=lambda c=chosen: measures.own_script(desk, canary=True, **c)
        )
    if desk.size.tiny:
        return
    for name, words in {
        "nf4": ["adapter=lora", desk.adapter_rate, "quantization=nf4"],
        "int8": ["adapter=lora", desk.adapter_rate, "quantization=int8"],
    }.items():
        yield _run(desk, "kinds", name, 0.6, ["algo=sft", *words, f"seed={SEED}"])


def _run(
    desk: Desk,
    part: str,
    name: str,
    minutes: float,
    words: Sequence[str],
    *,
    shape: str = SMALL,
    profile: bool = False,
    heated: bool = False,
) -> Unit:
    def make_run() -> Record:
        with measures.heat(desk, heated):
            return measures.train(desk, desk.words(shape, *words), profile)

    return Unit(part=part, name=name, minutes=minutes, make=make_run)


def _judged(desk: Desk, part: str, name: str, decide: Callable[[], Record]) -> Unit:
    def made() -> Record:
        try:
            return decide()
        except LookupError as missing:
            return {"broke": f"run {missing} is not measured yet"}

    return Unit(part=part, name=name, minutes=0.2, make=made, forks=False)


def _command(part: str, name: str, minutes: float, words: Sequence[str]) -> Unit:
    """A script whose last line is one JSON object."""

    def made() -> Record:
        done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError((done.stderr.strip() or f"ended with {done.returncode}").splitlines()[-1])
        return {"figures": json.loads(done.stdout.splitlines()[-1])}

    return Unit(part=part, name=name, minutes=minutes, make=made, forks=False)
