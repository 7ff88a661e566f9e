"""Does the embedded PPO canary learn? Reward, KL and seconds of the smoke tier, per seed.

    python benchmarks/ppo_learns.py --seeds 0 1 2 [--figure docs/ppo-learning.svg] [key=value …]

Further words are overrides, as for `python -m training`. Prints a table, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--figure", type=Path, help="draw score and KL over the iterations into this file")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    runs = [run(seed, options.overrides) for seed in options.seeds]
    print(f"{'seed':>4}{'score, first third':>20}{'last third':>12}{'held out':>16}{'KL, last third':>16}{'CPU s':>7}")
    for seed, found in zip(options.seeds, runs, strict=True):
        held_out = f"{found['before']:.1f} -> {found['after']:.1f}"
        print(
            f"{seed:4d}{found['first']:20.2f}{found['last']:12.2f}{held_out:>16}{found['kl']:16.2f}{found['cpu']:7.1f}"
        )
    if options.figure:
        draw(options.figure, options.seeds, runs)
    print(json.dumps(figures(runs)))


def run(seed: int, overrides: list[str]) -> dict[str, Any]:
    """Train one smoke canary; scores and KL per iteration, and what they come to."""
    from transformers import PrinterCallback, set_seed
    from transformers.utils import logging

    from training.algorithms import build
    from training.command_line import parse
    from training.compose import check, register_schemas
    from training.devices import settle
    from training.parts import build_parts

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    register_schemas()
    config = check(parse(["algo=ppo", "tier=smoke", f"seed={seed}", *overrides]))[0]
    set_seed(seed)
    device = settle(config.hardware)
    with tempfile.TemporaryDirectory() as folder:
        trainer: Any = build(config, build_parts(config, device), device, Path(folder), [])
        trainer.remove_callback(PrinterCallback)
        before = trainer.evaluate()["eval_reward"]
        start = time.process_time(), time.perf_counter()
        trainer.train()
        cpu, wall = time.process_time() - start[0], time.perf_counter() - start[1]
        after = trainer.evaluate()["eval_reward"]
    rows = [row for row in trainer.state.log_history if "kl" in row]
    scores, kls = [row["score_mean"] for row in rows], [row["kl"] for row in rows]
    third = max(1, len(rows) // 3)
    return {
        "scores": scores,
        "kls": kls,
        "target": config.algo.target_kl,
        "first": mean(scores[:third]),
        "last": mean(scores[-third:]),
        "kl": mean(kls[-third:]),
        "before": before,
        "after": after,
        "cpu": cpu,
        "wall": wall,
    }


def figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the seeds."""
    names = ("first", "last", "kl", "before", "after", "cpu", "wall")
    medians = {name: round(median(found[name] for found in runs), 2) for name in names}
    return {"benchmark": "ppo_learns", "runs": len(runs), **medians}


def draw(path: Path, seeds: list[int], runs: list[dict[str, Any]]) -> None:
    """Two panels: score and KL over the iterations, a line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "canary"  # the same data draw the same file
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
    for seed, found in zip(seeds, runs, strict=True):
        left.plot(found["scores"], label=f"seed {seed}", linewidth=1)
        right.plot(found["kls"], linewidth=1)
    right.axhline(runs[0]["target"], color="black", linestyle=":", linewidth=1)
    left.set(title="score (0 = the wanted length)", xlabel="iteration")
    right.set(title="KL per answer, nats (dotted: target)", xlabel="iteration")
    left.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
