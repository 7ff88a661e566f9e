"""PPO iterations per second: our trainer beside TRL 1.12.0's PPOTrainer, on the same work.

    make oracle && python benchmarks/ppo_vs_trl.py [--device cuda --size large]

8 prompts, 16 new tokens and 4 PPO epochs per iteration on a GPT-NeoX of 2 layers, 64 wide, with a rule reward and one
CPU thread; `--size large`: 32 prompts, 128 new tokens, 24 layers, 1024 wide; on a GPU in bf16. Every measurement is a
fresh process; the sides take turns, so that a busy machine hits all of them; figures are medians over the rounds of
each process's median iteration. The speed-ups are medians over rounds of the ratio within a round. Tokens are new ones.
Prints a table, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sessions import python_path

ROOT = Path(__file__).resolve().parents[1]
ORACLE = ROOT / ".oracle"
EPOCHS, PROMPT = 4, 12
WARMUP = 5  # iterations left out: the first ones are two to five times as slow
VOCABULARY = 417
LEARNING_RATE = 1e-7  # so that no policy learns to end its answers early: the sides would do unequal work

# name → (what it is, the part of the iterations that it makes, whether the garbage collector is frozen)
SIDES = {
    "ours": ("ours, value head shared (as shipped)", 1, False),
    "ours_separate": ("ours, separate value model", 1, False),
    "trl_frozen": ("TRL 1.12.0, garbage collection frozen", 1, True),
    "trl": ("TRL 1.12.0 as is", 3, False),
}


@dataclass(frozen=True, kw_only=True)
class Size:
    """Prompts and new tokens of an iteration, layers and width of the model, and how many iterations."""

    rows: int
    tokens: int
    layers: int
    width: int
    iterations: int


SIZES = {
    "small": Size(rows=8, tokens=16, layers=2, width=64, iterations=45),
    "large": Size(rows=32, tokens=128, layers=24, width=1024, iterations=9),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", choices=SIDES, help="measure one side in this process (used by the rounds)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--size", choices=SIZES, default="small")
    options = parser.parse_args()
    size, cuda = SIZES[options.size], options.device == "cuda"
    if options.side:
        print(json.dumps(measure(options.side, size, cuda)))
        return
    if not (ORACLE / "trl").is_dir():
        sys.exit(f"{ORACLE} has no trl; expected trl 1.12.0 there; run `make oracle`")
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}
    for number in range(options.rounds):
        order = list(SIDES) if number % 2 == 0 else list(reversed(SIDES))
        for name in order:
            rounds[name].append(in_fresh_process(name, options.size, options.device))
    print(table(rounds, size))
    print(json.dumps(figures(rounds, size) | {"device": options.device, "size": options.size}))


def in_fresh_process(side: str, size: str, device: str) -> dict[str, float]:
    """Measure one side in a new process."""
    paths = [*([ORACLE] if side.startswith("trl") else []), ROOT / "tests", ROOT]
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(*paths),
        "OMP_NUM_THREADS": "1",
        **({} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}),
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, str(Path(__file__).resolve()), "--side", side, "--size", size, "--device", device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{side} failed:\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(side: str, size: Size, cuda: bool) -> dict[str, float]:
    """Median wall and CPU seconds of an iteration after the warm-up, in this process."""
    import gc

    from transformers import TrainerCallback
    from transformers.utils import logging

    logging.set_verbosity_error()

    class Clock(TrainerCallback):
        """Notes the time at the end of every iteration: an epoch for ours, a step for TRL's."""

        def __init__(self) -> None:
            self.stamps: list[tuple[float, float]] = []

        def stamp(self) -> None:
            self.stamps.append((time.perf_counter(), time.process_time()))

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            self.stamp()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if side.startswith("trl"):
                self.stamp()

    clock = Clock()
    iterations = max(size.iterations // SIDES[side][1], WARMUP + 3)
    if side.startswith("trl"):
        trainer = build_trl_trainer(iterations, clock, size, cuda)
    else:
        trainer = our_trainer(side, iterations, clock, size, cuda)
    if SIDES[side][2]:
        gc.collect()
        gc.freeze()
    trainer.train()
    pairs = list(zip(clock.stamps, clock.stamps[1:], strict=False))[WARMUP:]
    return {
        "wall": median(after[0] - before[0] for before, after in pairs),
        "cpu": median(after[1] - before[1] for before, after in pairs),
    }


def our_trainer(side: str, iterations: int, clock: Any, size: Size, cuda: bool) -> Any:
    """Our trainer as the canary builds it."""
    from oracle.trl_ppo import word_tokenizer
    from transformers import PrinterCallback

    from canary_mlflow.training.ppo.settings import PPOConfig
    from canary_mlflow.training.ppo.trainer import PPOTrainer

    args = PPOConfig(
        output_dir=tempfile.mkdtemp(),
        iterations=iterations,
        rollout_batch_size=size.rows,
        ppo_epochs=EPOCHS,
        max_new_tokens=size.tokens,
        learning_rate=LEARNING_RATE,
        value_head="separate" if side == "ours_separate" else "shared",
        use_cpu=not cuda,
        bf16=cuda,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = PPOTrainer(
        model=model(size),
        args=args,
        tokenizer=word_tokenizer(VOCABULARY),
        train_prompts=prompts(),
        reward=lambda answers: (answers.response_ids % 7 == 0).float().mean(1),
        callbacks=[clock],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def build_trl_trainer(iterations: int, clock: Any, size: Size, cuda: bool) -> Any:
    """TRL's trainer with the same sizes and otherwise its own defaults."""
    import copy

    from oracle.trl_ppo import trl_trainer, word_tokenizer
    from transformers import GPTNeoXForSequenceClassification
    from trl.experimental.ppo import PPOTrainer

    policy = model(size)
    config = copy.deepcopy(policy.config)
    config.num_labels = 1
    return trl_trainer(
        PPOTrainer,
        policy=policy,
        reference=None,
        value=GPTNeoXForSequenceClassification(config),
        rule=lambda ids, mask: (ids % 7 == 0).float().cumsum(1) / size.tokens,
        tokenizer=word_tokenizer(VOCABULARY),
        prompts=prompts(),
        rows=size.rows,
        iterations=iterations,
        callbacks=[clock],
        num_ppo_epochs=EPOCHS,
        response_length=size.tokens,
        temperature=1.0,
        kl_coef=0.2,
        learning_rate=LEARNING_RATE,
        use_cpu=not cuda,
        bf16=cuda,
    )


def model(size: Size) -> Any:
    """The model, with the same initial weights for every side."""
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    torch.manual_seed(0)
    sizes = {
        "hidden_size": size.width, "num_hidden_layers": size.layers, "num_attention_heads": max(4, size.width // 64),
        "intermediate_size": 4 * size.width,
    }  # fmt: skip
    return GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=VOCABULARY, eos_token_id=0, pad_token_id=1, **sizes))


def prompts() -> list[str]:
    """64 prompts of 6 to 12 words."""
    import numpy as np

    random = np.random.default_rng(0)
    return [
        " ".join(f"w{i}" for i in random.integers(2, VOCABULARY, size=random.integers(6, PROMPT + 1)))
        for _ in range(64)
    ]


def figures(rounds: dict[str, list[dict[str, float]]], size: Size) -> dict[str, Any]:
    """Iterations per second by side, and how many times faster ours is."""

    def faster_than(side: str, kind: str) -> float:
        pairs = zip(rounds["ours"], rounds[side], strict=True)
        return round(median(theirs[kind] / ours[kind] for ours, theirs in pairs), 2)

    return {
        "benchmark": "ppo_vs_trl",
        "rounds": len(rounds["ours"]),
        "load_average": round(os.getloadavg()[0], 1),  # neighbours slow the sides down unequally
        "iterations_per_second": {name: round(1 / median(r["wall"] for r in rows), 2) for name, rows in rounds.items()},
        "tokens_per_second": {
            name: round(size.rows * size.tokens / median(r["wall"] for r in rows)) for name, rows in rounds.items()
        },
        "speedup_vs_trl": faster_than("trl", "wall"),
        "speedup_vs_trl_frozen": faster_than("trl_frozen", "wall"),
        "cpu_speedup_vs_trl": faster_than("trl", "cpu"),
        "cpu_speedup_vs_trl_frozen": faster_than("trl_frozen", "cpu"),
    }


def table(rounds: dict[str, list[dict[str, float]]], size: Size) -> str:
    """One line per side."""
    lines = [f"{'':40}{'it/s':>7}{'ms/it':>8}{'CPU ms':>8}{'tokens/s':>10}   each round, ms"]
    for name, rows in rounds.items():
        wall, cpu = median(r["wall"] for r in rows), median(r["cpu"] for r in rows)
        each, drawn = " ".join(f"{r['wall'] * 1e3:.0f}" for r in rows), size.rows * size.tokens / wall
        lines.append(f"{SIDES[name][0]:40}{1 / wall:7.1f}{wall * 1e3:8.1f}{cpu * 1e3:8.1f}{drawn:10.0f}   {each}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
