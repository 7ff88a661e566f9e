"""Trains real sessions that fail from a known step on, beside healthy ones, and keeps what they logged.

    python benchmarks/watch_sessions.py made|kept|third OUT.jsonl.gz [--algo grpo …] [--healthy 100] [--seeds 4]

`made`: the world and faults that the watch's rules were written on; `kept`: another model, other data, other faults
(watch_worlds.py, watch_faults.py); `third`: one more of each. TRL's trainers for GRPO, RLOO, DPO, SFT and, in `third`
only, KTO and reward models, our own for PPO; one row per optimizer step (PPO: per iteration). Sessions that OUT has are
not trained again. One line per session: world, algo, fault, seed, onset, settings, step, series; a session without
a fault, where the world has held-out data, also says how good the model was on them before and after: `evaluated`.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from datasets.utils.logging import disable_progress_bar as disable_progress_bars
from transformers import PrinterCallback
from transformers.utils import logging as transformers_logging
from watch_faults import KEPT, MADE, THIRD, Fault
from watch_recorded import read
from watch_trainers import BUILD, Striking, settings_of
from watch_worlds import END, WORLDS, World, load, load_scorer

from canary_mlflow.files.names import name_of_column

ALGOS = ("grpo", "rloo", "ppo", "dpo", "kto", "sft", "reward")
FAULTS = {"made": MADE, "kept": KEPT, "third": THIRD}
WORLDS_OF = {"made": ("words",), "kept": ("sums",), "third": ("turns", "turns_early", "turns_judged")}
CACHE = Path(tempfile.gettempdir()) / "canary-watch-worlds"
# The series that a judge may look at.
_KEPT = frozenset((
    "loss", "grad_norm", "learning_rate", "kl", "approx_kl", "entropy", "clip_fraction", "policy_loss", "value_loss",
    "reward_mean", "reward_std", "score_mean", "zero_spread_share", "response_length", "truncated_share",
    "chosen_reward", "rejected_reward", "reward_margin", "reward_accuracy", "chosen_logp", "rejected_logp",
))  # fmt: skip


def session(world: World, algo: str, fault: Fault | None, seed: int, onset: int, steps: int) -> dict[str, Any]:
    """Train one session; returns its settings and its rows as columns."""
    draw = random.Random(f"{world.name} {algo} {seed}")
    chosen = settings_of(algo, world, draw)
    if fault and fault is MADE["kl_paid"]:
        chosen |= {"init_kl_coef": 0.1} if algo == "ppo" else {"beta": 0.1}  # without a reference there is no KL
    if fault:  # a rate that has decayed to 0 could do no harm
        chosen["lr_scheduler_type"] = "constant"
    striking = Striking(fault, onset)
    usual = {
        "output_dir": str(CACHE / "out"), "seed": seed, "use_cpu": True, "bf16": False, "report_to": "none",
        "disable_tqdm": True, "save_strategy": "no", "logging_nan_inf_filter": False,
    }  # fmt: skip
    trainer = BUILD[algo](world, world.folder(CACHE), fault, striking, draw, usual | chosen, steps)
    striking.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train()
    except (RuntimeError, ValueError) as error:  # sampling and our PPO refuse NaN: the rows so far are the run
        print(f"  ended at {trainer.state.global_step}: {str(error)[:80]}", file=sys.stderr)
    entries = [entry for entry in trainer.state.log_history if algo != "ppo" or "kl" in entry]
    found: dict[str, Any] = {"settings": chosen}
    if fault is None and world.held_out:
        first, tokenizer = (load_scorer if algo == "reward" else load)(world.folder(CACHE))
        found["evaluated"] = [evaluation(algo, world, model, tokenizer) for model in (first, trainer.model)]
    return found | _columns([entry for entry in entries if "loss" in entry])


def _columns(entries: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, list[float | None]] = {}
    for at, entry in enumerate(entries):
        for key, value in entry.items():
            name = name_of_column(key)
            if name in _KEPT and isinstance(value, int | float):
                found.setdefault(name, [None] * len(entries))[at] = float(f"{value:.3g}")
    return {"step": list(range(1, len(entries) + 1)), "series": found}


@torch.no_grad()
def evaluation(algo: str, world: World, model: Any, tokenizer: Any) -> float:
    """How good a model is on held-out pairs; higher is better.

    SFT: the log-probability of a good answer, DPO and KTO: by how much it exceeds the poor answer's, PPO: the score of
    an answer that is drawn, reward models: the log-probability that the good answer is the better one. Means over the
    pairs.
    """
    draw, model = random.Random(7), getattr(model, "policy", model).eval()
    prompts, good = zip(*world.held_out, strict=True)
    if algo == "ppo":
        prompts *= 16  # one answer says little
        asked = tokenizer(list(prompts), return_tensors="pt", padding=True)
        with torch.random.fork_rng():
            torch.manual_seed(7)
            ids = model.generate(**asked, max_new_tokens=world.answer_tokens, do_sample=True)
        said = tokenizer.batch_decode(ids[:, asked["input_ids"].shape[1] :], skip_special_tokens=True)
        return statistics.fmean(map(world.score, prompts, said))
    if algo == "reward":
        poor = [world.poor(prompt, answer, draw) for prompt, answer in world.held_out]
        margins = _scores(model, tokenizer, prompts, good) - _scores(model, tokenizer, prompts, poor)
        return float(torch.nn.functional.logsigmoid(margins).mean())
    likely = _log_probability(model, tokenizer, prompts, good)
    if algo == "sft":
        return likely
    poor = [world.poor(prompt, answer, draw) for prompt, answer in world.held_out]
    return likely - _log_probability(model, tokenizer, prompts, poor)


def _log_probability(model: Any, tokenizer: Any, prompts: Sequence[str], answers: Sequence[str]) -> float:
    """Of the answers, nats, mean over the pairs."""
    total = 0.0
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = tokenizer(prompt + answer + END, return_tensors="pt").input_ids
        start = len(tokenizer(prompt).input_ids)
        logps = model(input_ids=ids).logits[0, start - 1 : -1].log_softmax(-1)
        total += float(logps.gather(1, ids[0, start:, None]).sum())
    return total / len(prompts)


def _scores(model: Any, tokenizer: Any, prompts: Sequence[str], answers: Sequence[str]) -> torch.Tensor:
    """Of the answers, by a reward model."""
    texts = [prompt + answer + END for prompt, answer in zip(prompts, answers, strict=True)]
    return model(**tokenizer(texts, return_tensors="pt", padding=True)).logits[:, 0]


def wanted(
    part: str, algos: list[str], healthy: int, seeds: int, steps: int, first: int
) -> Iterator[tuple[str, str, int, int]]:
    """(algorithm, fault or "", seed, onset or 0), the algorithms in turn, so that a stopped run is balanced."""
    faults = FAULTS[part]
    plans = []
    for algo in (one for one in algos if one in _worlds(part)):
        plan = [(algo, "", first + seed, 0) for seed in range(healthy)]
        for name, fault in faults.items():
            if algo in fault.algos:
                where = random.Random(f"{part} {algo} {name}" + (f" {first}" if first else ""))
                onsets = [where.randint(4 * steps // 10, 3 * steps // 4) for _ in range(seeds)]
                plan += [(algo, name, 1000 + first + at, onset) for at, onset in enumerate(onsets)]
        random.Random(part).shuffle(plan)
        plans.append(plan)
    for at in range(max(map(len, plans))):
        yield from (plan[at] for plan in plans if at < len(plan))


def _worlds(part: str) -> dict[str, World]:
    """Algorithm → the world in which it trains; an algorithm that no world of this part has is not there."""
    return {algo: WORLDS[name] for name in WORLDS_OF[part] for algo in WORLDS[name].rates}


def main() -> int:
    """Train what is missing and write it, session by session."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=tuple(FAULTS))
    parser.add_argument("out", type=Path)
    parser.add_argument("--algo", nargs="*", choices=ALGOS, default=list(ALGOS), help="default: all")
    parser.add_argument("--healthy", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=4, help="sessions of each fault")
    parser.add_argument("--first", type=int, default=0, help="the first seed: sessions that no file has yet")
    parser.add_argument("--steps", type=int, default=100)
    words = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    disable_progress_bars()
    transformers_logging.disable_progress_bar()
    worlds, faults = _worlds(words.part), MADE | KEPT | THIRD
    there = {(one["algo"], one["fault"], one["seed"]) for one in read(words.out)} if words.out.exists() else set()
    for algo, name, seed, onset in wanted(words.part, words.algo, words.healthy, words.seeds, words.steps, words.first):
        if (algo, name, seed) in there:
            continue
        started = time.process_time()
        digest = hashlib.sha256(f"{words.part} {algo} {name} {seed}".encode()).digest()
        torch.manual_seed(int.from_bytes(digest[:4], "big"))
        world = worlds[algo]
        found = session(world, algo, faults.get(name), seed, onset, words.steps)
        line = {"world": world.name, "algo": algo, "fault": name, "seed": seed, "onset": onset, **found}
        with gzip.open(words.out, "at") as out:
            out.write(json.dumps(line) + "\n")
        print(f"{algo} {name or 'healthy'} {seed}: {time.process_time() - started:.1f} s CPU", file=sys.stderr)
    _pack(words.out)
    return 0


def _pack(path: Path) -> None:
    """Sort the sessions, which were appended one by one, and compress them as one stream."""
    sessions = sorted(read(path), key=lambda one: (one["algo"], one["fault"], one["seed"]))
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, 0) as out:
        out.writelines((json.dumps(one, separators=(",", ":")) + "\n").encode() for one in sessions)


if __name__ == "__main__":
    sys.exit(main())
